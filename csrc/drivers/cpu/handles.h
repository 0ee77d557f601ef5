// SPDX-License-Identifier: Apache-2.0
// What stands behind the ABI's opaque handles, and the border that no exception crosses.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

#include "base/result.h"
#include "calrt/driver.h"
#include "drivers/cpu/kernels.h"
#include "layout/isa.h"

struct cald_driver {
  const cald_host* host;

  uint64_t now_ns() const;
};

struct cald_device {
  cald_driver* driver;
  calrt::Isa isa;
  const calrt::cpu::Kernels* kernels;
  uint32_t threads;
  std::atomic<bool> session_open{false};
  std::atomic<uint64_t> jobs{0}, tokens{0}, busy_ns{0};
};

struct cald_buffer {
  unsigned char* data;
  uint64_t bytes;
};

namespace calrt::cpu {

// Copies an Error out; `err` may be null or of another version's size.
cald_status report(const Error& error, const char* where, cald_error* err);

// Runs an entry's body, which returns Result<void>; nothing it throws gets out.
template <class Body>
cald_status guarded(const char* where, cald_error* err, Body&& body) noexcept {
  try {
    Result<void> result = body();
    if (result.ok()) return CALD_OK;
    return report(result.error(), where, err);
  } catch (const std::bad_alloc&) {
    return report(Error{Status::OUT_OF_HOST_MEMORY, 0, "the system has no memory left", {}}, where,
                  err);
  } catch (...) {
    return report(Error{Status::INTERNAL, 0, "unexpected exception in the driver", {}}, where, err);
  }
}

// A struct the caller allocated must have at least the fields of this version.
template <class T>
Result<void> check_struct(const T* argument, const char* name) {
  if (argument == nullptr) return fail(Status::INVALID_ARGUMENT, "%s is null", name);
  if (argument->struct_size < sizeof(T))
    return fail(Status::INVALID_ARGUMENT, "%s.struct_size=%u: at least %zu expected", name,
                argument->struct_size, sizeof(T));
  return {};
}

template <class T>
Result<void> check_handle(const T* handle, const char* name) {
  if (handle == nullptr) return fail(Status::INVALID_HANDLE, "%s is null", name);
  return {};
}

}  // namespace calrt::cpu
