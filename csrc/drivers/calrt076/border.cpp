// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/border.h"

#include <cstdio>

#include "cald_status_map_rows.h"
#include "calrt/status_map.h"

namespace calrt::calrt076 {

namespace {

constexpr const char* kDamage[] = {
#define CALD_STATUS(number, name, cls, retry, damage, recovery, exception, sentence) #damage,
#include "calrt/status.inc"
#undef CALD_STATUS
};

}  // namespace

bool leaves_cells(Status status) {
  return std::strcmp(kDamage[static_cast<size_t>(status)], "CALL") == 0;
}

Error meaning(sdk::Number number, const char* what) {
  uint32_t flags = 0;
  const cald_status status = cald_status_of(&cald_native_map, number, &flags);
  const cald_status_row* row = cald_status_find(&cald_native_map, number);
  Error error = fail(static_cast<Status>(status), "%s: the SDK's number %d (%s)", what, number,
                     row != nullptr ? row->note : "not in status-map.toml");
  error.native_code = number;
  error.unmapped = flags != 0;
  return error;
}

Result<void> told(sdk::Number number, const char* what) {
  if (number == 0) return {};
  const std::string text = sdk::last_text();
  Error error = meaning(number, what);
  if (!text.empty()) error.message += ": " + text;
  return error;
}

cald_status report(const Error& error, const char* where, cald_error* err) {
  const auto code = static_cast<cald_status>(error.code);
  if (err == nullptr || err->struct_size < kLeastSize<cald_error>) return code;
  err->code = code;
  err->native_code = error.native_code;
  std::snprintf(err->message, sizeof err->message, "%s", error.message.c_str());
  std::snprintf(err->where, sizeof err->where, "%s", where);
  if (err->struct_size >= offsetof(cald_error, flags) + sizeof err->flags)
    err->flags = error.unmapped ? CALD_ERROR_UNMAPPED : 0;
  return code;
}

}  // namespace calrt::calrt076
