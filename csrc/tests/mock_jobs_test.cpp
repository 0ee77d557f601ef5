// SPDX-License-Identifier: Apache-2.0
// The mock's queue: virtual time to the nanosecond, deadlines, cancels, ends, and its two clocks.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "tests/mock_client.h"

using namespace calrt;
using namespace calrt::testing;

namespace {

const OpenOptions kVirtual = {{"clock", "virtual"}};

// A decode of B1 on tiny: three inputs of 4 bytes over 16 GB/s, a row of 512 F32 over 12 GB/s.
constexpr uint64_t kIn = 2'000 + 1, kTick = 100'000, kOut = 2'000 + 171;
static_assert((12 * 1000 + 15'999) / 16'000 == 1 && (2048 * 1000 + 11'999) / 12'000 == 171);
constexpr uint64_t kJob = kIn + kTick + kOut;

// Jobs of decode_b1 on one lane, submitted and moved by hand.
struct Rig {
  struct Told {
    uint64_t job_seq;
    int32_t state;
    cald_status status;
    uint64_t bytes_in, bytes_out;
  };

  const MockPackage package;
  MockDevice device;
  MockModel model;
  std::vector<cald_binding> bindings;

  explicit Rig(const OpenOptions& options = kVirtual, const char* preset = "",
               const Shape& shape = {}, const LoadArgs& args = {})
      : package(shape), device(preset, options), model(device, package, args) {
    bindings = model.decode_bindings(graph(), {{5, 0, 0}});
    device.session();
  }

  uint32_t graph() const { return model.graph("decode_b1"); }

  static void note(void* user, const cald_completion* completion) {
    auto* rig = static_cast<Rig*>(user);
    const std::lock_guard lock(rig->mutex_);
    rig->told_.push_back({completion->job_seq, completion->state, completion->status,
                          completion->bytes_in, completion->bytes_out});
  }
  std::vector<Told> told() {
    const std::lock_guard lock(mutex_);
    return told_;
  }

  cald_job* submit(uint64_t deadline_ns = CALD_NO_DEADLINE, cald_status expected = CALD_OK) {
    cald_job_desc desc = model.desc(graph(), bindings);
    desc.deadline_ns = deadline_ns;
    desc.on_complete = note;
    desc.user = this;
    cald_job* job = nullptr;
    CHECK(mock_table().submit(device.session(), &desc, &job, &model.failure.raw) == expected);
    return job;
  }
  uint64_t poll(uint64_t now_ns) {
    uint64_t next = 0;
    CHECK(mock_table().poll(device.session(), now_ns, &next, nullptr) == CALD_OK);
    return next;
  }
  int32_t state(cald_job* job) {
    int32_t state = 0;
    CHECK(mock_table().job_query(job, &state, &model.failure.raw) == CALD_OK);
    return state;
  }
  int32_t output_state() {
    cald_buffer_state state{};
    state.struct_size = sizeof state;
    cald_buffer* buffer = model.bind(graph(), CALD_ROLE_LOGITS, {}).buffer;
    CHECK(mock_table().buffer_state(buffer, &state, nullptr) == CALD_OK);
    return state.state;
  }
  cald_timing timing(cald_job* job) {
    cald_timing timing{};
    timing.struct_size = sizeof timing;
    CHECK(mock_table().job_timing(job, &timing, nullptr) == CALD_OK);
    return timing;
  }
  cald_status wait(cald_job* job, uint64_t ms) {
    return mock_table().job_wait(job, in_ms(ms), nullptr);
  }
  cald_status cancel(cald_job* job) { return mock_table().job_cancel(job, &model.failure.raw); }

 private:
  std::mutex mutex_;
  std::vector<Told> told_;
};

}  // namespace

// ---- virtual time -------------------------------------------------------------------------------

TEST(virtual_time_is_exact) {
  Rig rig;
  cald_job* first = rig.submit();
  CHECK(rig.state(first) == CALD_JOB_QUEUED && rig.output_state() == CALD_BUFFER_QUEUED);
  CHECK(rig.poll(0) == kJob);
  CHECK(rig.state(first) == CALD_JOB_RUNNING && rig.output_state() == CALD_BUFFER_BUSY);
  CHECK(rig.poll(kJob - 1) == kJob && rig.state(first) == CALD_JOB_RUNNING);
  CHECK(rig.wait(first, 60'000) == CALD_WAIT_TIMEOUT);  // at once: waiting moves no virtual time
  CHECK(rig.told().empty());
  CHECK(rig.poll(kJob) == CALD_NO_DEADLINE);
  CHECK(rig.state(first) == CALD_JOB_DONE && rig.output_state() == CALD_BUFFER_READY);
  CHECK(rig.wait(first, 0) == CALD_OK);
  CHECK(rig.told().size() == 1 && rig.told()[0].bytes_in == 12 && rig.told()[0].bytes_out == 2048);

  // Two at once: the second one begins when the first one ends, however late the poll comes.
  cald_job* second = rig.submit();
  cald_job* third = rig.submit();
  CHECK(rig.poll(kJob) == 2 * kJob);
  CHECK(rig.poll(10 * kJob) == CALD_NO_DEADLINE);
  const cald_timing timing = rig.timing(third);
  CHECK(timing.submitted_ns == kJob && timing.queue_ns == kJob);
  CHECK(timing.h2d_ns == kIn && timing.infer_ns == kTick && timing.d2h_ns == kOut);
  CHECK(rig.device.counter("busy_ns") == 3 * kJob);
  for (cald_job* job : {first, second, third}) mock_table().job_destroy(job);
}

TEST(the_tables_of_the_preset_decide) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const auto took = [&](uint32_t graph, const std::vector<cald_binding>& bindings) {
    const uint64_t before = device.counter("busy_ns");
    CHECK(model.run(graph, bindings) == CALD_OK);
    return device.counter("busy_ns") - before;
  };
  const auto in = [](uint64_t bytes) { return 2'000 + (bytes * 1000 + 15'999) / 16'000; };
  const auto out = [](uint64_t bytes) { return 2'000 + (bytes * 1000 + 11'999) / 12'000; };
  const std::pair<uint32_t, uint64_t> ticks[] = {
      {1, 100'000}, {4, 120'000}, {8, 150'000}, {16, 200'000}};
  for (const auto& [batch, ns] : ticks) {
    const uint32_t g = model.graph("decode_b" + std::to_string(batch));
    CHECK(took(g, model.decode_bindings(g, {{5, 0, 0}})) ==
          in(12 * batch) + ns + out(2048 * batch));
  }
  const uint32_t g = model.graph("prefill_t64");
  CHECK(took(g, model.prefill_bindings(g, Tokens(64, 3), 0, 0, {63})) ==
        in(2 * 256 + 8 + 4) + 300'000 + out(64 * 2048));
  // Inside the device there and back; out of it, over the link.
  const auto took_kv = [&](cald_kv_desc desc) {
    const uint64_t before = device.counter("busy_ns");
    CHECK(model.run(desc) == CALD_OK);
    return device.counter("busy_ns") - before;
  };
  cald_kv_desc copy = model.kv_desc(CALD_KV_LANE_COPY, 0, 0, 500);
  copy.to_lane = 1;
  CHECK(took_kv(copy) == 1'000 + 2 * 500 * 8 * 1000 / 100'000);
  CHECK(took_kv(model.kv_desc(CALD_KV_ROTATE, 0, 0, 500)) == 1'000 + 500 * 8 * 1000 / 100'000);
  const uint64_t before = device.counter("busy_ns");
  model.read(0, 500);
  CHECK(device.counter("busy_ns") - before == out(500 * 8));
}

TEST(what_has_not_begun_by_its_deadline_does_not_begin) {
  Rig rig;
  cald_job* first = rig.submit();
  cald_job* in_time = rig.submit(kJob + 1);
  cald_job* late = rig.submit(2 * kJob);  // the moment in which it could begin
  CHECK(rig.poll(0) == kJob);
  CHECK(rig.poll(kJob) == 2 * kJob && rig.state(in_time) == CALD_JOB_RUNNING);
  const uint64_t begun = rig.device.counter("jobs");
  CHECK(rig.poll(2 * kJob) == CALD_NO_DEADLINE);
  CHECK(rig.state(in_time) == CALD_JOB_DONE && rig.state(late) == CALD_JOB_FAILED);
  CHECK(rig.model.failure.raw.code == CALD_EXECUTION_FAILED && rig.model.failure.says("deadline"));
  CHECK(rig.device.counter("jobs") == begun && rig.told().size() == 3);
  // One that runs past its deadline goes on; one behind it ends in the queue at its own.
  cald_job* long_one = rig.submit(2 * kJob + 1);
  cald_job* waiting = rig.submit(2 * kJob + 5);
  CHECK(rig.poll(2 * kJob) == 2 * kJob + 5 && rig.poll(2 * kJob + 5) == 3 * kJob);
  CHECK(rig.state(waiting) == CALD_JOB_FAILED && rig.state(long_one) == CALD_JOB_RUNNING);
  rig.poll(3 * kJob);
  CHECK(rig.state(long_one) == CALD_JOB_DONE);
  for (cald_job* job : {first, in_time, late, long_one, waiting}) mock_table().job_destroy(job);
}

TEST(a_full_queue_refuses_and_recovers) {
  Rig rig;
  std::vector<cald_job*> jobs;
  for (uint32_t i = 0; i < 1 + rig.device.info().queue; ++i) jobs.push_back(rig.submit());
  CHECK(rig.submit(CALD_NO_DEADLINE, CALD_QUEUE_FULL) == nullptr);
  rig.poll(0);
  CHECK(rig.submit(CALD_NO_DEADLINE, CALD_QUEUE_FULL) == nullptr);
  rig.poll(kJob);
  jobs.push_back(rig.submit());
  rig.poll(100 * kJob);
  CHECK(rig.told().size() == jobs.size());  // a refused job has no completion
  for (size_t i = 0; i < jobs.size(); ++i) {
    CHECK(rig.told()[i].state == CALD_JOB_DONE);
    mock_table().job_destroy(jobs[i]);
  }
}

TEST(a_queued_job_is_cancelled_at_once_a_running_one_at_its_end) {
  Rig rig;
  cald_job* running = rig.submit();
  cald_job* queued = rig.submit();
  rig.poll(0);
  CHECK(rig.cancel(queued) == CALD_OK && rig.state(queued) == CALD_JOB_CANCELLED);
  CHECK(rig.model.failure.raw.code == CALD_CANCELLED);
  CHECK(rig.cancel(running) == CALD_OK && rig.state(running) == CALD_JOB_RUNNING);
  CHECK(rig.told().size() == 1);
  rig.poll(kJob);
  CHECK(rig.state(running) == CALD_JOB_CANCELLED && rig.told().size() == 2);
  CHECK(rig.told()[1].bytes_out == 0 && rig.output_state() == CALD_BUFFER_IDLE);
  CHECK(rig.device.counter("cells_written") == 0);
  CHECK(rig.cancel(running) == CALD_OK && rig.told().size() == 2);
  for (cald_job* job : {running, queued}) mock_table().job_destroy(job);
}

TEST(inputs_are_those_of_the_begin) {
  Rig rig;
  auto* token = static_cast<int32_t*>(MockModel::mapped(rig.bindings[0]));
  cald_job* job = rig.submit();
  rig.poll(0);
  *token = 6;  // too late for this job
  rig.poll(kJob);
  const auto cells = rig.model.read(0, 1);
  cald_job* spoilt = rig.submit();
  *token = 512;
  rig.poll(100 * kJob);
  CHECK(rig.state(spoilt) == CALD_JOB_FAILED && rig.model.failure.raw.code == CALD_OUT_OF_RANGE);
  CHECK(rig.model.read(0, 1) == cells);
  *token = 5;
  CHECK(rig.model.run(rig.graph(), rig.bindings) == CALD_OK && rig.model.read(0, 1) == cells);
  for (cald_job* each : {job, spoilt}) mock_table().job_destroy(each);
}

// ---- ends of sessions ---------------------------------------------------------------------------

TEST(close_ends_the_running_job_and_fails_the_queued) {
  for (const OpenOptions& options : {kVirtual, OpenOptions{{"completion", "poll"}},
                                     OpenOptions{{"speed", "0.01"}}, OpenOptions{}}) {
    Rig rig(options);
    std::vector<cald_job*> jobs = {rig.submit(), rig.submit(), rig.submit()};
    if (rig.device.polled()) {
      rig.poll(rig.device.info().clock == CALD_CLOCK_VIRTUAL ? 0 : in_ms(0));
    } else {
      const uint64_t until = in_ms(30'000);
      while (rig.state(jobs[0]) == CALD_JOB_QUEUED && host_now_ns(nullptr) < until)
        std::this_thread::yield();
    }
    rig.device.close_session();
    CHECK(rig.told().size() == 3);
    CHECK(rig.state(jobs[0]) == CALD_JOB_DONE);
    // On a clock that goes by itself the others may have had their turn.
    const bool by_hand = rig.device.info().clock == CALD_CLOCK_VIRTUAL;
    for (size_t i = 1; i < 3; ++i) {
      const int32_t state = rig.state(jobs[i]);
      CHECK(state == CALD_JOB_FAILED || (!by_hand && state == CALD_JOB_DONE));
      CHECK(state != CALD_JOB_FAILED || rig.model.failure.says("closed"));
    }
    for (cald_job* job : jobs) {
      CHECK(rig.cancel(job) == CALD_OK && rig.wait(job, 0) == CALD_OK);
      mock_table().job_destroy(job);
    }
    rig.device.session();  // and again
  }
}

// ---- the real clock -----------------------------------------------------------------------------

TEST(a_thread_moves_the_real_clock) {
  for (const char* speed : {"0", "1", "1000"}) {
    Rig rig(OpenOptions{{"speed", speed}});
    for (uint32_t i = 0; i < 50; ++i) {
      cald_job* job = rig.submit();
      CHECK(rig.wait(job, 60'000) == CALD_OK);
      CHECK(rig.told().size() == i + 1);  // told before the wait ends
      CHECK(rig.state(job) == CALD_JOB_DONE && rig.output_state() == CALD_BUFFER_READY);
      mock_table().job_destroy(job);
    }
    uint64_t next = 0;
    CHECK(mock_table().poll(rig.device.session(), 0, &next, nullptr) == CALD_UNSUPPORTED);
  }
}

TEST(a_job_on_the_real_clock_takes_no_less_than_its_time) {
  Rig rig(OpenOptions{{"speed", "0.01"}});
  const uint64_t before = host_now_ns(nullptr);
  cald_job* job = rig.submit();
  CHECK(rig.wait(job, 1) == CALD_WAIT_TIMEOUT);
  CHECK(rig.wait(job, 60'000) == CALD_OK);
  CHECK(host_now_ns(nullptr) - before >= 100 * kJob);
  CHECK(rig.timing(job).infer_ns == 100 * kTick);
  mock_table().job_destroy(job);
}

TEST(bare_is_waited_for_and_cannot_cancel) {
  const Shape shape{.profiles = {1},
                    .chunks = {64},
                    .decode_map = CALD_LANE_MAP_NONE,
                    .prefill_map = CALD_LANE_MAP_NONE,
                    .dtype = CALD_BF16,
                    .tile = 16,
                    .logit_rows = false};
  Rig rig({{"speed", "1000"}}, "bare", shape,
          {.lanes = 1, .logits = CALD_BF16, .placement = "any"});
  CHECK(rig.device.info().completion == CALD_COMPLETION_WAIT);
  cald_job* job = rig.submit();
  CHECK(rig.cancel(job) == CALD_UNSUPPORTED && rig.wait(job, 60'000) == CALD_OK);
  CHECK(rig.state(job) == CALD_JOB_DONE && rig.told().empty());
  mock_table().job_destroy(job);
  for (const char* name : {"cancel", "lane_copy", "range_copy", "kv_read", "kv_write", "k_rotate",
                           "kv_clear", "completion_callback", "lane_map_any"})
    CHECK(rig.device.cap(name) == 0);
  CHECK(rig.device.cap("batch") == 1 && rig.device.cap("completion_wait") == 1);
  CHECK(rig.model.run(rig.model.kv_desc(CALD_KV_CLEAR, 0, 0, 1)) == CALD_UNSUPPORTED);
  CHECK(rig.model.prefill(64, Tokens(3, 9), 0, 0)[0] ==
        rig.model.prefill(64, Tokens(3, 9), 0, 0)[0]);
}

TEST(submits_cancels_and_waits_from_many_threads) {
  Rig rig(OpenOptions{{"speed", "100"}});
  std::atomic<uint32_t> accepted{0};
  std::mutex serial;  // calls on a session come one at a time; those on jobs need not
  const auto client = [&](uint32_t id) {
    for (uint32_t i = 0; i < 200; ++i) {
      cald_job_desc desc{};
      desc.struct_size = sizeof desc;
      desc.graph = rig.graph();
      desc.model = rig.model.model;
      desc.n_bindings = static_cast<uint32_t>(rig.bindings.size());
      desc.bindings = rig.bindings.data();
      desc.job_seq = 1 + id * 1000 + i;
      desc.deadline_ns = in_ms(60'000);
      desc.on_complete = Rig::note;
      desc.user = &rig;
      cald_job* job = nullptr;
      {
        const std::lock_guard lock(serial);
        if (mock_table().submit(rig.device.session(), &desc, &job, nullptr) != CALD_OK) continue;
      }
      ++accepted;
      if (i % 3 == 0) mock_table().job_cancel(job, nullptr);
      CHECK(mock_table().job_wait(job, in_ms(60'000), nullptr) == CALD_OK);
      mock_table().job_destroy(job);
    }
  };
  std::vector<std::thread> threads;
  for (uint32_t id = 0; id < 4; ++id) threads.emplace_back(client, id);
  for (std::thread& thread : threads) thread.join();
  auto told = rig.told();
  CHECK(told.size() == accepted && accepted > 0);
  std::sort(told.begin(), told.end(), [](auto& a, auto& b) { return a.job_seq < b.job_seq; });
  for (size_t i = 1; i < told.size(); ++i) CHECK(told[i].job_seq != told[i - 1].job_seq);
}

// ---- trace --------------------------------------------------------------------------------------

TEST(the_trace_has_every_stage_of_a_job) {
  Rig rig;
  CHECK(mock_table().trace_start(rig.device.device, 8, nullptr) == CALD_OK);
  cald_job* first = rig.submit();
  cald_job* second = rig.submit();
  rig.poll(10 * kJob);
  cald_trace_event events[16];
  uint32_t count = 16;
  cald_trace_info info{};
  info.struct_size = sizeof info;
  CHECK(mock_table().trace_drain(rig.device.device, events, &count, &info, nullptr) == CALD_OK);
  CHECK(count == 8 && info.dropped == 4);  // the second job's run and copy out did not fit
  const uint64_t at[] = {0, kIn, kIn, kIn + kTick, kIn + kTick, kJob, kJob, kJob + kIn};
  for (uint32_t i = 0; i < 8; ++i) {
    CHECK(events[i].t_ns == at[i] && events[i].id == (i < 6 ? 1u : 2u));
    CHECK(events[i].phase == (i % 2 == 0 ? CALD_TRACE_BEGIN : CALD_TRACE_END));
    CHECK(events[i].track == i / 2 % 3);
  }
  CHECK(std::string(events[2].name) == "decode");
  CHECK(info.device_ns == 10 * kJob && info.host_ns == info.device_ns && info.residual_ns == 0);
  for (cald_job* job : {first, second}) mock_table().job_destroy(job);
}

TEST(a_job_that_takes_no_time_is_traced_too) {
  Rig rig(OpenOptions{{"speed", "0"}});
  CHECK(mock_table().trace_start(rig.device.device, 8, nullptr) == CALD_OK);
  CHECK(rig.model.run(rig.graph(), rig.bindings) == CALD_OK);
  cald_trace_event events[8];
  uint32_t count = 8;
  CHECK(mock_table().trace_drain(rig.device.device, events, &count, nullptr, nullptr) == CALD_OK);
  CHECK(count == 2 && events[0].t_ns == events[1].t_ns && events[0].id == events[1].id);
  CHECK(events[0].phase == CALD_TRACE_BEGIN && events[1].phase == CALD_TRACE_END);
}

TEST(the_devices_clock_is_its_own) {
  Rig rig(OpenOptions{});
  cald_trace_info info{};
  info.struct_size = sizeof info;
  uint32_t count = 0;
  const uint64_t before = host_now_ns(nullptr);
  CHECK(mock_table().trace_drain(rig.device.device, nullptr, &count, &info, nullptr) == CALD_OK);
  const uint64_t after = host_now_ns(nullptr);
  CHECK(info.host_ns >= before && info.host_ns <= after && info.residual_ns <= after - before);
  CHECK(info.device_ns < info.host_ns);
}
