// SPDX-License-Identifier: Apache-2.0
// The status list as C++: enum, texts and what each code means for retry, damage and recovery.
#pragma once

#include <cstdint>

namespace calrt {

enum class Status : int32_t {
#define CALD_STATUS(number, name, cls, retry, damage, recovery, exception, sentence) name = number,
#include "calrt/status.inc"
#undef CALD_STATUS
};

struct StatusRow {
  int32_t number;
  const char* name;
  const char* status_class;  // argument, package, capacity, kv, submit, ccu, device; "" for OK
  const char* retry;         // no, once, wait, yes
  const char* damage;        // none, call, load, handle, lane, job, job_lanes, session, device
  const char* recovery;      // none, fix_call, wait, retry, scrub_lane, reload_model, reopen_device
  const char* exception;     // name of the Python class
  const char* sentence;
};

inline constexpr int32_t kStatusCount = 30;

// Row of a code; the INTERNAL row for any number outside 0-29. Thread-safe, never null.
const StatusRow& status_row(int32_t code);
// Row by index 0..29, in order.
const StatusRow& status_row_at(int32_t index);

}  // namespace calrt
