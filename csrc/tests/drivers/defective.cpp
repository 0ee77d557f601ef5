// SPDX-License-Identifier: Apache-2.0
#include "tests/drivers/defective.h"

#include <cstdlib>

extern "C" cald_status mock_driver_entry(const cald_host* host, uint32_t abi_requested,
                                         const cald_driver_table** out);

namespace calrt::defective {

State& state() {
  static State& one = *new State;
  return one;
}

bool is_known(const char* name) {
#define DEFECT(known, rule, text) \
  if (std::strcmp(name, #known) == 0) return true;
#include "tests/drivers/defects.inc"
#undef DEFECT
  return false;
}

cald_status refuse(cald_error* err, cald_status code, const char* message) {
  if (err != nullptr) {
    err->code = code;
    err->native_code = 0;
    std::strncpy(err->message, message, sizeof err->message - 1);
    err->message[sizeof err->message - 1] = '\0';
    std::strncpy(err->where, "defective", sizeof err->where - 1);
  }
  return code;
}

}  // namespace calrt::defective

using namespace calrt::defective;

extern "C" cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                                         const cald_driver_table** out) {
  static cald_driver_table table;
  if (const char* named = std::getenv("CALRT_DEFECT"); named != nullptr) state().defect = named;
  if (is("accepts_other_major")) abi_requested = CALD_ABI_VERSION;
  const cald_driver_table* mock = nullptr;
  const cald_status status = mock_driver_entry(host, abi_requested, &mock);
  if (status != CALD_OK) return status;
  state().mock = mock;
  state().handshake_host = host;
  table = *mock;
  wrap_device(&table);
  wrap_buffers(&table);
  wrap_models(&table);
  wrap_jobs(&table);
  wrap_waits(&table);
  wrap_kv(&table);
  wrap_trace(&table);
  if (is("lacks_an_entry")) table.job_wait = nullptr;
  if (is("claims_what_it_lacks")) table.trace_start = nullptr;
  *out = &table;
  return CALD_OK;
}
