// SPDX-License-Identifier: Apache-2.0
// "defective": the mock driver, with one of the defects of defects.inc. Each file here wraps some
// entries of mock's table; what is not in the way of the defect goes through as it is.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "calrt/driver.h"

namespace calrt::defective {

// Of the process: it tests one defect.
struct State {
  std::string defect;
  const cald_driver_table* mock = nullptr;
  const cald_host* handshake_host = nullptr;
};
State& state();
inline bool is(const char* name) { return state().defect == name; }
inline const cald_driver_table& mock() { return *state().mock; }
bool is_known(const char* name);

cald_status refuse(cald_error* err, cald_status code, const char* message);

// Each puts its wrappers into the table.
void wrap_device(cald_driver_table* table);
void wrap_buffers(cald_driver_table* table);
void wrap_models(cald_driver_table* table);
void wrap_jobs(cald_driver_table* table);
void wrap_waits(cald_driver_table* table);
void wrap_kv(cald_driver_table* table);
void wrap_trace(cald_driver_table* table);

// A job that does nothing and ends DONE, unless it is late, in place of one that should have been
// refused.
cald_status submit_nothing(cald_session* session, const cald_job_desc& in_place_of,
                           cald_model* model, cald_job** out, cald_error* err,
                           uint64_t deadline_ns = CALD_NO_DEADLINE);

}  // namespace calrt::defective
