// SPDX-License-Identifier: Apache-2.0
// The border of the driver: structs of other versions, and errors in calrt's words. No exception
// crosses it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>

#include "base/result.h"
#include "calrt/driver.h"
#include "drivers/calrt076/sdk_contact.h"

namespace calrt::calrt076 {

// What an error number of the SDK means, by status-map.toml; the text is the SDK's last of this
// thread. OK where the number is 0.
Result<void> told(sdk::Number number, const char* what);
// The same for a number that did not come from this thread's last call.
Error meaning(sdk::Number number, const char* what);

// Whether a status says that no cell was written.
bool leaves_cells(Status status);

// Copies an Error out; `err` may be null or of another version's size.
cald_status report(const Error& error, const char* where, cald_error* err);

// Runs an entry's body, which returns Result<void>; nothing it throws gets out.
template <class Body>
cald_status guarded(const char* where, cald_error* err, Body&& body) noexcept {
  try {
    const Result<void> result = body();
    return result.ok() ? CALD_OK : report(result.error(), where, err);
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

template <class T>
Result<void> check_handle(const T* handle, const char* name) {
  if (handle == nullptr) return fail(Status::INVALID_HANDLE, "%s is null", name);
  return {};
}

// Gives `filled` to a caller whose version of the struct may be shorter or longer.
template <class T>
void answer(T* out, const T& filled) {
  const uint32_t size = out->struct_size;
  std::memcpy(out, &filled, std::min<size_t>(size, sizeof filled));
  out->struct_size = size;
}

}  // namespace calrt::calrt076
