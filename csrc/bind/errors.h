// SPDX-License-Identifier: Apache-2.0
// From Result<T> to a Python exception of calrt.errors, and the one way to leave the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include "base/result.h"
#include "bind/gil.h"

namespace calrt {
class Device;
class Model;
}  // namespace calrt

namespace calrt::bind {

// What an error is about, where the binding knows it. It only points at what the caller holds, so
// that a call which succeeds pays nothing for it.
struct ErrorContext {
  ErrorContext() = default;
  // Of a device that is not open.
  ErrorContext(std::string_view asked, uint64_t job) : spec(asked), job_seq(job) {}
  explicit ErrorContext(const Device& about) : device(&about) {}
  explicit ErrorContext(const Model& about, uint64_t job = 0) : model(&about), job_seq(job) {}
  // With the Python object that the call was made on; the error refers to it weakly.
  ErrorContext of(pybind11::handle object) const {
    ErrorContext more = *this;
    more.subject = object;
    return more;
  }

  std::string_view spec;
  const Device* device = nullptr;
  const Model* model = nullptr;
  uint64_t job_seq = 0;
  pybind11::handle subject;
};

// The Python object that a method of ours was called on.
template <class T>
pybind11::handle python_object(const T* self) {
  return pybind11::detail::get_object_handle(self, pybind11::detail::get_type_info(typeid(T)));
}

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
