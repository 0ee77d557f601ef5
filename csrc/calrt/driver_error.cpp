// SPDX-License-Identifier: Apache-2.0
#include "calrt/driver_error.h"

#include <cstddef>
#include <cstring>

#include "base/utf8.h"

namespace calrt {
namespace {

// As words of StatusRow::status_class.
#define CALRT_CLASS_ARGUMENT "argument"
#define CALRT_CLASS_PACKAGE "package"
#define CALRT_CLASS_CAPACITY "capacity"
#define CALRT_CLASS_KV "kv"
#define CALRT_CLASS_SUBMIT "submit"
#define CALRT_CLASS_DEVICE "device"
constexpr struct {
  const char* entry;
  const char* status_class;
} kClasses[] = {
#define CALD_ENTRY(name, need, minor, cls) {#name, CALRT_CLASS_##cls},
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
};

Error coded(cald_status status, int64_t native_code, uint32_t flags, const char* entry) {
  Error error;
  error.where = entry;
  error.native_code = native_code;
  if (status < CALD_OK || status >= kStatusCount) {
    error.native_code = status;
    error.unmapped = true;
  } else if ((flags & CALD_ERROR_UNMAPPED) != 0) {
    error.unmapped = true;
  } else {
    error.code = static_cast<Status>(status);
  }
  if (error.unmapped) error.status_class = entry_class(entry);
  return error;
}

}  // namespace

const char* entry_class(const char* entry) {
  for (const auto& row : kClasses)
    if (std::strcmp(row.entry, entry) == 0) return row.status_class;
  return CALRT_CLASS_DEVICE;
}

Error driver_error(cald_status status, const cald_error& detail, const char* entry) {
  Error error = coded(status, detail.native_code, detail.flags, entry);
  if (std::string where = clean_utf8(detail.where, sizeof detail.where); !where.empty())
    error.where = std::move(where);
  error.message = clean_utf8(detail.message, sizeof detail.message);
  if (error.message.empty())
    error.message = std::string(status_row(static_cast<int32_t>(error.code)).sentence) +
                    "; the driver's " + error.where + " gave no text";
  return error;
}

Error completion_error(const cald_completion& completion, const char* entry) {
  const bool has_native =
      completion.struct_size >= offsetof(cald_completion, flags) + sizeof completion.flags;
  return has_native ? coded(completion.status, completion.native_code, completion.flags, entry)
                    : coded(completion.status, 0, 0, entry);
}

}  // namespace calrt
