// SPDX-License-Identifier: Apache-2.0
// Jobs of the cpu driver: every bad value is refused before anything changes; queue, deadline,
// cancel, completion and close.
#include <atomic>
#include <functional>
#include <thread>

#include "check.h"
#include "cpu_client.h"
#include "cpu_tiny_model.h"

using namespace calrt::testing;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

bool says(const Failure& failure, const char* part) {
  const bool found = failure.text.find(part) != std::string::npos;
  if (!found) std::fprintf(stderr, "message \"%s\" lacks \"%s\"\n", failure.text.c_str(), part);
  return found;
}

// Counts completions of one job.
struct Ended {
  std::atomic<int> times{0};
  std::atomic<int32_t> state{0}, status{0};
  std::atomic<uint64_t> job_seq{0};
  static void tell(void* user, const cald_completion* completion) {
    auto* self = static_cast<Ended*>(user);
    self->state = completion->state;
    self->status = completion->status;
    self->job_seq = completion->job_seq;
    self->times += 1;
  }
};

// A model whose prefill takes milliseconds, so that jobs pile up behind it. Where a test must catch
// a job in a state, it tries again until it did: no test depends on how fast a job is.
constexpr uint32_t kChunk = 128;
constexpr int kTries = 200;
TinyShape slow_shape() {
  TinyShape shape;
  shape.layers = 16;
  shape.embed = 128;
  shape.ffn = 256;
  return shape;
}

class SlowModel {
 public:
  SlowModel() : tiny_(slow_shape()), model_(device_, tiny_.package(), args()) {
    const std::vector<int32_t> tokens(kChunk, 3), lane(1, 0), n_valid(1, kChunk);
    std::vector<int32_t> positions(kChunk);
    for (uint32_t i = 0; i < kChunk; ++i) positions[i] = static_cast<int32_t>(i);
    bindings_ = {model_.bind(CALD_ROLE_TOKENS, tokens.data(), kChunk * 4),
                 model_.bind(CALD_ROLE_POSITIONS, positions.data(), kChunk * 4),
                 model_.bind(CALD_ROLE_LANES, lane.data(), 4),
                 model_.bind(CALD_ROLE_N_VALID, n_valid.data(), 4),
                 model_.bind(CALD_ROLE_LOGITS, nullptr, model_.logit_bytes(1))};
  }
  cald_status submit(cald_job** job, Ended* ended, uint64_t seq = 1,
                     uint64_t deadline = CALD_NO_DEADLINE) {
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.graph = model_.graph("prefill_t128");
    desc.model = model_.model;
    desc.n_bindings = static_cast<uint32_t>(bindings_.size());
    desc.bindings = bindings_.data();
    desc.job_seq = seq;
    desc.deadline_ns = deadline;
    desc.on_complete = &Ended::tell;
    desc.user = ended;
    failure.ok(cpu_table().submit(device_.session, &desc, job, &failure.raw));
    return failure.code;
  }
  Device& device() { return device_; }
  Failure failure;

 private:
  static LoadArgs args() {
    LoadArgs args;
    args.cells = kChunk;
    args.profiles = {1};
    args.chunks = {kChunk};
    return args;
  }
  TinyModel tiny_;
  Device device_;
  Model model_;
  std::vector<cald_binding> bindings_;
};

int32_t state_of(cald_job* job, Failure* why = nullptr) {
  int32_t state = 0;
  Failure local;
  Failure& failure = why == nullptr ? local : *why;
  cpu_table().job_query(job, &state, &failure.raw);
  failure.text = failure.raw.message;
  failure.code = failure.raw.code;
  return state;
}

void wait_end(cald_job* job) {
  CHECK(cpu_table().job_wait(job, host_now_ns() + 60 * kSecond, nullptr) == CALD_OK);
}

}  // namespace

TEST(decode_values_out_of_range) {
  TinyModel tiny;
  Device device;
  Model model(device, tiny.package(), {});
  const std::string clean = model.decode(1, {{3, 0, 1}}).at(0);
  const struct {
    Step step;
    cald_status code;
    const char* says;
  } cases[] = {{{77, 0, 1}, CALD_OUT_OF_RANGE, "tokens[1]=77, 0 to 76"},
               {{-1, 0, 1}, CALD_OUT_OF_RANGE, "tokens[1]=-1"},
               {{3, 100, 1}, CALD_OUT_OF_RANGE, "positions[1]=100, 0 to 99"},
               {{3, -1, 1}, CALD_OUT_OF_RANGE, "positions[1]=-1"},
               {{3, 0, 4}, CALD_OUT_OF_RANGE, "lanes[1]=4, -1 to 3"},
               {{3, 0, -2}, CALD_OUT_OF_RANGE, "lanes[1]=-2"},
               {{3, 1, 0}, CALD_INVALID_ARGUMENT, "rows 0 and 1 are both on lane 0"}};
  for (const auto& c : cases) {
    // Row 0 is good and would overwrite cell 0 of lane 0.
    model.decode(4, {{9, 0, 0}, c.step});
    CHECK(model.failure.code == c.code);
    CHECK(says(model.failure, c.says));
  }
  // Lane 1 is as it was: its cell 0 still answers for token 3.
  const std::string next = model.decode(1, {{5, 1, 1}}).at(0);
  model.decode(1, {{3, 0, 2}});
  CHECK(model.decode(1, {{5, 1, 2}}).at(0) == next);
  CHECK(model.decode(1, {{3, 0, 3}}).at(0) == clean);
}

TEST(prefill_values_out_of_range) {
  TinyModel tiny;
  Device device;
  Model model(device, tiny.package(), {});
  model.prefill(16, {}, 0, 0);
  CHECK(model.failure.code == CALD_OUT_OF_RANGE && says(model.failure, "n_valid[0]=0, 1 to 16"));
  model.prefill(16, {1, 2, 99}, 0, 0);
  CHECK(model.failure.code == CALD_OUT_OF_RANGE && says(model.failure, "tokens[2]=99"));
  model.prefill(16, {1, 2}, 99, 0);
  CHECK(model.failure.code == CALD_OUT_OF_RANGE && says(model.failure, "positions[1]=100"));
  model.prefill(16, {1, 2}, 0, 9);
  CHECK(model.failure.code == CALD_OUT_OF_RANGE && says(model.failure, "lanes[0]=9"));
  model.prefill(16, {1, 2}, 0, 0, {1, 2});
  CHECK(model.failure.code == CALD_OUT_OF_RANGE && says(model.failure, "logit_rows[1]=2, 0 to 1"));
  const int32_t tokens[16] = {1, 2, 3}, positions[16] = {0, 2, 3}, lane = 0, n_valid = 3;
  const cald_binding logits = model.bind(CALD_ROLE_LOGITS, nullptr, model.logit_bytes(1));
  std::vector<cald_binding> job = {
      model.bind(CALD_ROLE_TOKENS, tokens, 64), model.bind(CALD_ROLE_POSITIONS, positions, 64),
      model.bind(CALD_ROLE_LANES, &lane, 4), model.bind(CALD_ROLE_N_VALID, &n_valid, 4), logits};
  CHECK(model.run(model.graph("prefill_t16"), job) == CALD_INVALID_ARGUMENT);
  CHECK(says(model.failure, "positions[1]=2; a chunk's positions are consecutive"));
}

TEST(padding_writes_nothing) {
  TinyModel tiny;
  Device device;
  Model model(device, tiny.package(), {});
  const auto before = model.decode(1, {{3, 0, 0}});
  CHECK(model.decode(4, {{5, 0, -1}, {-9, -9, -1}, {6, 0, 1}}).size() == 3);
  model.prefill(16, {8, 8, 8}, 0, -1);
  CHECK(model.failure.code == CALD_OK);
  const std::string next = model.decode(1, {{4, 1, 0}}).at(0);
  model.prefill(16, {3}, 0, 2);
  CHECK(model.decode(1, {{4, 1, 2}}).at(0) == next);
  CHECK(model.decode(16, std::vector<Step>(16, {0, 0, -1})).size() == 16);
}

TEST(bindings_that_do_not_fit) {
  TinyModel tiny;
  Device device;
  Model model(device, tiny.package(), {});
  const int32_t zero[16] = {};
  const uint32_t graph = model.graph("decode_b1");
  const std::vector<cald_binding> good = {
      model.bind(CALD_ROLE_TOKENS, zero, 64), model.bind(CALD_ROLE_POSITIONS, zero, 64),
      model.bind(CALD_ROLE_LANES, zero, 64), model.bind(CALD_ROLE_LOGITS, nullptr, 4096)};
  CHECK(model.run(graph, good) == CALD_OK);
  const auto with = [&](const std::function<void(std::vector<cald_binding>&)>& change) {
    auto bindings = good;
    change(bindings);
    return model.run(graph, bindings);
  };
  CHECK(with([](auto& b) { b.erase(b.begin()); }) == CALD_INVALID_ARGUMENT);
  CHECK(says(model.failure, "tokens is not bound"));
  CHECK(with([](auto& b) { b.push_back(b[1]); }) == CALD_INVALID_ARGUMENT);
  CHECK(says(model.failure, "positions is bound twice"));
  CHECK(with([](auto& b) { b[2].role = CALD_ROLE_N_VALID; }) == CALD_INVALID_ARGUMENT);
  CHECK(says(model.failure, "no role n_valid"));
  CHECK(with([](auto& b) { b[0].buffer = nullptr; }) == CALD_INVALID_HANDLE);
  CHECK(with([](auto& b) { b[0].bytes = 65; }) == CALD_OUT_OF_RANGE);
  CHECK(with([](auto& b) { b[0].offset = UINT64_MAX; }) == CALD_OUT_OF_RANGE);
  CHECK(with([](auto& b) { b[0].offset = 4, b[0].bytes = 4; }) == CALD_INVALID_ARGUMENT);
  CHECK(says(model.failure, "aligned to 64"));
  CHECK(with([](auto& b) { b[1].bytes = 3; }) == CALD_SHAPE_MISMATCH);
  CHECK(with([](auto& b) { b[3].bytes = 77 * 4 - 1; }) == CALD_SHAPE_MISMATCH);
  CHECK(says(model.failure, "1 rows need 308"));
  CHECK(model.run(99, good) == CALD_OUT_OF_RANGE);
  CHECK(says(model.failure, "graph=99"));
  cald_job_desc desc{};
  cald_job* job = nullptr;
  CHECK(cpu_table().submit(device.session, &desc, &job, nullptr) == CALD_INVALID_ARGUMENT);
  desc.struct_size = sizeof desc;
  CHECK(cpu_table().submit(device.session, &desc, &job, nullptr) == CALD_INVALID_HANDLE);
  CHECK(cpu_table().submit(nullptr, &desc, &job, nullptr) == CALD_INVALID_HANDLE);
}

TEST(queue_is_bounded_and_each_job_ends_once) {
  SlowModel slow;
  std::vector<std::unique_ptr<Ended>> ended;
  std::vector<cald_job*> jobs;
  while (jobs.size() < 2000) {
    ended.push_back(std::make_unique<Ended>());
    cald_job* job = nullptr;
    if (slow.submit(&job, ended.back().get(), jobs.size()) != CALD_OK) break;
    jobs.push_back(job);
  }
  CHECK(slow.failure.code == CALD_QUEUE_FULL);
  CHECK(says(slow.failure, "at most 8 may wait"));
  CHECK(jobs.size() >= 9);
  CHECK(ended.back()->times == 0);
  for (size_t i = 0; i < jobs.size(); ++i) {
    wait_end(jobs[i]);
    CHECK(ended[i]->times == 1 && ended[i]->job_seq == i);
    CHECK(ended[i]->state == CALD_JOB_DONE && ended[i]->status == CALD_OK);
    cald_timing timing{};
    timing.struct_size = sizeof timing;
    CHECK(cpu_table().job_timing(jobs[i], &timing, nullptr) == CALD_OK);
    CHECK(timing.submitted_ns > 0 && timing.infer_ns > 0);
    CHECK(cpu_table().job_cancel(jobs[i], nullptr) == CALD_OK);  // of an ended job: nothing
    CHECK(state_of(jobs[i]) == CALD_JOB_DONE);
    cpu_table().job_destroy(jobs[i]);
  }
  cald_counter counters[3];
  uint32_t count = 3;
  cpu_table().device_counters(slow.device().device, counters, &count, nullptr);
  CHECK(count == 3 && counters[0].value == jobs.size());
  CHECK(counters[1].value == jobs.size() * kChunk && counters[2].value > 0);
}

TEST(a_waiting_job_is_cancelled_where_it_waits) {
  SlowModel slow;
  bool caught = false;
  for (int attempt = 0; attempt < kTries && !caught; ++attempt) {
    Ended ended[3];
    cald_job* jobs[3] = {};
    for (uint64_t i = 0; i < 3; ++i) CHECK(slow.submit(&jobs[i], &ended[i], i) == CALD_OK);
    CHECK(cpu_table().job_cancel(jobs[2], nullptr) == CALD_OK);
    for (cald_job* job : jobs) wait_end(job);
    Failure failure;
    caught = state_of(jobs[2], &failure) == CALD_JOB_CANCELLED &&
             failure.text.find("before it began") != std::string::npos;
    if (caught) CHECK(failure.code == CALD_CANCELLED && ended[2].status == CALD_CANCELLED);
    for (int i = 0; i < 3; ++i) {
      CHECK(ended[i].times == 1);
      if (i < 2) CHECK(ended[i].state == CALD_JOB_DONE);  // nobody else is touched
      cpu_table().job_destroy(jobs[i]);
    }
  }
  CHECK(caught);
}

TEST(wait_changes_nothing_and_cancel_ends_a_running_job) {
  SlowModel slow;
  bool timed_out = false, caught = false;
  for (int attempt = 0; attempt < kTries && !(timed_out && caught); ++attempt) {
    Ended ended;
    cald_job* job = nullptr;
    CHECK(slow.submit(&job, &ended) == CALD_OK);
    Failure failure;
    if (!failure.ok(cpu_table().job_wait(job, host_now_ns() + 1000, &failure.raw))) {
      timed_out = true;
      CHECK(failure.code == CALD_WAIT_TIMEOUT);
    }
    while (state_of(job) == CALD_JOB_QUEUED) std::this_thread::yield();
    CHECK(cpu_table().job_cancel(job, nullptr) == CALD_OK);
    wait_end(job);
    if (state_of(job, &failure) == CALD_JOB_CANCELLED) {
      caught = true;
      CHECK(failure.code == CALD_CANCELLED && says(failure, "while it ran"));
      CHECK(ended.state == CALD_JOB_CANCELLED);
    }
    CHECK(ended.times == 1);
    cpu_table().job_destroy(job);
  }
  CHECK(timed_out);
  CHECK(caught);
}

TEST(a_job_late_in_the_queue_does_not_begin) {
  SlowModel slow;
  Ended first, second;
  cald_job *running = nullptr, *late = nullptr;
  CHECK(slow.submit(&running, &first, 1) == CALD_OK);
  CHECK(slow.submit(&late, &second, 2, host_now_ns() + 1) == CALD_OK);
  wait_end(late);
  Failure failure;
  CHECK(state_of(late, &failure) == CALD_JOB_FAILED);
  CHECK(failure.code == CALD_EXECUTION_FAILED && says(failure, "deadline passed in the queue"));
  CHECK(second.times == 1 && second.status == CALD_EXECUTION_FAILED);
  CHECK(first.times == 1 && first.state == CALD_JOB_DONE);
  cpu_table().job_destroy(running);
  cpu_table().job_destroy(late);
}

TEST(close_waits_for_the_running_and_fails_the_queued) {
  bool caught = false;
  for (int attempt = 0; attempt < kTries && !caught; ++attempt) {
    SlowModel slow;
    Ended ended[6];
    cald_job* jobs[6] = {};
    for (uint64_t i = 0; i < 6; ++i) CHECK(slow.submit(&jobs[i], &ended[i], i) == CALD_OK);
    while (state_of(jobs[0]) == CALD_JOB_QUEUED) std::this_thread::yield();
    cpu_table().session_close(slow.device().session);
    slow.device().session = nullptr;
    // Some were done or running; those behind them did not begin.
    CHECK(ended[0].state == CALD_JOB_DONE);
    bool begun = true;
    for (int i = 0; i < 6; ++i) {
      Failure failure;
      const int32_t state = state_of(jobs[i], &failure);
      CHECK(ended[i].times == 1 && ended[i].state == state);
      if (state != CALD_JOB_DONE) {
        begun = false;
        CHECK(state == CALD_JOB_FAILED && ended[i].status == CALD_EXECUTION_FAILED);
        CHECK(says(failure, "closed before"));
      }
      CHECK(begun == (state == CALD_JOB_DONE));
      cpu_table().job_destroy(jobs[i]);
    }
    caught = !begun;
  }
  CHECK(caught);
}
