// SPDX-License-Identifier: Apache-2.0
// The child's half of entries.h.
#pragma once

#include "isolate/served.h"

namespace calrt::isolate::served {

cald_status driver_open(Request& request, cald_error* error);
cald_status device_caps(Request& request, cald_error* error);
cald_status device_counters(Request& request, cald_error* error);
cald_status trace_drain(Request& request, cald_error* error);
cald_status session_open(Request& request, cald_error* error);
cald_status session_close(Request& request, cald_error* error);
cald_status buffer_map(Request& request, cald_error* error);
cald_status buffer_h2d(Request& request, cald_error* error);
cald_status buffer_d2h(Request& request, cald_error* error);
cald_status buffer_transfer(Request& request, cald_error* error);
cald_status model_footprint(Request& request, cald_error* error);
cald_status model_load(Request& request, cald_error* error);
cald_status model_unload(Request& request, cald_error* error);
cald_status binding_set_make(Request& request, cald_error* error);
cald_status submit(Request& request, cald_error* error);
cald_status kv_submit(Request& request, cald_error* error);
cald_status job_query(Request& request, cald_error* error);
cald_status job_cancel(Request& request, cald_error* error);
cald_status job_timing(Request& request, cald_error* error);
// job_wait is answered by the parent, job_destroy goes by Kind::RELEASE.
cald_status job_wait(Request& request, cald_error* error);
cald_status job_destroy(Request& request, cald_error* error);

}  // namespace calrt::isolate::served
