// SPDX-License-Identifier: Apache-2.0
// Drivers that must not get past the loader; one library per macro, each wrong in one way.
#include <cstddef>
#include <stdexcept>

#include "calrt/driver.h"

#if !defined(NO_SYMBOL)

namespace {

// Never called: a driver that is refused sees its entry and nothing else.
[[maybe_unused]] void trap() { __builtin_trap(); }

int missing = -1;  // number of the entry that is NULL

cald_driver_table make_table() {
  cald_driver_table table{};
  table.struct_size = sizeof table;
  table.abi_version = CALD_ABI_VERSION;
  table.name = "broken";
  table.version = "1";
  int entry = 0;
#define CALD_ENTRY(name, need, minor, cls)                     \
  if (#need[0] == 'R' && entry != missing)                     \
    table.name = reinterpret_cast<decltype(table.name)>(trap); \
  ++entry;
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
#if defined(WRONG_MAJOR)
  table.abi_version = (CALD_ABI_MAJOR + 1u) << 16;
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
  static cald_driver_table table;
  table = make_table();
  *out = &table;
  return CALD_OK;
}

// Which entry the table lacks from now on, by its number in driver_entries.inc.
extern "C" CALD_EXPORT void broken_lacks(int entry) { missing = entry; }

#endif
