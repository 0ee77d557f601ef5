// SPDX-License-Identifier: Apache-2.0
// Turns the one exception that the standard containers throw here into a Result.
#pragma once

#include <new>

#include "base/result.h"

namespace calrt {

// The Result of `body`, or OUT_OF_HOST_MEMORY if an allocation in it failed. What the body changed
// by then stays changed: it allocates first and changes afterwards.
template <class Body>
auto or_out_of_memory(Body&& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    Error error;
    error.code = Status::OUT_OF_HOST_MEMORY;
    error.message = "out of memory";  // short enough to need none
    return error;
  }
}

}  // namespace calrt
