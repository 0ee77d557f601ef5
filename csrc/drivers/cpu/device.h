// SPDX-License-Identifier: Apache-2.0
// What the device says about itself, and its options.
#pragma once

#include "drivers/cpu/handles.h"

namespace calrt::cpu {

// Physical cores this process may run on, at most 8: the default of option "threads". More than
// one thread per core only shares its units, and decoding is bound by memory long before 8.
uint32_t default_threads();

Result<std::unique_ptr<cald_device>> open_device(cald_driver* driver,
                                                 const cald_device_options& options);
void describe_device(cald_device_info* out);
void describe_topology(cald_topology* out);
cald_status list_caps(cald_cap* out, uint32_t* count);
cald_status list_counters(const cald_device& device, cald_counter* out, uint32_t* count);

}  // namespace calrt::cpu
