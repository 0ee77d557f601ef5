// SPDX-License-Identifier: Apache-2.0
// StepRunner with its real thread, jobs and ring, over a scripted driver whose logits are a hash of
// the lane's whole history: each request must get exactly what it gets alone.
#include "engine/runner.h"

#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "engine/kv_mover.h"
#include "tests/chain_world.h"
#include "tests/package_for_test.h"
#include "tests/scripted_access.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

constexpr uint32_t kColumns = PackageForTest::kVocab;
constexpr uint32_t kLanes = 4, kCells = 64;
constexpr uint64_t kSecond = 1'000'000'000;

uint64_t now_ns() {
  return uint64_t(std::chrono::steady_clock::now().time_since_epoch() /
                  std::chrono::nanoseconds(1));
}

scripted::Script& script() {
  static scripted::Script* found =
      scripted_access((*(*Device::open("scripted", {}))->info()).driver_path);
  return *found;
}

std::vector<float> row_of(const std::vector<int32_t>& cells, size_t count) {
  const auto bits = chain_row(cells, count);
  std::vector<float> row;
  for (uint32_t i = 0; i < kColumns; ++i)
    row.push_back(std::bit_cast<float>(uint32_t(bits[i]) << 16));
  return row;
}

std::vector<int32_t> alone(std::vector<int32_t> context, uint32_t n) {
  std::vector<int32_t> tokens;
  while (tokens.size() < n) {
    const auto row = row_of(context, context.size());
    tokens.push_back(int32_t(std::max_element(row.begin(), row.end()) - row.begin()));
    context.push_back(tokens.back());
  }
  return tokens;
}

// Ends the held jobs of the scripted driver from a thread of its own, as a device would.
class ChainThread {
 public:
  explicit ChainThread(std::shared_ptr<Model> model)
      : model_(std::move(model)), cells_(kLanes, std::vector<int32_t>(kCells, -99)) {
    thread_ = std::thread([this] {
      while (!stop_) {
        if (hold || !turn()) std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
  }
  ~ChainThread() {
    stop_ = true;
    thread_.join();
  }
  std::atomic<bool> hold{false};  // jobs stay in flight
  std::atomic<int> jobs{0};
  std::atomic<size_t> most{0};  // in flight at a time

 private:
  template <class T>
  T* data(const scripted::Script::Run& run, int32_t role) {
    for (const cald_binding& binding : run.bound) {
      void* out = nullptr;
      if (binding.role != role) continue;
      CHECK(model_->device()->table().buffer_map(binding.buffer, &out, nullptr) == CALD_OK);
      return reinterpret_cast<T*>(static_cast<char*>(out) + binding.offset);
    }
    return nullptr;
  }

  bool turn() {
    std::unique_lock lock(script().mutex);
    if (script().held.empty()) return false;
    most = std::max(most.load(), script().held.size());
    const uint64_t seq = script().held.front();
    const scripted::Script::Run run = script().runs.at(seq);
    const cald_graph& graph = model_->graph(run.graph);
    const bool prefill = graph.kind == CALD_GRAPH_PREFILL;
    const auto* tokens = data<int32_t>(run, CALD_ROLE_TOKENS);
    const auto* positions = data<int32_t>(run, CALD_ROLE_POSITIONS);
    const auto* lanes = data<int32_t>(run, CALD_ROLE_LANES);
    auto* logits = data<float>(run, CALD_ROLE_LOGITS);
    const int rows = prefill ? *data<int32_t>(run, CALD_ROLE_N_VALID) : int(graph.batch);
    for (int i = 0; i < rows; ++i) {
      const int32_t lane = lanes[prefill ? 0 : i];
      if (lane < 0) continue;
      auto& cells = cells_[size_t(lane)];
      cells[size_t(positions[i])] = tokens[i];
      if (prefill && i + 1 < rows) continue;
      const auto row = row_of(cells, size_t(positions[i]) + 1);
      std::copy(row.begin(), row.end(), logits + (prefill ? 0 : size_t(i) * kColumns));
    }
    ++jobs;
    lock.unlock();
    return script().finish(seq);
  }

  std::shared_ptr<Model> model_;
  std::vector<std::vector<int32_t>> cells_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Rig {
  std::shared_ptr<Model> model;
  std::shared_ptr<kv::LaneTable> table;
  std::unique_ptr<ChainThread> chain;
  std::unique_ptr<StepRunner> runner;
  std::map<uint64_t, Outcome> outcomes;

  explicit Rig(RunnerOptions options = {}) {
    script().reset();
    script().ends = scripted::Ends::HELD;
    auto device = *Device::open("scripted", {});
    LoadRequest request;
    request.lanes = kLanes;
    model = *Model::load(device, PackageForTest::make("scripted", "test-class"), request);
    table = kv::LaneTable::make(kLanes, kCells, 1, KvMover::caps_of(*model));
    chain = std::make_unique<ChainThread>(model);
    auto made = StepRunner::make(model, table, options);
    CHECK(made.ok());
    if (!made.ok()) std::fprintf(stderr, "%s\n", made.error().message.c_str());
    runner = *std::move(made);
  }
  ~Rig() {
    chain->hold = false;
    runner.reset();
    chain.reset();
    model.reset();
    CHECK(eventually([] { return script().living() == 0; }));
    CHECK(script().wrong.empty());
    CHECK(table->check_integrity().ok());
  }

  Result<void> start(Start request) {
    auto reserved = table->try_reserve(table->cells(), 0);
    if (!reserved.ok()) return std::move(reserved).error();
    request.lane = reserved->commit().value();
    auto started = runner->start(request);
    if (!started.ok()) (void)table->release(request.lane);
    return started;
  }

  // Reads events until `ended` requests have ended; false after 20 s.
  bool collect(size_t ended) {
    const uint64_t limit = now_ns() + 20 * kSecond;
    size_t count = 0;
    while (now_ns() < limit) {
      pollfd ready{runner->fd(), POLLIN, 0};
      (void)poll(&ready, 1, 100);
      for (const Event& event : runner->drain()) {
        Outcome& out = outcomes[event.request];
        CHECK(out.ended == 0);
        if (event.kind == EventKind::STARTED) ++out.started;
        if (event.kind == EventKind::PREFILL) out.prompt_done = event.value;
        if (event.kind == EventKind::TOKEN) out.tokens.push_back(int32_t(event.value));
        if (event.kind != EventKind::ENDED) continue;
        ++out.ended;
        out.finish = Finish(event.value);
        out.status = event.status;
        out.text = event.text;
      }
      count = 0;
      for (auto& [id, out] : outcomes) count += size_t(out.ended);
      if (count >= ended) return true;
    }
    return false;
  }
};

std::vector<int32_t> small_prompt(std::mt19937& random, size_t n) {
  std::vector<int32_t> tokens(n);
  for (auto& token : tokens) token = int32_t(random() % kColumns);
  return tokens;
}

void many_requests_each_get_what_they_get_alone(uint32_t in_flight) {
  RunnerOptions options;
  options.in_flight = in_flight;
  Rig rig(options);
  std::mt19937 random(in_flight);
  std::map<uint64_t, Start> starts;
  size_t ended = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    Start start = request(id, small_prompt(random, 1 + random() % 40), 1 + random() % 20);
    starts[id] = start;
    while (true) {
      auto started = rig.start(start);
      if (started.ok()) break;
      CHECK(started.error().code == Status::KV_NO_CAPACITY);
      if (!rig.collect(++ended)) break;
    }
  }
  CHECK(rig.collect(40));
  for (auto& [id, start] : starts) {
    const Outcome& out = rig.outcomes[id];
    CHECK(out.started == 1 && out.ended == 1 && out.finish == Finish::LENGTH);
    CHECK(out.prompt_done == int64_t(start.tokens.size()));
    CHECK(out.tokens == alone(start.tokens, start.max_tokens));
  }
  CHECK(rig.table->free_lanes() == kLanes);
  const RunnerStatistics statistics = rig.runner->statistics();
  CHECK(statistics.active == 0 && statistics.events_dropped == 0 && statistics.ticks > 0);
  CHECK(statistics.ticks + statistics.chunks == uint64_t(rig.chain->jobs.load()));
  pollfd ready{rig.runner->fd(), POLLIN, 0};
  CHECK(poll(&ready, 1, 0) == 0);  // readable only while events are pending
  CHECK((rig.chain->most > 1) == (in_flight > 1));
}

}  // namespace

TEST(requests_get_what_they_get_alone) { many_requests_each_get_what_they_get_alone(1); }
TEST(requests_get_what_they_get_alone_with_two_jobs_in_flight) {
  many_requests_each_get_what_they_get_alone(2);
}

TEST(a_reader_that_does_not_read_stops_the_device_and_loses_nothing) {
  RunnerOptions options;
  options.max_events = 24;
  Rig rig(options);
  std::mt19937 random(2);
  const Start start = request(1, small_prompt(random, 5), 50);
  CHECK(rig.start(start).ok());
  int last = -1;
  CHECK(eventually([&] {  // the device comes to rest
    const int jobs = rig.chain->jobs;
    const bool rest = jobs > 10 && jobs == std::exchange(last, jobs);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return rest;
  }));
  CHECK(rig.outcomes.empty() && rig.chain->jobs < 30);
  CHECK(rig.collect(1));
  CHECK(rig.outcomes[1].tokens == alone(start.tokens, 50));
}

TEST(a_cancel_ends_with_its_job_and_others_go_on) {
  Rig rig;
  std::mt19937 random(3);
  rig.chain->hold = true;
  const Start other = request(2, small_prompt(random, 6), 8);
  CHECK(rig.start(request(1, small_prompt(random, 6), 30)).ok());
  CHECK(eventually([&] { return rig.runner->statistics().active == 1; }));
  CHECK(rig.start(other).ok());
  rig.runner->cancel(1);
  rig.runner->cancel(1);
  rig.runner->cancel(99);
  CHECK(rig.table->free_lanes() == kLanes - 2);
  rig.chain->hold = false;
  CHECK(rig.collect(2));
  CHECK(rig.outcomes[1].finish == Finish::CANCELLED);
  CHECK(rig.outcomes[2].tokens == alone(other.tokens, 8));
}

TEST(a_job_without_an_answer_is_lost_at_its_deadline_and_its_lane_comes_back_with_the_answer) {
  RunnerOptions options;
  options.job_timeout_ns = kSecond / 5;
  Rig rig(options);
  std::mt19937 random(4);
  rig.chain->hold = true;
  CHECK(rig.start(request(1, small_prompt(random, 6), 30)).ok());
  CHECK(rig.collect(1));
  CHECK(rig.outcomes[1].finish == Finish::FAILED);
  CHECK(rig.outcomes[1].status == int32_t(Status::EXECUTION_FAILED));
  CHECK(rig.outcomes[1].text.find("lost") != std::string::npos);
  CHECK(rig.table->free_lanes() == kLanes - 1);
  rig.chain->hold = false;
  CHECK(eventually([&] { return rig.table->free_lanes() == kLanes; }));
  const Start next = request(2, small_prompt(random, 6), 8);
  CHECK(rig.start(next).ok());
  CHECK(rig.collect(2));
  CHECK(rig.outcomes[2].tokens == alone(next.tokens, 8));
}

TEST(a_failed_job_tells_the_drivers_words) {
  Rig rig;
  std::mt19937 random(5);
  {
    const std::scoped_lock lock(script().mutex);
    script().ends = scripted::Ends::INSIDE;  // before submit returns
    script().end_state = CALD_JOB_FAILED;
    script().end_status = CALD_TRANSFER_FAULT;
    script().end_text = "link down";
    script().end_native = 77;
  }
  CHECK(rig.start(request(1, small_prompt(random, 6), 30)).ok());
  CHECK(rig.collect(1));
  CHECK(rig.outcomes[1].status == int32_t(Status::TRANSFER_FAULT));
  CHECK(rig.outcomes[1].text.find("link down") != std::string::npos);
  CHECK(rig.table->free_lanes() == kLanes - 1);  // it was tried, in vain
  script().set([](scripted::Script& now) {
    now.ends = scripted::Ends::HELD;
    now.end_state = CALD_JOB_DONE;
    now.end_status = CALD_OK;
  });
  CHECK(eventually([&] { return rig.table->free_lanes() == kLanes; }));
}

TEST(lanes_that_do_not_work_are_given_up) {
  Rig rig;
  std::mt19937 random(5);
  script().set([](scripted::Script& now) {
    now.ends = scripted::Ends::INSIDE;
    now.end_state = CALD_JOB_FAILED;
    now.end_status = CALD_EXECUTION_FAILED;
  });
  for (uint64_t id = 1; id <= kLanes; ++id) {
    CHECK(rig.start(request(id, small_prompt(random, 6), 30)).ok());
    CHECK(rig.collect(id));
    CHECK(rig.outcomes[id].finish == Finish::FAILED);
  }
  CHECK(eventually([&] { return rig.table->offline_lanes() == kLanes; }));
  CHECK(rig.table->try_reserve(1, 0).error().code == Status::DEVICE_LOST);
}

TEST(a_close_cancels_what_runs_and_refuses_what_comes) {
  Rig rig;
  std::mt19937 random(6);
  rig.chain->hold = true;
  CHECK(rig.start(request(1, small_prompt(random, 6), 30)).ok());
  CHECK(eventually([&] { return rig.runner->statistics().chunks == 1; }));
  {
    const std::scoped_lock lock(script().mutex);
    script().answers["job_cancel"] = CALD_UNSUPPORTED;  // the job ends by itself only
  }
  const auto early = rig.runner->close(now_ns() + kSecond / 50);
  CHECK(!early.ok() && early.error().code == Status::WAIT_TIMEOUT);
  CHECK(rig.start(request(2, small_prompt(random, 6), 30)).error().code == Status::INVALID_STATE);
  rig.chain->hold = false;
  CHECK(rig.runner->close(now_ns() + 20 * kSecond).ok());
  CHECK(rig.runner->close(0).ok());
  CHECK(rig.collect(1));
  CHECK(rig.outcomes[1].finish == Finish::CANCELLED);
  CHECK(rig.table->free_lanes() == kLanes);
}

TEST(what_may_not_enter_the_plan_says_why) {
  Rig rig;
  const auto refused = [&](const char* word, auto change) {
    Start start = request(7, {1, 2, 3}, 4);
    change(start);
    const auto got = rig.start(start);
    CHECK(!got.ok());
    if (!got.ok()) CHECK(got.error().message.find(word) != std::string::npos);
    CHECK(rig.table->free_lanes() == kLanes);  // it stays the caller's
  };
  refused("tokens", [](Start& s) { s.tokens.clear(); });
  refused("tokens[1]=10", [](Start& s) { s.tokens[1] = 10; });
  refused("tokens[2]=-1", [](Start& s) { s.tokens[2] = -1; });
  refused("stop_tokens[0]=10", [](Start& s) { s.stop_tokens = {10}; });
  refused("history[0]=44", [](Start& s) { s.history = {44}; });
  refused("max_tokens", [](Start& s) { s.max_tokens = 0; });
  refused("65 tokens", [](Start& s) { s.tokens.assign(65, 1); });
  refused("position=1", [](Start& s) { s.position = 1; });
  refused("top_p", [](Start& s) { s.sampling.top_p = 2; });
  RunnerOptions options;
  options.max_events = 3;
  CHECK(StepRunner::make(rig.model, rig.table, options).error().message.find("max_events=3") !=
        std::string::npos);
  for (const uint32_t in_flight : {0u, 3u}) {
    options = {};
    options.in_flight = in_flight;
    const auto made = StepRunner::make(rig.model, rig.table, options);
    CHECK(made.error().code == Status::OUT_OF_RANGE);
    CHECK(made.error().message.find("in_flight=") != std::string::npos);
  }
  options = {};
  options.prefill_chunk = 8;
  CHECK(!StepRunner::make(rig.model, rig.table, options).ok());
  CHECK(!StepRunner::make(rig.model, kv::LaneTable::make(1, kCells, 1), {}).ok());
}
