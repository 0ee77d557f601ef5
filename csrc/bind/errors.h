// SPDX-License-Identifier: Apache-2.0
// From Result<T> to a Python exception of calrt.errors, and the one way to leave the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <string>
#include <type_traits>
#include <utility>

#include "base/result.h"
#include "bind/gil.h"

namespace calrt::bind {

// What an error is about, where the binding knows it.
struct ErrorContext {
  std::string device;
  uint64_t job_seq = 0;
};

// Throws the Python exception of this error's code. With the GIL held.
[[noreturn]] void raise(const Error& error, const ErrorContext& context = {});

// The value, or the Python exception. With the GIL held.
template <class T>
T unwrap(Result<T> result, const ErrorContext& context = {}) {
  if (!result.ok()) raise(result.error(), context);
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

// Native log lines wait for the GIL; deliver_logs() hands them to Python's logging.
extern std::atomic<bool> logs_waiting;
void deliver_logs();

// Runs `call` without the GIL: whatever may block. `call` touches no Python object.
template <class Call>
auto without_gil(Call&& call) {
  const auto run = [&] {
    GilReleased released;
    return call();
  };
  if constexpr (std::is_void_v<decltype(call())>) {
    run();
    if (logs_waiting.load(std::memory_order_acquire)) deliver_logs();
  } else {
    auto answer = run();
    if (logs_waiting.load(std::memory_order_acquire)) deliver_logs();
    return answer;
  }
}

// Drops an owner without the GIL, for owners whose destructor calls into a driver or joins.
template <class Pointer>
void drop_without_gil(Pointer& pointer) {
  if (!pointer) return;
  GilReleased released;
  pointer.reset();
}

}  // namespace calrt::bind
