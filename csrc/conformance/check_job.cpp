// SPDX-License-Identifier: Apache-2.0
// JOB-01 and JOB-10 to JOB-19: what becomes of a job, and what is told of it.
#include <unistd.h>

#include <algorithm>

#include "calrt/driver_host.h"
#include "conformance/player.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;
constexpr uint64_t kSequences[] = {
    1, 7, uint64_t{5} << 32 | 9, uint64_t{6} << 32 | 9, UINT64_MAX, uint64_t{1} << 63};

void needs_callback(Kit& kit) {
  if (!kit.calls_back()) skip("the device tells nothing: completion is WAIT");
}

// A while in which a device that does something it should not would do it.
void let_pass(Kit& kit, uint32_t ms) {
  if (kit.polled())
    for (uint32_t i = 0; i < ms; ++i) kit.turn();
  else
    usleep(ms * 1000);
}

CONFORMANCE_CHECK("JOB-01", "") {
  Player player(kit);
  for (uint32_t g = 0; g < kit.model_info().n_graphs; ++g) {
    player.fill(player.call(g));
    player.call(g).run();
  }
}

CONFORMANCE_CHECK("JOB-10", "") {
  needs_callback(kit);
  Player player(kit);
  GraphCall& call = player.call(0);
  for (const uint64_t job_seq : kSequences) {
    player.fill(call);
    Job job = call.submit({job_seq});
    job.expect(CALD_JOB_DONE, "a job");
    const uint64_t told = job.told().last().job_seq;
    REQUIRE(told == job_seq, "job_seq %#llx came back as %#llx", static_cast<ull>(job_seq),
            static_cast<ull>(told));
  }
}

CONFORMANCE_CHECK("JOB-11", "") {
  needs_callback(kit);
  Player player(kit);
  GraphCall& call = player.call(0);
  std::vector<const Told*> told;
  for (uint64_t job_seq = 1; job_seq <= 8; ++job_seq) {
    player.fill(call);
    Job job = call.submit({job_seq});
    job.expect(CALD_JOB_DONE, "a job");
    told.push_back(&job.told());
    int32_t state = 0;
    (void)kit.table().job_query(job.handle(), &state, nullptr);
    if (job_seq % 2 == 0) job.forget();
  }
  let_pass(kit, 5);
  for (size_t i = 0; i < told.size(); ++i)
    REQUIRE(told[i]->count() == 1, "on_complete of job %zu came %zu times", i + 1,
            told[i]->count());
}

CONFORMANCE_CHECK("JOB-12", "") {
  needs_callback(kit);
  Player player(kit);
  GraphCall& call = player.call(player.all().back());
  for (uint64_t job_seq = 1; job_seq <= 24; ++job_seq) {
    player.fill(call);
    Job job = call.submit({job_seq});
    // No rest between the end and the look at it.
    while (job.state() < CALD_JOB_DONE)
      if (kit.polled()) kit.turn();
    REQUIRE(job.told().count() == 1,
            "job_query gave a terminal state while on_complete had come %zu times",
            job.told().count());
    job.forget();
    player.fill(call);
    Job waited = call.submit({100 + job_seq});
    waited.wait();
    REQUIRE(waited.told().count() == 1,
            "job_wait reported the end while on_complete had come %zu times",
            waited.told().count());
  }
}

CONFORMANCE_CHECK("JOB-13", "") {
  needs_callback(kit);
  Player player(kit);
  for (uint32_t g = 0; g < kit.model_info().n_graphs; ++g) {
    GraphCall& call = player.call(g);
    player.fill(call);
    uint64_t in = 0, out = 0;
    for (const cald_binding& binding : call.bindings())
      (binding.role < CALD_ROLE_LOGITS ? in : out) += binding.bytes;
    Job job = call.submit();
    job.expect(CALD_JOB_DONE, call.graph().name);
    const cald_completion told = job.told().last();
    REQUIRE(told.struct_size >= offsetof(cald_completion, bytes_in),
            "a completion of %u bytes, ABI 0.1 has %zu", told.struct_size,
            offsetof(cald_completion, bytes_in));
    if (told.status < 0 || told.status > 29)
      broken_rule("ERR-01", "a completion has the status %d", told.status);
    REQUIRE(told.state == CALD_JOB_DONE && told.status == CALD_OK,
            "a job that is DONE was told as state %d, status %d", told.state, told.status);
    if (told.struct_size < offsetof(cald_completion, native_code)) continue;
    REQUIRE(told.bytes_in == in || told.bytes_in == CALD_BYTES_UNKNOWN,
            "%s: %llu bytes in were told, %llu were bound", call.graph().name,
            static_cast<ull>(told.bytes_in), static_cast<ull>(in));
    REQUIRE(told.bytes_out == out || told.bytes_out == CALD_BYTES_UNKNOWN,
            "%s: %llu bytes out were told, %llu were bound", call.graph().name,
            static_cast<ull>(told.bytes_out), static_cast<ull>(out));
  }
}

CONFORMANCE_CHECK("JOB-14", "") {
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  JobAsk ask;
  ask.tell = false;
  Job job = call.submit(ask);
  job.expect(CALD_JOB_DONE, "a job without on_complete");
}

CONFORMANCE_CHECK("JOB-15", "") {
  Player player(kit);
  GraphCall& call = player.call(player.all().back());
  for (int round = 0; round < 8; ++round) {
    player.fill(call);
    Job job = call.submit();
    int32_t last = 0;
    const uint64_t give_up = monotonic_ns() + 10'000'000'000;
    while (last < CALD_JOB_DONE && monotonic_ns() < give_up) {
      const int32_t now = job.state();
      REQUIRE(now >= last, "a job went from state %d back to %d", last, now);
      last = now;
      if (kit.polled()) kit.turn();
    }
    job.wait();
    for (int again = 0; again < 3; ++again)
      REQUIRE(job.state() == CALD_JOB_DONE, "an ended job is in state %d", job.state());
  }
}

CONFORMANCE_CHECK("JOB-16", "") {
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  // An error that is NULL, and an error of a job that did not fail.
  Job job = call.submit();
  job.expect(CALD_JOB_DONE, "a job");
  int32_t state = 0;
  REQUIRE(kit.table().job_query(job.handle(), &state, nullptr) == CALD_OK && state == CALD_JOB_DONE,
          "job_query without an error struct gave state %d", state);
  // One that fails, as its deadline has passed: the query is OK, and says why.
  player.fill(call);
  JobAsk ask;
  ask.deadline_ns = 1;
  if (kit.virtual_clock()) kit.poll(1000);
  Job late = call.submit(ask);
  late.expect(CALD_JOB_FAILED, "a job whose deadline has passed");
  if (late.failure() < 0 || late.failure() > 29)
    broken_rule("ERR-01", "a failed job has the status %d", late.failure());
  REQUIRE(late.failure() != CALD_OK && !late.failure_text().empty(),
          "job_query of a failed job gives status %d and the text \"%s\"", late.failure(),
          late.failure_text().c_str());
  if (kit.calls_back())
    REQUIRE(late.told().last().status == late.failure(),
            "a failed job was told with status %d, and job_query says %d",
            late.told().last().status, late.failure());
}

CONFORMANCE_CHECK("JOB-17", "") {
  NEEDS_ENTRY(kit, buffer_state);
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  const auto stands = [&] {
    cald_buffer_state state{};
    state.struct_size = sizeof state;
    kit.ok("buffer_state", [&](cald_error* err) {
      return kit.table().buffer_state(call.buffer(CALD_ROLE_LOGITS).handle(), &state, err);
    });
    return state;
  };
  const uint64_t job_seq = uint64_t{3} << 40 | 77;
  {
    Job job = call.submit({job_seq});
    const cald_buffer_state meanwhile = stands();
    REQUIRE(job.ended() || (meanwhile.state != CALD_BUFFER_IDLE && meanwhile.job_seq == job_seq),
            "the output of a job that has not ended is in state %d, of job %llu", meanwhile.state,
            static_cast<ull>(meanwhile.job_seq));
    job.expect(CALD_JOB_DONE, "a job");
  }
  const cald_buffer_state after = stands();
  REQUIRE(after.state == CALD_BUFFER_READY && after.job_seq == job_seq,
          "the output of a job that is DONE is in state %d, of job %llu; READY (%d) of job %llu is "
          "due",
          after.state, static_cast<ull>(after.job_seq), CALD_BUFFER_READY,
          static_cast<ull>(job_seq));
  JobAsk ask{job_seq + 1, 1};
  if (kit.virtual_clock()) kit.poll(1000);
  Job late = call.submit(ask);
  late.expect(CALD_JOB_FAILED, "a job whose deadline has passed");
  const cald_buffer_state failed = stands();
  REQUIRE(failed.state != CALD_BUFFER_QUEUED && failed.state != CALD_BUFFER_BUSY,
          "the output of a job that has failed is in state %d", failed.state);
  REQUIRE(failed.state != CALD_BUFFER_READY || failed.job_seq == job_seq,
          "the output of a job that has failed is READY");
}

CONFORMANCE_CHECK("JOB-18", "") {
  if (kit.info().sessions < 2) skip("the device has one session");
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  cald_device* device = kit.device();
  (void)kit.session();
  cald_session* made = nullptr;
  kit.ok("session_open",
         [&](cald_error* err) { return kit.table().session_open(device, 1, &made, err); });
  REQUIRE(made != nullptr, "session_open answered OK and gave no handle");
  {
    const SessionHandle second({made, &kit.table()});
    call.run({42});
  }
  player.fill(call);
  call.run({43});
}

}  // namespace
}  // namespace calrt::conformance
