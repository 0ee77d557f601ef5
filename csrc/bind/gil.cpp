// SPDX-License-Identifier: Apache-2.0
#include "bind/gil.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace calrt::bind {

namespace py = pybind11;

namespace {

// Sequentially consistent, all of them: a taker counts itself before it looks at `exiting`, the
// exit sets `exiting` before it looks at the count, so at least one sees the other.
std::atomic<bool> exiting{false};
std::atomic<int> taking{0};  // threads about to have the GIL
std::atomic<std::thread::id> exiting_thread{};

// False: the exit has begun, the GIL must not be asked for. True: finish with done_taking().
bool may_take() {
  taking.fetch_add(1);
  if (!exiting.load() || exiting_thread.load() == std::this_thread::get_id()) return true;
  taking.fetch_sub(1);
  return false;
}

void done_taking() { taking.fetch_sub(1); }

}  // namespace

void begin_exit() {
  exiting_thread.store(std::this_thread::get_id());
  exiting.store(true);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  py::gil_scoped_release released;  // this thread is the one that ends the interpreter
  // The bound is for a process forked while another thread was counted: that one is not here.
  while (taking.load() != 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

GilReleased::~GilReleased() {
  if (!may_take())
    while (true) ::pause();  // until the process ends
  PyEval_RestoreThread(state_);
  done_taking();
}

GilTaken::GilTaken() {
  if (!may_take()) return;
  gil_.emplace();
  done_taking();
}

}  // namespace calrt::bind
