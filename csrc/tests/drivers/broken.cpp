// SPDX-License-Identifier: Apache-2.0
// Drivers that must not get past the loader; one library per macro, each wrong in one way.
#include <cstddef>
#include <stdexcept>

#include "calrt/driver.h"

#if !defined(NO_SYMBOL)

namespace {

// Never called: a driver that is refused sees its entry and nothing else.
[[maybe_unused]] void trap() { __builtin_trap(); }

cald_driver_table make_table() {
  cald_driver_table table{};
  table.struct_size = sizeof table;
  table.abi_version = CALD_ABI_VERSION;
  table.name = "broken";
  table.version = "1";
  const auto fill = [](auto& entry) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(trap);
  };
  fill(table.driver_open), fill(table.driver_close), fill(table.device_count);
  fill(table.device_enumerate), fill(table.device_open), fill(table.device_close);
  fill(table.device_info), fill(table.device_caps), fill(table.session_open);
  fill(table.session_close), fill(table.buffer_alloc), fill(table.buffer_free);
  fill(table.buffer_h2d), fill(table.buffer_d2h), fill(table.model_load);
  fill(table.model_unload), fill(table.model_info), fill(table.submit), fill(table.job_query);
  fill(table.job_wait), fill(table.job_destroy);
#if defined(WRONG_MAJOR)
  table.abi_version = (CALD_ABI_MAJOR + 1u) << 16;
#elif defined(MISSING_ENTRY)
  table.submit = nullptr;
#elif defined(SHORT_TABLE)
  table.struct_size = offsetof(cald_driver_table, job_wait);
#elif defined(NO_VERSION)
  table.struct_size = 4;
#endif
  return table;
}

}  // namespace

extern "C" CALD_EXPORT cald_status cald_driver_entry(const cald_host*, uint32_t,
                                                     const cald_driver_table** out) {
#if defined(THROWS)
  throw std::runtime_error("from the entry");
#elif defined(REFUSES)
  (void)out;
  return REFUSES;
#elif defined(NO_TABLE)
  (void)out;
  return CALD_OK;
#endif
  static const cald_driver_table table = make_table();
  *out = &table;
  return CALD_OK;
}

#endif
