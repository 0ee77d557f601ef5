// SPDX-License-Identifier: Apache-2.0
// The border that no exception crosses, and structs whose size the caller decides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::mock {

using ull = unsigned long long;  // for %llu

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

// A copy of a struct of a caller whose version may be shorter or longer: what is absent is 0.
template <class T>
T taken(const T& given) {
  T copy{};
  std::memcpy(&copy, &given, std::min<size_t>(given.struct_size, sizeof copy));
  copy.struct_size = sizeof copy;
  return copy;
}

// Copies an Error out; `err` may be null or of another version's size.
inline cald_status report(const Error& error, const char* where, cald_error* err) {
  const auto code = static_cast<cald_status>(error.code);
  if (err == nullptr || err->struct_size < kLeastSize<cald_error>) return code;
  err->code = code;
  err->native_code = error.native_code;
  std::snprintf(err->message, sizeof err->message, "%s", error.message.c_str());
  std::snprintf(err->where, sizeof err->where, "%s", where);
  return code;
}

// Runs an entry's body, which returns Result<void>; nothing it throws gets out.
template <class Body>
cald_status guarded(const char* where, cald_error* err, Body&& body) noexcept {
  try {
    Result<void> result = body();
    if (result.ok()) return CALD_OK;
    return report(result.error(), where, err);
  } catch (const std::bad_alloc&) {
    return report(fail(Status::OUT_OF_HOST_MEMORY, "the system has no memory left"), where, err);
  } catch (...) {
    return report(fail(Status::INTERNAL, "unexpected exception in the driver"), where, err);
  }
}

}  // namespace calrt::mock
