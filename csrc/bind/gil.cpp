// SPDX-License-Identifier: Apache-2.0
#include "bind/gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/process.h"

namespace calrt::bind {

namespace py = pybind11;

namespace {

// Sequentially consistent, all of them: a taker counts itself before it looks at `exiting`, the
// exit sets `exiting` before it looks at the count, so at least one sees the other.
std::atomic<bool> exiting{false};
std::atomic<std::thread::id> exiting_thread{};
std::atomic<int64_t> patience_ends{0};  // steady clock, ns

// Threads about to have the GIL. A fork's child has none of them.
std::atomic<int>& taking() { return per_process<std::atomic<int>>(); }

using Clock = std::chrono::steady_clock;

// An exit that takes longer than this waits for something: perhaps, in an exit hook that is older
// than ours, for the very thread we keep outside.
constexpr auto kPatience = std::chrono::seconds(2);

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

// Returns if the interpreter is still whole when patience has ended; else the process ends first.
void stay_outside() {
  const Clock::time_point until{Clock::duration(patience_ends.load())};
  while (Clock::now() < until) std::this_thread::sleep_until(until);
  while (finalizing()) ::pause();
}

// False: the exit has begun, the GIL must not be asked for. True: finish with done_taking().
bool may_take() {
  taking().fetch_add(1);
  if (!exiting.load() || exiting_thread.load() == std::this_thread::get_id()) return true;
  taking().fetch_sub(1);
  return false;
}

void done_taking() { taking().fetch_sub(1); }

}  // namespace

void begin_exit() {
  exiting_thread.store(std::this_thread::get_id());
  const auto until = Clock::now() + kPatience;
  patience_ends.store(until.time_since_epoch().count());
  exiting.store(true);
  py::gil_scoped_release released;  // this thread is the one that ends the interpreter
  while (taking().load() != 0 && Clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

GilReleased::~GilReleased() {
  const bool counted = may_take();
  if (!counted) stay_outside();
  PyEval_RestoreThread(state_);
  if (counted) done_taking();
}

GilTaken::GilTaken() {
  if (!may_take()) return;
  gil_.emplace();
  done_taking();
}

}  // namespace calrt::bind
