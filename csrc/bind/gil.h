// SPDX-License-Identifier: Apache-2.0
// Leaving and taking the GIL while the interpreter may be ending. Python before 3.14 ends a thread
// that asks for the GIL too late, by unwinding through frames that cannot be unwound. So from the
// moment the exit begins only the thread that runs it comes back; every other one stays outside
// until the process ends. One that an older exit hook joins comes back after 2 s: see gil.cpp.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>

namespace calrt::bind {

// Has the exit begin: from now on only the calling thread comes back. Waits for those that are
// about to. With the GIL held.
void begin_exit();

// Without the GIL for its lifetime. On a thread that the exit left behind its end does not return,
// or late.
class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

// With the GIL again, for a callback out of native code; false, and without it, once the exit has
// begun: then the callback has to cancel what called it.
class GilTaken {
 public:
  GilTaken();
  GilTaken(const GilTaken&) = delete;
  GilTaken& operator=(const GilTaken&) = delete;
  explicit operator bool() const { return gil_.has_value(); }

 private:
  std::optional<pybind11::gil_scoped_acquire> gil_;
};

}  // namespace calrt::bind
