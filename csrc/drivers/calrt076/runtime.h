// SPDX-License-Identifier: Apache-2.0
// The SDK's runtime, of which a process has one: initialised by the first driver, ended by the
// last.
#pragma once

#include "base/result.h"

namespace calrt::calrt076 {

// A share in the runtime. Thread-safe. INVALID_STATE in a child of the process that started it, and
// where something else than this driver has started it.
class Runtime {
 public:
  static Result<Runtime> start();
  ~Runtime();
  Runtime(Runtime&& other) noexcept : held_(other.held_) { other.held_ = false; }
  Runtime& operator=(Runtime&&) = delete;

 private:
  Runtime() = default;
  bool held_ = true;
};

}  // namespace calrt::calrt076
