// SPDX-License-Identifier: Apache-2.0
// A fork's child has a runtime of its own: it may open a device and run jobs, and leaves its
// parent's alone.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/process.h"
#include "calrt/session_pump.h"
#include "engine/graph_runner.h"
#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using scripted::Ends;

namespace {

// Runs `body` in a child, which leaves as Python's children do, through exit handlers. The child's
// exit status; -1 if it hung and was ended.
template <class Body>
int in_child(Body&& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    testing::failures() = 0;
    body();
    std::exit(testing::failures() == 0 ? 0 : 1);
  }
  int status = 0;
  for (int i = 0; i < 30'000; ++i) {
    if (waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return -1;
}

void run_jobs_on_a_device_of_its_own() {
  auto device = *Device::open("null", {});
  auto model = *Model::load(device, PackageForTest::make("null", "null"), {});
  auto session = *device->session();
  std::shared_ptr<BindingSet> set = *model->make_bindings(0);
  Sink sink;
  for (int i = 0; i < 5; ++i) {
    auto job = Job::submit(session, model, set, in(20'000), &sink);
    CHECK(job.ok() && (*job)->wait(0).ok());
  }
  CHECK(sink.told == 5);
}

}  // namespace

TEST(the_generation_tells_parent_and_child_apart) {
  const uint32_t mine = process_generation();
  CHECK(in_child([mine] { CHECK(process_generation() == mine + 1); }) == 0);
  CHECK(process_generation() == mine);
}

TEST(a_child_runs_jobs_of_its_own_and_exits) {
  run_jobs_on_a_device_of_its_own();
  CHECK(in_child(run_jobs_on_a_device_of_its_own) == 0);
}

TEST(a_parents_job_is_nothing_to_its_child) {
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *rig.submit();
  auto second = *rig.submit(rig.make(), 20'000);
  CHECK(script().finish(second->job_seq()));
  const int calls = script().called("job_query"), living = script().living();
  CHECK(in_child([&] {
          CHECK(job->wait(in(1000)).error().code == Status::INVALID_STATE);
          CHECK(job->cancel().error().code == Status::INVALID_STATE);
          CHECK(second->timing().error().code == Status::INVALID_STATE);
          CHECK(job->state() == JobState::QUEUED && script().called("job_query") == calls);
          CHECK(rig.submit(rig.bindings, 1000).error().code == Status::INVALID_STATE);
          job.reset();
          second.reset();
          rig.drop();
          CHECK(script().living() == living);  // the parent's: nothing is destroyed from here
          run_jobs_on_a_device_of_its_own();
        }) == 0);
  CHECK(script().finish(job->job_seq()) && job->wait(0).ok());
}

TEST(a_child_destroys_none_of_its_parents_handles) {
  Rig rig;
  const int living = script().living();
  CHECK(living > 4 && in_child([&] {
                        rig.drop();
                        CHECK(script().living() == living);
                      }) == 0);
}

TEST(a_child_moves_no_bytes_of_its_parents_buffers) {
  Rig rig;
  auto buffer = *rig.device->alloc(64, CALD_DOMAIN_HOST, 64);
  char bytes[64] = {};
  CHECK(in_child([&] {
          CHECK(buffer->write(0, bytes, 64).error().code == Status::INVALID_STATE);
          CHECK(buffer->read(0, bytes, 64).error().code == Status::INVALID_STATE);
          CHECK(script().called("buffer_h2d") + script().called("buffer_d2h") == 0);
        }) == 0);
  CHECK(buffer->write(0, bytes, 64).ok() && script().called("buffer_h2d") == 1);
}

// Others reserve lanes all the time, so that most forks find the queue's lock held.
TEST(a_child_closes_a_model_whose_locks_are_held) {
  Rig rig;
  auto runner = *engine::GraphRunner::make(rig.model);
  std::atomic<bool> enough{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 3; ++t)
    busy.emplace_back([&] {
      while (!enough) (void)runner->queue()->reserve(1, 0).ok();
    });
  int hung = 0;
  for (int i = 0; i < 20 && hung == 0; ++i)
    hung += in_child([&] { CHECK(runner->close(in(1000)).ok() && rig.model->closed()); }) != 0;
  CHECK(hung == 0 && !rig.model->closed());
  enough = true;
  for (auto& thread : busy) thread.join();
  CHECK(runner->close(in(20'000)).ok());
}

TEST(a_child_drops_a_session_whose_pump_is_busy) {
  Rig rig([](scripted::Script& now) {
    now.completion = CALD_COMPLETION_WAIT;
    now.ends = Ends::HELD;
  });
  std::atomic<bool> enough{false};
  std::vector<std::thread> busy;
  for (int t = 0; t < 3; ++t)
    busy.emplace_back([&] {
      while (!enough) rig.session->pump()->kick();
    });
  int hung = 0;
  for (int i = 0; i < 20 && hung == 0; ++i) hung += in_child([&] { rig.drop(); }) != 0;
  CHECK(hung == 0);
  enough = true;
  for (auto& thread : busy) thread.join();
}

// A thread that the child does not have is telling the job's end at the fork, under the job's lock.
TEST(a_child_drops_a_job_whose_lock_is_held) {
  struct Slow : Sink {
    std::atomic<bool> inside{false}, go_on{false};
    void completed(uint64_t seq, JobState end, int32_t code) noexcept override {
      inside = true;
      while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      Sink::completed(seq, end, code);
    }
  } slow;
  Rig rig;
  script().ends = Ends::HELD;
  auto job = *Job::submit(rig.session, rig.model, rig.bindings, in(20'000), &slow);
  std::thread driver([&] { CHECK(script().finish(job->job_seq())); });
  CHECK(eventually([&] { return slow.inside.load(); }));
  CHECK(in_child([&] { job.reset(); }) == 0);
  slow.go_on = true;
  driver.join();
  CHECK(job->wait(in(20'000)).ok() && slow.told == 1);
}

// The child finds the runtime's locks as other threads held them at the fork.
TEST(a_child_forked_amid_jobs_does_not_hang) {
  Rig rig;
  script().ends = Ends::INSIDE;
  std::atomic<bool> enough{false};
  std::thread busy([&] {
    auto device = *Device::open("null", {});
    auto model = *Model::load(device, PackageForTest::make("null", "null"), {});
    auto session = *device->session();
    std::shared_ptr<BindingSet> set = *model->make_bindings(0);
    while (!enough) (void)(*Job::submit(session, model, set, in(20'000)))->wait(0);
  });
  for (int i = 0; i < 20; ++i) CHECK(in_child(run_jobs_on_a_device_of_its_own) == 0);
  enough = true;
  busy.join();
}
