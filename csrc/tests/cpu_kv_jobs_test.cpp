// SPDX-License-Identifier: Apache-2.0
// A KV operation of the cpu driver is a job: deadline, cancel, times, bytes, trace, one completion.
#include <atomic>

#include "check.h"
#include "cpu_kv_world.h"

using namespace calrt::testing;

namespace {

struct Ended {
  std::atomic<int> times{0};
  cald_completion last{};
  static void tell(void* user, const cald_completion* completion) {
    static_cast<Ended*>(user)->last = *completion;
    static_cast<Ended*>(user)->times += 1;
  }
};

}  // namespace

TEST(a_kv_operation_is_a_job) {
  KvWorld world({2, 8, CALD_BF16, CALD_ROPE_INTERLEAVED, 1, ""}, 100);
  KvClient& kv = world.kv;
  kv.room(100 * kv.info.bytes_per_cell);
  CHECK(cpu_table().trace_start(world.device.device, 64, nullptr) == CALD_OK);
  const struct {
    KvAsk ask;
    const char* name;
    uint64_t in, out;
  } cases[] = {{{CALD_KV_CLEAR, 0, 0, 9}, "kv clear", 0, 0},
               {{CALD_KV_LANE_COPY, 0, 0, 9, 1}, "kv lane_copy", 0, 0},
               {{CALD_KV_RANGE_COPY, 0, 1, 9, 1, 2}, "kv range_copy", 0, 0},
               {{CALD_KV_ROTATE, 0, 0, 9, 0, 0, 3}, "kv rotate", 0, 0},
               {{CALD_KV_READ, 0, 0, 9}, "kv read", 0, 9 * 128},
               {{CALD_KV_WRITE, 0, 0, 9}, "kv write", 9 * 128, 0}};
  uint64_t seq = 40;
  for (const auto& c : cases) {
    Ended ended;
    cald_kv_desc desc = kv.desc(c.ask);
    desc.job_seq = ++seq;
    desc.on_complete = Ended::tell;
    desc.user = &ended;
    cald_job* job = nullptr;
    CHECK(cpu_table().kv_submit(world.device.session, &desc, &job, nullptr) == CALD_OK);
    CHECK(cpu_table().job_wait(job, CALD_NO_DEADLINE, nullptr) == CALD_OK);
    CHECK(ended.times == 1 && ended.last.state == CALD_JOB_DONE && ended.last.job_seq == seq);
    CHECK(ended.last.bytes_in == c.in && ended.last.bytes_out == c.out);
    cald_timing timing{};
    timing.struct_size = sizeof timing;
    CHECK(cpu_table().job_timing(job, &timing, nullptr) == CALD_OK && timing.submitted_ns > 0);
    CHECK((timing.h2d_ns > 0) == (c.in > 0) && (timing.d2h_ns > 0) == (c.out > 0));
    CHECK((timing.infer_ns > 0) == (c.in + c.out == 0));
    CHECK(cpu_table().job_cancel(job, nullptr) == CALD_OK);
    cpu_table().job_destroy(job);
    if (c.out > 0) {
      cald_buffer_state state{};
      state.struct_size = sizeof state;
      CHECK(cpu_table().buffer_state(desc.buffer, &state, nullptr) == CALD_OK);
      CHECK(state.state == CALD_BUFFER_READY && state.job_seq == seq);
    }
    cald_trace_event events[8];
    uint32_t count = 8;
    CHECK(cpu_table().trace_drain(world.device.device, events, &count, nullptr, nullptr) ==
          CALD_OK);
    CHECK(count == 2 && std::string(events[0].name) == c.name && events[1].id == seq);
    CHECK(events[0].phase == CALD_TRACE_BEGIN && events[1].phase == CALD_TRACE_END);
  }
  Ended late;
  cald_kv_desc desc = kv.desc({CALD_KV_CLEAR, 0, 0, 9});
  desc.deadline_ns = 1;
  desc.on_complete = Ended::tell;
  desc.user = &late;
  const LaneImage before = kv.read(0);
  CHECK(kv.run_desc(desc) == CALD_EXECUTION_FAILED);
  CHECK(late.times == 1 && late.last.state == CALD_JOB_FAILED && kv.read(0) == before);
}

// A cancelled one ends once, and what is not its target is as it was.
TEST(cancel_ends_it_once) {
  KvWorld world({4, 128, CALD_BF16, CALD_ROPE_HALF, 2, ""}, 8192);
  KvClient& kv = world.kv;
  std::mt19937 random(3);
  const LaneImage image = some_cells(kv, kv.info.cells, random);
  CHECK(kv.write(0, 0, image) == CALD_OK);
  int cancelled = 0;
  for (int attempt = 0; attempt < 20; ++attempt) {
    Ended ended[2];
    cald_job* jobs[2] = {};
    for (int i = 0; i < 2; ++i) {
      cald_kv_desc desc = kv.desc({CALD_KV_LANE_COPY, 0, 0, 8192, 1});
      desc.on_complete = Ended::tell;
      desc.user = &ended[i];
      CHECK(cpu_table().kv_submit(world.device.session, &desc, &jobs[i], nullptr) == CALD_OK);
    }
    for (cald_job* job : jobs) CHECK(cpu_table().job_cancel(job, nullptr) == CALD_OK);
    for (int i = 0; i < 2; ++i) {
      CHECK(cpu_table().job_wait(jobs[i], CALD_NO_DEADLINE, nullptr) == CALD_OK);
      CHECK(ended[i].times == 1);
      if (ended[i].last.state == CALD_JOB_CANCELLED) ++cancelled;
      CHECK((ended[i].last.state == CALD_JOB_CANCELLED) ==
            (ended[i].last.status == CALD_CANCELLED));
      cpu_table().job_destroy(jobs[i]);
    }
  }
  CHECK(cancelled > 0);
  CHECK(kv.read(0) == image);
  CHECK(kv.run({CALD_KV_LANE_COPY, 0, 0, 8192, 1}) == CALD_OK && kv.read(1) == image);
}
