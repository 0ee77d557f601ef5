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

// A model whose prefill takes long enough to be caught while it runs.
TinyShape slow_shape() {
  TinyShape shape;
  shape.layers = 24;
  shape.embed = 256;
  shape.ffn = 1024;
  return shape;
}

class SlowModel {
 public:
  SlowModel() : tiny_(slow_shape()), model_(device_, tiny_.package(), args()) {
    const std::vector<int32_t> tokens(512, 3), lane(1, 0), n_valid(1, 512);
    std::vector<int32_t> positions(512);
    for (int32_t i = 0; i < 512; ++i) positions[static_cast<size_t>(i)] = i;
    bindings_ = {model_.bind(CALD_ROLE_TOKENS, tokens.data(), 2048),
                 model_.bind(CALD_ROLE_POSITIONS, positions.data(), 2048),
                 model_.bind(CALD_ROLE_LANES, lane.data(), 4),
                 model_.bind(CALD_ROLE_N_VALID, n_valid.data(), 4),
                 model_.bind(CALD_ROLE_LOGITS, nullptr, model_.logit_bytes(1))};
  }
  cald_status submit(cald_job** job, Ended* ended, uint64_t seq = 1,
                     uint64_t deadline = CALD_NO_DEADLINE) {
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.graph = model_.graph("prefill_t512");
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
    args.cells = 512;
    args.profiles = {1};
    args.chunks = {512};
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
  CHECK(cpu_table().job_wait(job, test_now_ns(nullptr) + 60 * kSecond, nullptr) == CALD_OK);
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
  for (uint64_t seq = 0; seq < 40; ++seq) {
    ended.push_back(std::make_unique<Ended>());
    cald_job* job = nullptr;
    if (slow.submit(&job, ended.back().get(), seq) != CALD_OK) break;
    jobs.push_back(job);
  }
  CHECK(slow.failure.code == CALD_QUEUE_FULL);
  CHECK(says(slow.failure, "at most 8 may wait"));
  CHECK(jobs.size() >= 9 && jobs.size() < 40);
  CHECK(ended.back()->times == 0);
  // The last one is cancelled where it waits; nobody else is touched.
  CHECK(cpu_table().job_cancel(jobs.back(), nullptr) == CALD_OK);
  CHECK(cpu_table().job_wait(jobs.back(), 0, nullptr) == CALD_OK);
  CHECK(state_of(jobs.back()) == CALD_JOB_CANCELLED);
  for (size_t i = 0; i < jobs.size(); ++i) {
    wait_end(jobs[i]);
    CHECK(ended[i]->times == 1);
    CHECK(ended[i]->job_seq == i);
    const bool last = i + 1 == jobs.size();
    CHECK(ended[i]->state == (last ? CALD_JOB_CANCELLED : CALD_JOB_DONE));
    CHECK(ended[i]->status == (last ? CALD_CANCELLED : CALD_OK));
    cald_timing timing{};
    timing.struct_size = sizeof timing;
    CHECK(cpu_table().job_timing(jobs[i], &timing, nullptr) == CALD_OK);
    CHECK(timing.submitted_ns > 0 && (timing.infer_ns > 0) == !last);
    CHECK(cpu_table().job_cancel(jobs[i], nullptr) == CALD_OK);  // of an ended job: nothing
    cpu_table().job_destroy(jobs[i]);
  }
  cald_counter counters[3];
  uint32_t count = 3;
  cpu_table().device_counters(slow.device().device, counters, &count, nullptr);
  CHECK(count == 3 && counters[0].value == jobs.size() - 1);
  CHECK(counters[1].value == (jobs.size() - 1) * 512 && counters[2].value > 0);
}

TEST(wait_changes_nothing_and_cancel_ends_a_running_job) {
  SlowModel slow;
  Ended ended;
  cald_job* job = nullptr;
  CHECK(slow.submit(&job, &ended) == CALD_OK);
  Failure failure;
  CHECK(!failure.ok(cpu_table().job_wait(job, test_now_ns(nullptr) + 1000, &failure.raw)));
  CHECK(failure.code == CALD_WAIT_TIMEOUT);
  while (state_of(job) == CALD_JOB_QUEUED) std::this_thread::yield();
  CHECK(state_of(job) == CALD_JOB_RUNNING);
  CHECK(cpu_table().job_cancel(job, nullptr) == CALD_OK);
  wait_end(job);
  CHECK(state_of(job, &failure) == CALD_JOB_CANCELLED);
  CHECK(failure.code == CALD_CANCELLED && says(failure, "while it ran"));
  CHECK(ended.times == 1 && ended.state == CALD_JOB_CANCELLED);
  cpu_table().job_destroy(job);
}

TEST(a_job_late_in_the_queue_does_not_begin) {
  SlowModel slow;
  Ended first, second;
  cald_job *running = nullptr, *late = nullptr;
  CHECK(slow.submit(&running, &first, 1) == CALD_OK);
  CHECK(slow.submit(&late, &second, 2, test_now_ns(nullptr) + 1) == CALD_OK);
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
  SlowModel slow;
  Ended ended[3];
  cald_job* jobs[3] = {};
  for (uint64_t i = 0; i < 3; ++i) CHECK(slow.submit(&jobs[i], &ended[i], i) == CALD_OK);
  while (state_of(jobs[0]) == CALD_JOB_QUEUED) std::this_thread::yield();
  cpu_table().session_close(slow.device().session);
  slow.device().session = nullptr;
  CHECK(ended[0].times == 1 && ended[0].state == CALD_JOB_DONE);
  for (size_t i : {1u, 2u}) {
    CHECK(ended[i].times == 1 && ended[i].status == CALD_EXECUTION_FAILED);
    Failure failure;
    CHECK(state_of(jobs[i], &failure) == CALD_JOB_FAILED && says(failure, "closed before"));
  }
  for (cald_job* job : jobs) cpu_table().job_destroy(job);
}
