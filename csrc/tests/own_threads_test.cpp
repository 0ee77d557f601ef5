// SPDX-License-Identifier: Apache-2.0
// A process that exits stops calrt's threads before the drivers' own exit handlers run.
#include "calrt/own_threads.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using scripted::Ends;

namespace {

constexpr int kQuiet = 7, kCalled = 8;

// As a driver's exit handler: registered after it was loaded and before it was first used, so it
// runs after calrt's own. Whatever calrt still asks the driver then is too late.
void watch_for_calls() {
  const int before = script().called("job_wait");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  _exit(script().called("job_wait") == before ? kQuiet : kCalled);
}

}  // namespace

TEST(no_driver_is_called_once_its_exit_handlers_run) {
  const pid_t child = fork();  // before this process has a thread
  if (child == 0) {
    alarm(100);  // a hang ends it, and is seen
    (void)script();
    std::atexit(watch_for_calls);
    auto* rig = new Rig([](scripted::Script& now) {
      now.completion = CALD_COMPLETION_WAIT;  // a thread of ours asks every 2 ms
      now.ends = Ends::HELD;
    });
    auto* job = new std::shared_ptr<Job>(*rig->submit());
    if (!eventually([] { return script().called("job_wait") > 2; }) || (*job)->terminal()) _exit(1);
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == kQuiet);
}

TEST(nothing_starts_when_the_exit_has_begun) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(100);
    std::atexit([] {  // runs after calrt's handler, which the first start() registers
      const bool refused = !own_threads::start("a test", [] {}, [] {});
      _exit(refused && own_threads::stopping() ? kQuiet : kCalled);
    });
    if (own_threads::stopping() || !own_threads::start("a test", [] {}, [] {})) _exit(1);
    std::exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == kQuiet);
}
