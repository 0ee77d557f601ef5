/* SPDX-License-Identifier: Apache-2.0
 * The null driver's own types: what the ABI's opaque handles are made of here. Rename and fill. */
#ifndef NULL_DRIVER_H
#define NULL_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "calrt/driver.h"

struct cald_driver {
  const cald_host* host; /* the one given to driver_open, valid as long as the driver */
};

struct cald_device {
  cald_driver* driver;
};

struct cald_session {
  cald_device* device;
};

struct cald_buffer {
  cald_device* device;
  void* data;
  uint64_t bytes;
  uint32_t domain;
};

struct cald_model {
  cald_device* device;
  cald_model_info info; /* points into what follows */
  const cald_graph** graphs;
};

struct cald_job {
  cald_session* session;
  cald_timing timing;
};

/* Fills `err` (may be NULL) and returns `code`, so that a failure is one line. */
cald_status null_fail(cald_error* err, cald_status code, const char* where, const char* format,
                      ...);

/* Zeroed memory from the host, NULL when exhausted; freed by null_free. */
void* null_alloc(const cald_device* device, uint64_t bytes);
void null_free(const cald_device* device, void* pointer);

/* Copies a struct this driver filled to a caller whose version of it may be shorter or longer. */
void null_answer(void* out, const void* filled, size_t filled_bytes);

/* null_model.c */
cald_status null_model_footprint(cald_device* device, const cald_package* package,
                                 const cald_load_options* options, cald_footprint* out,
                                 cald_error* err);
cald_status null_model_load(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_model** out, cald_error* err);
void null_model_unload(cald_model* model);
cald_status null_model_info(cald_model* model, cald_model_info* out, cald_error* err);

#endif
