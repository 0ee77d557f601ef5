// SPDX-License-Identifier: Apache-2.0
// Entries of the parent's table that do not follow from their signatures (stub.h has the rest).
#pragma once

#include "calrt/driver.h"
#include "layers/isolate/remote.h"

namespace calrt::isolate::own {

// Of slot number `slot` (isolate.cpp): a new child of its library.
cald_status open_driver(const std::string& library, const Facts& facts, const cald_host* host,
                        cald_driver** out, cald_error* error);
void driver_close(cald_driver* driver);
cald_status device_open(cald_driver* driver, const cald_device_options* options, cald_device** out,
                        cald_error* error);
cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count, cald_error* error);
cald_status device_counters(cald_device* device, cald_counter* out, uint32_t* count,
                            cald_error* error);
cald_status trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                        cald_trace_info* info, cald_error* error);
cald_status session_open(cald_device* device, uint32_t index, cald_session** out,
                         cald_error* error);

cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                         cald_buffer** out, cald_error* error);
cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* error);
cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* error);
cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* error);
cald_status buffer_transfer(cald_transfer* transfer, cald_error* error);

cald_status model_footprint(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_footprint* out,
                            cald_error* error);
cald_status model_load(cald_device* device, const cald_package* package,
                       const cald_load_options* options, cald_model** out, cald_error* error);
cald_status binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                             uint32_t n_bindings, cald_binding_set** out, cald_error* error);

cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                   cald_error* error);
cald_status kv_submit(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                      cald_error* error);
cald_status job_query(cald_job* job, int32_t* state, cald_error* error);
cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* error);
cald_status job_cancel(cald_job* job, cald_error* error);
cald_status job_timing(cald_job* job, cald_timing* out, cald_error* error);
void job_destroy(cald_job* job);

}  // namespace calrt::isolate::own
