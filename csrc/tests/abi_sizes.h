/* SPDX-License-Identifier: Apache-2.0
 * The structs of driver.h, for the tests that hold their sizes and offsets still. C11 and C++20. */
#pragma once

#include <stddef.h>

#define ABI_SIZE(name) sizeof(name),
// clang-format off
#define ABI_STRUCTS(X) \
  X(cald_error) X(cald_host) X(cald_axis) X(cald_layout) \
  X(cald_io) X(cald_graph) X(cald_artifact) X(cald_tensor) \
  X(cald_arch) X(cald_package) X(cald_load_options) X(cald_model_info) \
  X(cald_footprint) X(cald_option) X(cald_device_options) X(cald_device_info) \
  X(cald_chip) X(cald_link) X(cald_topology) X(cald_buffer_rules) \
  X(cald_transfer) X(cald_buffer_state) X(cald_trace_event) X(cald_trace_info) \
  X(cald_health) X(cald_cap) X(cald_counter) X(cald_binding) \
  X(cald_completion) X(cald_job_desc) X(cald_kv_info) X(cald_kv_desc) \
  X(cald_timing) X(cald_driver_table)
// clang-format on

#ifdef __cplusplus
extern "C" {
#endif
extern const size_t abi_sizes_in_c[];
extern const size_t abi_count_in_c;
extern const int abi_last_status_in_c;
#ifdef __cplusplus
}
#endif
