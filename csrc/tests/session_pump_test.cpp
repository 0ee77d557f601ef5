// SPDX-License-Identifier: Apache-2.0
// Devices that do not call back: waited for, polled, or moved in virtual time. The code above sees
// no difference.
#include "calrt/session_pump.h"

#include <algorithm>

#include "base/log.h"
#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using scripted::Ends;
using scripted::Script;

namespace {

void waited(Script& now) {
  now.completion = CALD_COMPLETION_WAIT;
  now.ends = Ends::HELD;
}
void polled(Script& now) {
  now.completion = CALD_COMPLETION_POLL;
  now.ends = Ends::POLLED;
}
void virtual_time(Script& now) {
  polled(now);
  now.clock = CALD_CLOCK_VIRTUAL;
  now.duration_ns = 5 * kMs;
}

}  // namespace

TEST(a_waited_job_ends_like_any_other) {
  Rig rig(waited);
  auto job = *rig.submit();
  CHECK(script().last.on_complete == nullptr);  // two ways to an end would be a race
  CHECK(job->wait(in(5)).error().code == Status::WAIT_TIMEOUT && rig.sink.told == 0);
  CHECK(script().finish(job->job_seq()));
  CHECK(job->wait(in(20'000)).ok() && job->state() == JobState::DONE);
  CHECK(rig.sink.told == 1 && job->timing().ok());
  CHECK(!rig.bindings->busy());
}

TEST(ends_out_of_order_are_seen) {
  Rig rig(waited);
  auto first = *rig.submit(), second = *rig.submit(rig.make(), 20'000);
  CHECK(script().finish(second->job_seq()));
  CHECK(second->wait(in(20'000)).ok() && !first->terminal());
  CHECK(script().finish(first->job_seq()) && first->wait(in(20'000)).ok());
}

// One look at the job per slice of 2 ms, though its driver answers each at once.
TEST(a_driver_that_does_not_wait_makes_no_thread_spin) {
  Rig rig(waited);
  const uint64_t begin = monotonic_ns();
  auto job = *rig.submit();
  CHECK(job->wait(in(50)).error().code == Status::WAIT_TIMEOUT);
  const auto looks = static_cast<uint64_t>(script().called("job_wait"));
  CHECK(looks >= 1 && looks <= (monotonic_ns() - begin) / (2 * kMs) + 2);
  CHECK(script().finish(job->job_seq()) && job->wait(in(20'000)).ok());
}

TEST(a_waited_failure_has_its_status_and_text) {
  Rig rig(waited);
  auto job = *rig.submit();
  script().set([](Script& now) {
    now.end_state = CALD_JOB_FAILED;
    now.end_status = CALD_CCU_FAULT;
    now.end_native = 9;
    now.end_text = "unit 1 stopped";
  });
  CHECK(script().finish(job->job_seq()));
  const Error error = job->wait(in(20'000)).error();
  CHECK(error.code == Status::CCU_FAULT && error.native_code == 9);
  CHECK(error.message.find("unit 1 stopped") != std::string::npos);
}

TEST(a_waited_failure_without_a_text_keeps_the_drivers_number) {
  Rig rig(waited);
  auto job = *rig.submit();
  script().set([](Script& now) {
    now.end_state = CALD_JOB_FAILED;
    now.end_status = CALD_CCU_FAULT;
    now.end_native = 9;
    now.told_flags = CALD_ERROR_UNMAPPED;
  });
  CHECK(script().finish(job->job_seq()));
  const Error error = job->wait(in(20'000)).error();
  CHECK(error.native_code == 9 && error.unmapped);
}

TEST(a_dropped_waited_job_is_given_back) {
  Rig rig(waited);
  const uint64_t tag = (*rig.submit())->job_seq();
  rig.drop();
  CHECK(script().living("session") == 1);
  CHECK(script().finish(tag));
  CHECK(eventually([] { return script().living() == 0; }) && rig.sink.told == 1);
}

TEST(a_wait_that_hangs_delays_neither_the_loss_nor_the_close) {
  Rig rig([](Script& now) {
    waited(now);
    now.wait_hangs = true;
  });
  auto job = *rig.submit(30);
  CHECK(job->wait(in(20'000)).error().code == Status::EXECUTION_FAILED);
  CHECK(job->state() == JobState::LOST && rig.bindings->loan_state() == LoanState::QUARANTINED);
  const uint64_t tag = job->job_seq();
  job.reset();
  rig.drop();  // returns: the thread in job_wait is nobody's business
  CHECK(script().finish(tag));
  CHECK(script().living("session") == 1);
  script().set([](Script& now) { now.wait_hangs = false; });
  CHECK(eventually([] { return script().living() == 0; }));
}

TEST(a_wait_that_fails_loses_the_job_and_keeps_its_buffers) {
  Rig rig(waited);
  rig.sink.awaits = true;
  script().set([](Script& now) {
    now.answers["job_wait"] = CALD_DEVICE_LOST;
    now.messages["job_wait"] = "no link";
  });
  auto job = *rig.submit();
  const Error error = job->wait(in(20'000)).error();
  CHECK(error.code == Status::DEVICE_LOST && job->state() == JobState::LOST);
  CHECK(error.message.find("no link") != std::string::npos && rig.bindings->busy());
  script().set([](Script& now) { now.answers.clear(); });
  CHECK(rig.sink.answers == 0 && script().finish(job->job_seq()));
  CHECK(eventually([&] { return rig.sink.answers == 1; }) && rig.sink.told == 1);
  CHECK(!rig.bindings->busy());
}

TEST(a_polled_job_ends_like_any_other) {
  Rig rig(polled);
  script().set([](Script& now) { now.duration_ns = 3 * kMs; });
  for (int i = 0; i < 3; ++i) CHECK((*rig.submit())->wait(in(20'000)).ok());
  CHECK(rig.sink.told == 3);
  const std::scoped_lock lock(script().mutex);
  CHECK(std::is_sorted(script().polls.begin(), script().polls.end()));
  CHECK(rig.session->poll(0).error().code == Status::UNSUPPORTED);  // calrt does it
}

// The device says when it has something to tell; until then its bus is left alone.
TEST(a_poll_is_made_when_the_device_asked_for_it) {
  Rig rig(polled);
  script().set([](Script& now) { now.duration_ns = 40 * kMs; });
  auto job = *rig.submit();
  CHECK(job->wait(in(20'000)).ok());
  const std::scoped_lock lock(script().mutex);
  CHECK(script().polls.size() >= 2);
  for (size_t i = 1; i < script().polls.size(); ++i)
    CHECK(script().polls[i] >= script().polls[0] + 40 * kMs);
}

TEST(a_poll_that_fails_is_tried_again) {
  set_log_sink([](const LogRecord&) {});
  {
    Rig rig(polled);
    script().set([](Script& now) { now.throws["poll"] = 1; });
    auto job = *rig.submit();
    CHECK(eventually([] { return script().called("poll") >= 2; }) && !job->terminal());
    script().set([](Script& now) { now.throws.clear(); });
    CHECK(job->wait(in(20'000)).ok());
  }
  set_log_sink(nullptr);
}

TEST(virtual_time_stands_still_until_it_is_polled) {
  Rig rig(virtual_time);
  CHECK(rig.session->virtual_clock() && rig.session->pump() == nullptr);
  CHECK(rig.session->now_ns() == 0);
  auto job = *rig.submit();
  CHECK(script().called("poll") == 0 && !job->terminal());
  CHECK(*rig.session->poll(100) == 100 + 5 * kMs);
  CHECK(*rig.session->poll(5 * kMs) == 100 + 5 * kMs && !job->terminal());
  CHECK(*rig.session->poll(50) == 100 + 5 * kMs && rig.session->now_ns() == 5 * kMs);  // not back
  CHECK(*rig.session->poll(100 + 5 * kMs) == CALD_NO_DEADLINE);
  CHECK(job->state() == JobState::DONE && rig.sink.told == 1);
}

TEST(waiting_moves_virtual_time) {
  Rig rig(virtual_time);
  auto job = *rig.submit();
  CHECK(job->wait(2 * kMs).error().code == Status::WAIT_TIMEOUT);
  CHECK(rig.session->now_ns() == 2 * kMs && !job->terminal());
  CHECK(job->wait(CALD_NO_DEADLINE).ok());
  CHECK(rig.session->now_ns() == 5 * kMs);
  CHECK(script().called("poll") == 4);  // at 0 and 2, at 2 again, at 5
}

TEST(a_job_is_lost_at_its_deadline_in_virtual_time) {
  Rig rig(virtual_time);
  script().set([](Script& now) { now.ends = Ends::HELD; });  // asks for no poll at all
  auto job = *rig.submit(7);
  auto other = *rig.submit(rig.make(), 9);
  CHECK(rig.session->poll(7 * kMs - 1).ok() && !job->terminal());
  CHECK(job->wait(CALD_NO_DEADLINE).error().code == Status::EXECUTION_FAILED);
  CHECK(job->state() == JobState::LOST && rig.session->now_ns() == 7 * kMs);
  CHECK(!other->terminal());
  CHECK(rig.session->poll(9 * kMs).ok() && other->state() == JobState::LOST);
  CHECK(script().finish(job->job_seq()) && script().finish(other->job_seq()));
  CHECK(Job::submit(rig.session, rig.model, rig.make(), 9 * kMs).error().code ==
        Status::WAIT_TIMEOUT);
}

TEST(no_job_outlasts_the_hard_timeout_whatever_its_deadline) {
  Rig rig([](Script& now) {
    virtual_time(now);
    now.duration_ns = 2 * kHardTimeoutNs;
  });
  auto job = *Job::submit(rig.session, rig.model, rig.bindings, CALD_NO_DEADLINE, &rig.sink);
  CHECK(rig.session->poll(kHardTimeoutNs - 1).ok() && !job->terminal());
  CHECK(rig.session->poll(kHardTimeoutNs).ok() && job->state() == JobState::LOST);
  CHECK(rig.bindings->busy());  // until the device answers
  CHECK(rig.session->poll(3 * kHardTimeoutNs).ok() && !rig.bindings->busy());
}
