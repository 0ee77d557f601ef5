// SPDX-License-Identifier: Apache-2.0
// Defects of a device's own trace.
#include <algorithm>

#include "tests/drivers/defective.h"

namespace calrt::defective {
namespace {

std::vector<cald_trace_event> drained;  // last

cald_status trace_start(cald_device* device, uint32_t capacity, cald_error* err) {
  if (is("takes_empty_trace") && capacity == 0) capacity = 16;
  drained.clear();
  return mock().trace_start(device, capacity, err);
}

cald_status trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                        cald_trace_info* info, cald_error* err) {
  if (is("drain_overrun") && out != nullptr && *count == 1) *count = 2;
  if (is("drains_twice") && out != nullptr && !drained.empty()) {
    *count = std::min(*count, static_cast<uint32_t>(drained.size()));
    std::copy_n(drained.begin(), *count, out);
    drained.clear();
    return CALD_OK;
  }
  const cald_status status = mock().trace_drain(device, out, count, info, err);
  if (status != CALD_OK) return status;
  if (out != nullptr) drained.assign(out, out + *count);
  for (uint32_t i = 0; out != nullptr && i < *count; ++i) {
    if (is("trace_never_ends") && out[i].phase == CALD_TRACE_END) out[i].phase = CALD_TRACE_BEGIN;
    if (is("trace_other_job")) out[i].id += 1;
    if (is("trace_other_time")) out[i].t_ns += 1'000'000'000;
  }
  if (is("trace_newest_first") && out != nullptr) std::reverse(out, out + *count);
  if (info == nullptr) return status;
  if (is("dropped_is_0")) info->dropped = 0;
  if (is("clock_of_yesterday")) info->host_ns -= std::min<uint64_t>(info->host_ns, 1'000'000'000);
  if (is("residual_too_large")) info->residual_ns = 1'000'000'000;
  return status;
}

cald_status trace_stop(cald_device* device, cald_error* err) {
  return is("trace_never_stops") ? CALD_OK : mock().trace_stop(device, err);
}

}  // namespace

void wrap_trace(cald_driver_table* table) {
  table->trace_start = trace_start;
  table->trace_drain = trace_drain;
  table->trace_stop = trace_stop;
}

}  // namespace calrt::defective
