// SPDX-License-Identifier: Apache-2.0
// A host for drivers that are tested by their table alone: the process's memory and clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>

#include "calrt/driver.h"

namespace calrt::testing {

inline uint64_t host_now_ns(void* = nullptr) {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

inline cald_host make_host() {
  cald_host host{};
  host.struct_size = sizeof host;
  host.abi_version = CALD_ABI_VERSION;
  host.now_ns = host_now_ns;
  host.alloc = [](void*, uint64_t bytes, uint64_t align) -> void* {
    if (bytes > (uint64_t{1} << 40)) return nullptr;
    return std::aligned_alloc(align, (bytes + align - 1) / align * align);
  };
  host.free = [](void*, void* pointer) { std::free(pointer); };
  return host;
}

}  // namespace calrt::testing
