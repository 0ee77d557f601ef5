// SPDX-License-Identifier: Apache-2.0
// TIME: deadlines, timings, and waiting.
#include <algorithm>

#include "calrt/driver_host.h"
#include "conformance/queue_fill.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;

// A time of the device's clock that has passed.
uint64_t past(Kit& kit) {
  (void)kit.session();
  if (kit.virtual_clock()) kit.poll(kit.now_ns() + 1000);
  return kit.now_ns();
}

void expect_late(Kit& kit, Job& job, GraphCall& call) {
  job.expect(CALD_JOB_FAILED, "a job whose deadline had passed");
  REQUIRE(job.failure() == CALD_EXECUTION_FAILED,
          "a job whose deadline had passed failed with %d, not EXECUTION_FAILED (%d)",
          job.failure(), CALD_EXECUTION_FAILED);
  if (kit.calls_back())
    REQUIRE(job.told().last().status == CALD_EXECUTION_FAILED &&
                job.told().last().state == CALD_JOB_FAILED,
            "a job whose deadline had passed was told as state %d, status %d",
            job.told().last().state, job.told().last().status);
  const Bytes out = call.buffer(CALD_ROLE_LOGITS).read();
  REQUIRE(std::all_of(out.begin(), out.end(), [](uint8_t byte) { return byte == 0x5A; }),
          "a job whose deadline had passed has written its output");
}

CONFORMANCE_CHECK("TIME-01", "") {
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    player.fill(call);
    call.buffer(CALD_ROLE_LOGITS).fill(0x5A);
    for (const uint64_t deadline : {past(kit), uint64_t{1}}) {
      Job job = call.submit({7, deadline});
      expect_late(kit, job, call);
    }
  }
}

CONFORMANCE_CHECK("TIME-01", "kv") {
  Player player(kit);
  needs_results(kit, player);
  const uint32_t graph = player.stepper(0);
  const Tokens prompt = player.prompt(3, 8);
  const auto next = static_cast<int32_t>(prompt.size());
  player.feed(graph, 0, prompt);
  const Bytes before = player.step(0, 1, next);
  GraphCall& call = player.call(graph);
  player.fill(call, 0, 99);  // another token for cell 0
  call.buffer(CALD_ROLE_LOGITS).fill(0x5A);
  Job job = call.submit({7, past(kit)});
  expect_late(kit, job, call);
  REQUIRE(player.step(0, 1, next) == before,
          "a job whose deadline had passed has written to its lane");
}

CONFORMANCE_CHECK("TIME-02", "") {
  QueueFill fill(kit);
  if (kit.info().depth + kit.info().queue < 3) skip("fewer than 3 jobs fit into the queue");
  (void)kit.session();
  fill.prepare(3);
  REQUIRE(fill.add({1}) == CALD_OK, "submit: %s", kit.message().c_str());
  REQUIRE(fill.add({2, kit.now_ns() + 1000}) == CALD_OK, "submit: %s", kit.message().c_str());
  REQUIRE(fill.add({3}) == CALD_OK, "submit: %s", kit.message().c_str());
  fill.wait_all();
  std::vector<Job>& jobs = fill.jobs();
  if (jobs[1].state() == CALD_JOB_DONE && !kit.virtual_clock())
    skip("jobs begin before a deadline of a microsecond");
  expect_late(kit, jobs[1], fill.call(1));
  for (const size_t i : {0, 2})
    REQUIRE(jobs[i].state() == CALD_JOB_DONE,
            "job %zu ended in state %d, as the deadline of another passed", i + 1, jobs[i].state());
}

CONFORMANCE_CHECK("TIME-03", "") {
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    const uint64_t far = kit.now_ns() + (uint64_t{1} << 40);
    for (const uint64_t deadline : {CALD_NO_DEADLINE, CALD_NO_DEADLINE - 1, far}) {
      player.fill(player.call(graph));
      player.call(graph).run({5, deadline});
    }
  }
}

CONFORMANCE_CHECK("TIME-04", "") {
  NEEDS_ENTRY(kit, job_timing);
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    player.fill(player.call(graph));
    const uint64_t before = kit.now_ns();
    Job job = player.call(graph).submit();
    const uint64_t submitted = kit.now_ns();
    job.expect(CALD_JOB_DONE, "a job");
    const uint64_t after = kit.now_ns();
    cald_timing first{};
    for (int look = 0; look < 3; ++look) {
      cald_timing timing{};
      timing.struct_size = sizeof timing;
      kit.ok("job_timing",
             [&](cald_error* err) { return kit.table().job_timing(job.handle(), &timing, err); });
      if (look == 0) first = timing;
      REQUIRE(std::memcmp(&first, &timing, sizeof timing) == 0,
              "the timings of an ended job change");
    }
    REQUIRE(first.submitted_ns >= before && first.submitted_ns <= submitted,
            "submitted at %llu, between %llu and %llu is right",
            static_cast<ull>(first.submitted_ns), static_cast<ull>(before),
            static_cast<ull>(submitted));
    const uint64_t spent = first.queue_ns + first.h2d_ns + first.infer_ns + first.d2h_ns;
    const uint64_t most = after - first.submitted_ns;
    for (const uint64_t one : {first.queue_ns, first.h2d_ns, first.infer_ns, first.d2h_ns, spent})
      REQUIRE(one <= most,
              "%llu ns were spent within %llu ns (queue %llu, h2d %llu, infer %llu, "
              "d2h %llu)",
              static_cast<ull>(one), static_cast<ull>(most), static_cast<ull>(first.queue_ns),
              static_cast<ull>(first.h2d_ns), static_cast<ull>(first.infer_ns),
              static_cast<ull>(first.d2h_ns));
  }
}

cald_status wait_until(Kit& kit, Job& job, uint64_t deadline) {
  return kit.call("job_wait", [&](cald_error* err) {
    return kit.table().job_wait(job.handle(), deadline, err);
  });
}

CONFORMANCE_CHECK("TIME-05", "") {
  QueueFill fill(kit);
  fill.add_all(std::min(kit.info().depth + kit.info().queue, 4u));
  for (Job& job : fill.jobs()) {
    for (const uint64_t deadline : {uint64_t{0}, uint64_t{1}, past(kit)}) {
      const bool had_ended = job.ended();
      const cald_status status = wait_until(kit, job, deadline);
      REQUIRE(status == CALD_OK || status == CALD_WAIT_TIMEOUT,
              "job_wait until a time that has passed was answered %d", status);
      REQUIRE(status == CALD_OK || !had_ended, "job_wait of an ended job was answered %d", status);
      REQUIRE(status != CALD_OK || job.ended(), "job_wait was OK, and the job is in state %d",
              job.state());
    }
  }
  fill.wait_all();
  for (Job& job : fill.jobs()) {
    REQUIRE(wait_until(kit, job, 0) == CALD_OK, "job_wait of an ended job is not OK");
    REQUIRE(job.state() == CALD_JOB_DONE, "a job that was waited for ended in state %d",
            job.state());
  }
}

CONFORMANCE_CHECK("TIME-06", "") {
  if (kit.virtual_clock()) skip("the clock is virtual: it does not pass while one waits");
  bool timed_out = false;
  for (int attempt = 0; attempt < 5 && !timed_out; ++attempt) {
    QueueFill fill(kit);
    fill.add_all(kit.info().depth + kit.info().queue);
    Job& last = fill.jobs().back();
    const uint64_t deadline = monotonic_ns() + 100'000;
    const cald_status status = wait_until(kit, last, deadline);
    const uint64_t now = monotonic_ns();
    REQUIRE(status == CALD_OK || status == CALD_WAIT_TIMEOUT, "job_wait was answered %d", status);
    if (status == CALD_WAIT_TIMEOUT) {
      timed_out = true;
      REQUIRE(now >= deadline, "job_wait was WAIT_TIMEOUT %llu ns before its deadline",
              static_cast<ull>(deadline - now));
    }
    fill.wait_all();
    for (Job& job : fill.jobs())
      REQUIRE(job.state() == CALD_JOB_DONE,
              "job %llu ended in state %d, though only a wait had timed out",
              static_cast<ull>(job.job_seq()), job.state());
    if (kit.calls_back())
      REQUIRE(last.told().count() == 1, "on_complete of a job that was waited for came %zu times",
              last.told().count());
  }
  if (!timed_out) skip("jobs end before a wait for them does");
}

}  // namespace
}  // namespace calrt::conformance
