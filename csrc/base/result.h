// SPDX-License-Identifier: Apache-2.0
// Result<T>: a value or an Error. Used inside; exceptions exist only at the Python and C++ edges.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"

namespace calrt {

struct Error {
  Status code = Status::INTERNAL;
  int64_t native_code = 0;
  std::string message;    // what was wrong, with the numbers
  std::string where;      // entry or stage
  bool unmapped = false;  // native_code is a number that calrt has no meaning for
  // Then the class of the entry that answered it; null: the code's own.
  const char* status_class = nullptr;
};

// One line for people, both numbers shown: "KV_NO_CAPACITY (calrt 17, native 9): message".
std::string error_text(const Error& error);

// printf-style maker: fail(Status::OUT_OF_RANGE, "cells=%u not allowed: ...", cells)
[[gnu::format(printf, 2, 3)]] inline Error fail(Status code, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return Error{code, 0, text, {}};
}

// Thrown only by value() and at API edges; carries the whole error.
struct Exception {
  Error error;
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return *std::get_if<0>(&state_); }
  const T& operator*() const& { return *std::get_if<0>(&state_); }
  T&& operator*() && { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() { return std::get_if<0>(&state_); }
  const T* operator->() const { return std::get_if<0>(&state_); }

  const Error& error() const& { return *std::get_if<1>(&state_); }
  Error&& error() && { return std::move(*std::get_if<1>(&state_)); }

  // The value, or throws Exception: for API edges only.
  T value() && {
    if (!ok()) throw Exception{std::move(*this).error()};
    return std::move(**this);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() noexcept {}  // not defaulted: `return {}` would write zeros over the room for an error
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& { return *error_; }
  Error&& error() && { return *std::move(error_); }
  void value() && {
    if (error_) throw Exception{*std::move(error_)};
  }

 private:
  std::optional<Error> error_;  // made only by a failure
};

// Returns the error of `expression` from the enclosing function if it failed.
#define CALRT_TRY(expression)                                                 \
  do {                                                                        \
    if (auto try_ = (expression); !try_.ok()) return std::move(try_).error(); \
  } while (0)

// CALRT_TRY_ASSIGN(auto x, f()): x is the value, or the error is returned.
#define CALRT_TRY_ASSIGN(target, expression) \
  CALRT_TRY_ASSIGN_(CALRT_JOIN_(try_, __LINE__), target, expression)
#define CALRT_TRY_ASSIGN_(name, target, expression) \
  auto name = (expression);                         \
  if (!name.ok()) return std::move(name).error();   \
  target = *std::move(name)
#define CALRT_JOIN_(a, b) CALRT_JOIN2_(a, b)
#define CALRT_JOIN2_(a, b) a##b

}  // namespace calrt
