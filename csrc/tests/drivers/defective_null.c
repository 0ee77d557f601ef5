/* SPDX-License-Identifier: Apache-2.0
 * null, repaired: it refuses a load without lanes or cells, which the conformance kit knows it not
 * to do. To the kit that is a defect: its declaration is out of date. */
#include "drivers/null/null_driver.h"

cald_status null_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out);

static cald_status model_load(cald_device* device, const cald_package* package,
                              const cald_load_options* options, cald_model** out, cald_error* err) {
  if (options->lanes == 0 || options->lanes == UINT32_MAX || options->cells == 0)
    return null_fail(err, CALD_OUT_OF_RANGE, "model_load", "%u lanes of %u cells", options->lanes,
                     options->cells);
  return null_model_load(device, package, options, out, err);
}

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  static cald_driver_table table;
  const cald_driver_table* null_table = NULL;
  const cald_status status = null_driver_entry(host, abi_requested, &null_table);
  if (status != CALD_OK) return status;
  table = *null_table;
  table.model_load = model_load;
  *out = &table;
  return CALD_OK;
}
