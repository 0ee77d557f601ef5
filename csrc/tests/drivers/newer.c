/* SPDX-License-Identifier: Apache-2.0
 * A driver of ABI 1.10: null with longer structs, a longer table, and an entry calrt never heard
 * of. */
#include <string.h>

#include "tests/abi/driver_1_10.h"

cald_status null_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out);
void null_answer(void* out, const void* filled, size_t filled_bytes);

static const cald_driver_table* null_table;

static cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  if (host->struct_size >= sizeof(newer_host)) return CALD_INTERNAL; /* calrt's is of 1.0 */
  return null_table->driver_open(host, out, err);
}

static cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  newer_device_info info;
  memset(&info, 0xee, sizeof info);
  info.info.struct_size = sizeof info.info;
  const cald_status status = null_table->device_info(device, &info.info, err);
  null_answer(out, &info, sizeof info);
  return status;
}

/* null tells within submit, so what it is to be told to may wait here. */
static _Thread_local const cald_job_desc* asked;
static void tell(void* user, const cald_completion* told) {
  newer_completion longer;
  memset(&longer, 0xee, sizeof longer);
  longer.completion = *told;
  longer.completion.struct_size = sizeof longer;
  asked->on_complete(user, &longer.completion);
}
static cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                          cald_error* err) {
  cald_job_desc copy = *desc;
  copy.on_complete = tell;
  asked = desc;
  return null_table->submit(session, &copy, out, err);
}

static cald_status newer(cald_device* device, cald_error* err) {
  (void)device, (void)err;
  return CALD_INTERNAL;
}

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  static newer_driver_table longer;
  const cald_status status = null_driver_entry(host, abi_requested, &null_table);
  if (status != CALD_OK) return status;
  longer.table = *null_table;
  longer.table.struct_size = sizeof longer;
  longer.table.abi_version = NEWER_ABI_VERSION;
  longer.table.name = "newer";
  longer.table.driver_open = driver_open;
  longer.table.device_info = device_info;
  longer.table.submit = submit;
  longer.newer = newer;
  *out = &longer.table;
  return CALD_OK;
}
