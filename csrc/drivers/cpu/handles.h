// SPDX-License-Identifier: Apache-2.0
// What stands behind the ABI's opaque handles, and the border that no exception crosses.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "base/result.h"
#include "calrt/driver.h"
#include "drivers/cpu/kernels.h"
#include "drivers/cpu/trace.h"
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
  calrt::cpu::Trace trace;
};

struct cald_buffer {
  const cald_device* device = nullptr;
  unsigned char* data = nullptr;
  uint64_t bytes = 0;
  // CALD_BUFFER_* in the low bits, above them the job_seq it is about: read in one piece.
  std::atomic<uint64_t> output_state{CALD_BUFFER_IDLE};

  void set_output_state(int32_t state, uint64_t job_seq) {
    output_state.store(job_seq << 2 | static_cast<uint64_t>(state), std::memory_order_release);
  }
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

// Bytes of a struct that every version of the ABI has had: what an older calrt gives is enough.
template <class T>
inline constexpr size_t kLeastSize = sizeof(T);
template <>
inline constexpr size_t kLeastSize<cald_error> = offsetof(cald_error, flags);
template <>
inline constexpr size_t kLeastSize<cald_device_info> = offsetof(cald_device_info, id);
template <>
inline constexpr size_t kLeastSize<cald_job_desc> = offsetof(cald_job_desc, set);

template <class T>
Result<void> check_struct(const T* argument, const char* name) {
  if (argument == nullptr) return fail(Status::INVALID_ARGUMENT, "%s is null", name);
  if (argument->struct_size < kLeastSize<T>)
    return fail(Status::INVALID_ARGUMENT, "%s.struct_size=%u: at least %zu expected", name,
                argument->struct_size, kLeastSize<T>);
  return {};
}

// Gives `filled` to a caller whose version of the struct may be shorter or longer.
template <class T>
void answer(T* out, const T& filled) {
  const uint32_t size = out->struct_size;
  std::memcpy(out, &filled, std::min<size_t>(size, sizeof filled));
  out->struct_size = size;
}

template <class T>
Result<void> check_handle(const T* handle, const char* name) {
  if (handle == nullptr) return fail(Status::INVALID_HANDLE, "%s is null", name);
  return {};
}

}  // namespace calrt::cpu
