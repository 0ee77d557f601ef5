// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <array>
#include <cstddef>

namespace calrt {
namespace {

constexpr const char* NONE = "none";
constexpr const char* NO = "no";
constexpr const char* ONCE = "once";
constexpr const char* YES = "yes";
constexpr const char* WAIT = "wait";
constexpr const char* CALL = "call";
constexpr const char* LOAD = "load";
constexpr const char* HANDLE = "handle";
constexpr const char* LANE = "lane";
constexpr const char* JOB = "job";
constexpr const char* JOB_LANES = "job_lanes";
constexpr const char* SESSION = "session";
constexpr const char* DEVICE = "device";
constexpr const char* FIX_CALL = "fix_call";
constexpr const char* RETRY = "retry";
constexpr const char* SCRUB_LANE = "scrub_lane";
constexpr const char* RELOAD_MODEL = "reload_model";
constexpr const char* REOPEN_DEVICE = "reopen_device";
constexpr const char* ARGUMENT = "argument";
constexpr const char* PACKAGE = "package";
constexpr const char* CAPACITY = "capacity";
constexpr const char* KV = "kv";
constexpr const char* SUBMIT = "submit";
constexpr const char* CCU = "ccu";

constexpr std::array<StatusRow, kStatusCount> kRows{{
#define CALD_STATUS(number, name, cls, retry, damage, recovery, exception, sentence) \
  {number, #name, cls, retry, damage, recovery, exception, sentence},
#include "calrt/status.inc"
#undef CALD_STATUS
}};

constexpr bool numbered_in_order() {
  for (int32_t i = 0; i < kStatusCount; ++i)
    if (kRows[static_cast<size_t>(i)].number != i) return false;
  return true;
}
static_assert(numbered_in_order(), "status.inc must list 0..29 in order");

}  // namespace

const StatusRow& status_row(int32_t code) {
  return kRows[static_cast<size_t>(code >= 0 && code < kStatusCount ? code : kStatusCount - 1)];
}

const StatusRow& status_row_at(int32_t index) { return status_row(index); }

}  // namespace calrt
