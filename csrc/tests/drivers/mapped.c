/* SPDX-License-Identifier: Apache-2.0
 * null with a vendor's status numbers: what an entry "got from the vendor" is set by the test and
 * told through the map of mapped-status-map.toml. */
#include <stddef.h>

#include "cald_status_map_rows.h"
#include "calrt/status_map.h"

cald_status null_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out);

/* 0 = as null does. */
CALD_EXPORT int64_t mapped_load, mapped_submit, mapped_complete;

static cald_driver_table table;
static const cald_driver_table* null_table;

static cald_status model_load(cald_device* device, const cald_package* package,
                              const cald_load_options* options, cald_model** out, cald_error* err) {
  if (mapped_load != 0)
    return cald_status_fail(&cald_native_map, mapped_load, "model_load", NULL, err);
  return null_table->model_load(device, package, options, out, err);
}

static const cald_job_desc* asked; /* one submit at a time in these tests */

static void complete(void* user, const cald_completion* completion) {
  cald_completion failed = *completion;
  failed.state = CALD_JOB_FAILED;
  cald_status_complete(&cald_native_map, mapped_complete, &failed);
  asked->on_complete(user, &failed);
}

static cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                          cald_error* err) {
  if (mapped_submit != 0)
    return cald_status_fail(&cald_native_map, mapped_submit, "submit", "the vendor said no", err);
  if (mapped_complete == 0) return null_table->submit(session, desc, out, err);
  cald_job_desc changed = *desc;
  changed.on_complete = complete;
  asked = desc;
  return null_table->submit(session, &changed, out, err);
}

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  const cald_status answered = null_driver_entry(host, abi_requested, &null_table);
  if (answered != CALD_OK) return answered;
  table = *null_table;
  table.name = "mapped";
  table.model_load = model_load;
  table.submit = submit;
  *out = &table;
  return CALD_OK;
}
