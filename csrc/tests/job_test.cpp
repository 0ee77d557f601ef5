// SPDX-License-Identifier: Apache-2.0
// Jobs end exactly once, whatever the driver does; nothing is freed under it; no wait is endless.
#include "calrt/job.h"

#include <atomic>
#include <thread>

#include "calrt/driver_host.h"
#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using scripted::Ends;

TEST(completion_inside_submit) {
  Rig rig;
  auto job = *rig.submit();
  CHECK(job->state() == JobState::DONE && job->terminal());
  CHECK(rig.sink.told == 1 && rig.sink.job_seq == job->job_seq());
  CHECK(rig.sink.state == JobState::DONE && rig.sink.status == 0);
  CHECK(job->wait(0).ok() && job->wait(0).ok());  // each time it is asked
  CHECK(job->timing().ok() && job->timing()->infer_ns == 1234);
  CHECK(script().bound.size() == 4 && script().bound[0].role == CALD_ROLE_TOKENS);
  CHECK(rig.submit().ok());  // the bindings are free again
}

TEST(completion_from_a_driver_thread) {
  Rig rig;
  script().ends = Ends::THREAD;
  for (int i = 0; i < 300; ++i) {
    auto job = *rig.submit();
    CHECK(job->wait(in(20'000)).ok());
    CHECK(job->state() == JobState::DONE);
  }
  CHECK(rig.sink.told == 300);
}

TEST(job_seq_rises) {
  Rig rig;
  const uint64_t first = (*rig.submit())->job_seq();
  CHECK((*rig.submit())->job_seq() > first);
}

TEST(wait_timeout_changes_nothing) {
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *rig.submit();
  for (int i = 0; i < 3; ++i) {
    auto waited = job->wait(in(2));
    CHECK(!waited.ok() && waited.error().code == Status::WAIT_TIMEOUT);
    CHECK(job->state() == JobState::RUNNING && rig.sink.told == 0);
  }
  CHECK(job->timing().error().code == Status::INVALID_STATE);
  CHECK(script().finish(job->job_seq()));
  CHECK(job->wait(0).ok() && rig.sink.told == 1);
}

TEST(a_second_completion_is_counted_and_dropped) {
  Rig rig;
  script().completions = 3;
  const uint64_t before = stray_completions();
  auto job = *rig.submit();
  CHECK(job->wait(0).ok() && rig.sink.told == 1);
  CHECK(stray_completions() == before + 2);
}

TEST(a_completion_for_another_job_is_dropped) {
  Rig rig;
  script().wrong_seq = 1'000'000;
  const uint64_t before = stray_completions();
  auto job = *rig.submit(30);
  CHECK(stray_completions() == before + 1 && !job->terminal());
  CHECK(job->wait(in(20'000)).error().code == Status::EXECUTION_FAILED);  // lost at its deadline
  CHECK(job->state() == JobState::LOST);
  cald_completion right{};
  right.struct_size = sizeof right;
  right.state = CALD_JOB_DONE;
  right.job_seq = job->job_seq();
  right.bytes_in = right.bytes_out = CALD_BYTES_UNKNOWN;
  script().last.on_complete(script().last.user, &right);
  CHECK(stray_completions() == before + 1 && rig.sink.told == 1);
}

TEST(failure_has_the_drivers_own_text) {
  Rig rig;
  script().end_state = CALD_JOB_FAILED;
  script().end_status = CALD_CCU_FAULT;
  script().end_text = "unit 3 stopped";
  script().end_native = 77;
  auto job = *rig.submit();
  for (int i = 0; i < 2; ++i) {
    const Error error = job->wait(0).error();
    CHECK(error.code == Status::CCU_FAULT && error.native_code == 77);
    CHECK(error.message.find("unit 3 stopped") != std::string::npos);
    CHECK(error.message.find("job " + std::to_string(job->job_seq())) != std::string::npos);
  }
  CHECK(job->state() == JobState::FAILED && rig.sink.status == 25);
}

TEST(odd_completions_become_failures) {
  const struct {
    int32_t state, status;
    JobState end;
    Status code;
  } cases[] = {{CALD_JOB_FAILED, CALD_OK, JobState::FAILED, Status::INTERNAL},
               {CALD_JOB_FAILED, 30, JobState::FAILED, Status::INTERNAL},
               {CALD_JOB_FAILED, -1, JobState::FAILED, Status::INTERNAL},
               {CALD_JOB_FAILED, INT32_MIN, JobState::FAILED, Status::INTERNAL},
               {CALD_JOB_DONE, CALD_TRANSFER_FAULT, JobState::FAILED, Status::TRANSFER_FAULT},
               {CALD_JOB_CANCELLED, CALD_OK, JobState::CANCELLED, Status::CANCELLED},
               {CALD_JOB_CANCELLED, 99, JobState::CANCELLED, Status::CANCELLED},
               {77, CALD_OK, JobState::FAILED, Status::INTERNAL}};
  for (const auto& odd : cases) {
    Rig rig;
    script().end_state = odd.state;
    script().end_status = odd.status;
    auto job = *rig.submit();
    CHECK(job->state() == odd.end && rig.sink.told == 1);
    CHECK(job->wait(0).error().code == odd.code);
  }
}

TEST(a_lost_job_keeps_its_buffers_until_the_driver_answers) {
  Rig rig;
  script().ends = Ends::HELD;
  const uint64_t before = late_completions();
  auto job = *rig.submit(20);
  const uint64_t tag = job->job_seq();
  CHECK(eventually([&] { return rig.sink.told == 1; }));  // without anybody waiting
  CHECK(job->state() == JobState::LOST && rig.sink.state == JobState::LOST);
  CHECK(rig.sink.status == static_cast<int32_t>(Status::EXECUTION_FAILED));
  const Error error = job->wait(0).error();
  CHECK(error.code == Status::EXECUTION_FAILED && error.message.find("lost") != std::string::npos);
  CHECK(rig.submit().error().code == Status::INVALID_STATE);  // quarantined
  const int buffers = script().living("buffer");
  job.reset();
  rig.drop();
  CHECK(script().living("buffer") == buffers && script().living("device") == 1);
  CHECK(script().finish(tag));
  CHECK(late_completions() == before + 1 && rig.sink.told == 1);
  CHECK(eventually([] { return script().living() == 0; }));
}

TEST(bindings_of_a_lost_job_are_usable_after_the_late_answer) {
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *rig.submit(5);
  CHECK(!job->wait(in(20'000)).ok() && job->state() == JobState::LOST);
  CHECK(script().finish(job->job_seq()));
  CHECK(job->state() == JobState::LOST);  // the late answer is dropped
  script().ends = Ends::INSIDE;
  CHECK(rig.submit().ok());
}

TEST(wait_sees_the_jobs_own_deadline) {
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *rig.submit(30);
  const uint64_t begun = monotonic_ns();
  CHECK(job->wait(CALD_NO_DEADLINE).error().code == Status::EXECUTION_FAILED);
  CHECK(monotonic_ns() - begun >= 20 * kMs);
  CHECK(script().finish(job->job_seq()));
}

// The thread that watches deadlines may be held up by a driver: who waits sees them by himself.
TEST(wait_sees_a_deadline_that_nobody_else_watches) {
  Rig rig;
  script().ends = Ends::HELD;
  const uint64_t dropped = (*rig.submit())->job_seq();
  script().set([](scripted::Script& now) { now.wait_hangs = true; });
  CHECK(script().finish(dropped));
  CHECK(eventually([] { return script().called("job_wait") == 1; }));  // to give it back
  auto job = *rig.submit(30);
  CHECK(job->wait(in(20'000)).error().code == Status::EXECUTION_FAILED);
  CHECK(job->state() == JobState::LOST && rig.sink.told == 2);
  script().set([](scripted::Script& now) { now.wait_hangs = false; });
  CHECK(script().finish(job->job_seq()));
}

TEST(a_dropped_running_job_is_given_back_after_its_end) {
  Rig rig;
  script().ends = Ends::HELD;
  uint64_t tag = 0;
  tag = (*rig.submit())->job_seq();
  CHECK(script().living("job") == 1 && script().called("job_wait") == 0);
  CHECK(script().finish(tag));
  CHECK(rig.sink.told == 1);  // told although nobody holds the job
  CHECK(eventually([] { return script().living("job") == 0; }));
}

TEST(everything_dropped_while_running_is_closed_in_order_later) {
  Rig rig;
  script().ends = Ends::HELD;
  const uint64_t tag = (*rig.submit())->job_seq();
  rig.drop();
  CHECK(script().living("session") == 1 && script().living("model") == 1);
  CHECK(script().finish(tag));
  CHECK(eventually([] { return script().living() == 0; }));
  const std::scoped_lock lock(script().mutex);
  CHECK(script().order.front() == "job_destroy" && script().order.back() == "driver_close");
}

TEST(a_job_is_destroyed_only_when_the_driver_is_through_with_it) {
  Rig rig;
  script().settle_polls = 3;
  (*rig.submit()).reset();
  CHECK(script().living("job") == 1);  // not yet: job_wait says so
  CHECK(eventually([] { return script().living("job") == 0; }));
  CHECK(script().called("job_wait") >= 4);
}

TEST(dropped_jobs_of_several_sessions_keep_their_parents) {
  Rig first;
  script().ends = Ends::HELD;
  script().settle_polls = 2;
  std::vector<uint64_t> tags;
  for (int i = 0; i < 6; ++i) {
    auto device = *Device::open("scripted", {});
    auto model = *Model::load(device, PackageForTest::make("scripted", "test-class"), {});
    auto session = *device->session(static_cast<uint32_t>(i % 2));
    std::shared_ptr<BindingSet> set = *model->make_bindings(0);
    tags.push_back((*Job::submit(session, model, set, in(20'000)))->job_seq());
  }
  for (const uint64_t tag : tags) CHECK(script().finish(tag));
  CHECK(eventually([] { return script().living("device") == 1; }));  // Rig's own
}

TEST(queue_full_comes_at_once_and_returns_the_bindings) {
  Rig rig;
  script().ends = Ends::HELD;
  script().queue_limit = 2;
  auto one = *rig.submit(), two = *rig.submit(rig.make(), 20'000);
  auto set = rig.make();
  auto third = rig.submit(set, 20'000);
  CHECK(third.error().code == Status::QUEUE_FULL && rig.sink.told == 0);
  CHECK(script().finish(one->job_seq()));
  auto again = rig.submit(set, 20'000);
  CHECK(again.ok());
  CHECK(script().finish(two->job_seq()) && script().finish((*again)->job_seq()));
}

TEST(submits_that_have_no_meaning_are_refused) {
  Rig rig;
  CHECK(Job::submit(rig.session, rig.model, rig.bindings, 1).error().code == Status::WAIT_TIMEOUT);
  auto other = *Model::load(rig.device, PackageForTest::make("scripted", "test-class"), {});
  std::shared_ptr<BindingSet> foreign = *other->make_bindings(0);
  CHECK(rig.submit(foreign, 1000).error().code == Status::INVALID_HANDLE);
  auto device = *Device::open("scripted", {});
  auto session = *device->session();
  CHECK(Job::submit(session, rig.model, rig.bindings, in(1000)).error().code ==
        Status::INVALID_HANDLE);
  std::shared_ptr<BindingSet> prefill = *rig.model->make_bindings(2);
  prefill->bind_rows(17);
  CHECK(rig.submit(prefill, 1000).error().code == Status::SHAPE_MISMATCH);
  prefill->bind_rows(16);
  CHECK(rig.submit(prefill, 1000).ok());
  rig.model->close();
  CHECK(rig.submit().error().code == Status::MODEL_UNLOADED);
  CHECK(script().called("submit") == 1);
}

TEST(errors_and_throws_of_submit) {
  Rig rig;
  for (const int32_t code : {21, 25, 27, 30, -1, INT32_MIN}) {
    script().answers["submit"] = code;
    const Error error = rig.submit().error();
    const bool known = code > 0 && code < 30;
    CHECK(error.code == (known ? static_cast<Status>(code) : Status::INTERNAL));
    CHECK(known || error.native_code == code);
  }
  script().answers.clear();
  for (const int kind : {1, 2}) {
    script().throws["submit"] = kind;
    CHECK(rig.submit().error().code == Status::INTERNAL);
  }
  script().throws.clear();
  CHECK(rig.submit().ok() && rig.sink.told == 1);  // the refused ones told nobody
}

TEST(query_wait_cancel_and_timing_may_throw) {
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *rig.submit();
  for (const char* entry : {"job_query", "job_cancel", "job_timing"}) script().throws[entry] = 1;
  CHECK(job->state() == JobState::QUEUED);  // the driver would not say more
  CHECK(job->cancel().error().code == Status::INTERNAL);
  script().end_state = CALD_JOB_FAILED;
  script().end_status = CALD_DEVICE_LOST;
  CHECK(script().finish(job->job_seq()));
  CHECK(job->wait(0).error().code == Status::DEVICE_LOST);
  CHECK(job->timing().error().code == Status::INTERNAL);
}

TEST(cancel_ends_in_one_terminal_state) {
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *rig.submit();
  CHECK(job->cancel().ok());
  CHECK(job->state() == JobState::CANCELLED && rig.sink.told == 1);
  CHECK(job->wait(0).error().code == Status::CANCELLED);
  CHECK(job->cancel().ok() && rig.sink.told == 1);  // of an ended job: nothing
}

TEST(many_threads_submit_cancel_and_drop) {
  Rig rig;
  script().ends = Ends::THREAD;
  script().queue_limit = 1000;
  const uint64_t strays = stray_completions();
  std::atomic<int> submitted{0}, odd{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      auto set = rig.make();
      for (int i = 0; i < 200; ++i) {
        auto job = rig.submit(set, 20'000);
        if (!job.ok()) {
          set = rig.make();  // the last job of this set still runs
          continue;
        }
        ++submitted;
        if (i % 3 == 0) (void)(*job)->cancel();
        if (i % 3 == 1 && (*job)->wait(in(20'000)).ok() && !(*job)->terminal()) ++odd;
        if (i % 3 == t % 3) job->reset();
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(eventually([&] { return rig.sink.told == submitted; }));
  CHECK(odd == 0 && stray_completions() == strays);
}

TEST(the_null_driver_runs_jobs) {
  auto device = *Device::open("null", {});
  auto model = *Model::load(device, PackageForTest::make("null", "null"), {});
  auto session = *device->session();
  std::shared_ptr<BindingSet> set = *model->make_bindings(*model->graph_index("prefill_t16"));
  auto* logits = static_cast<float*>(set->buffer(CALD_ROLE_LOGITS)->data());
  logits[0] = 5;
  Sink sink;
  for (int i = 0; i < 10; ++i) {
    auto job = Job::submit(session, model, set, in(1000), &sink);
    CHECK(job.ok() && (*job)->wait(0).ok() && (*job)->timing().ok());
  }
  CHECK(sink.told == 10 && logits[0] == 5);  // it writes nothing
}
