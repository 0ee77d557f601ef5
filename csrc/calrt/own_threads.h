// SPDX-License-Identifier: Apache-2.0
// Threads that work for the runtime. They are detached, since a driver may keep one for ever, and
// come to rest before static destructors run. Internal to csrc/calrt.
#pragma once

#include <functional>

namespace calrt::own_threads {

// Runs `body` on a new thread. `wake` makes body see stopping(); it is called at the process's
// exit, which then gives the thread two seconds to return. False, with a log line, if there is no
// thread to be had, or the process is ending. Thread-safe.
bool start(const char* what, std::function<void()> body, std::function<void()> wake);

// The process is ending: return soon, begin nothing.
bool stopping();

}  // namespace calrt::own_threads
