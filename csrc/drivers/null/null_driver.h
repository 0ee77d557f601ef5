/* SPDX-License-Identifier: Apache-2.0
 * The null driver's own types: what the ABI's opaque handles are made of here. Rename and fill. */
#ifndef NULL_DRIVER_H
#define NULL_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "calrt/driver.h"

struct cald_driver {
  const cald_host* host; /* the one given to driver_open, valid as long as the driver */
};

/* null_trace.c. Jobs of any session write, trace_drain reads: the one place with a lock. */
typedef struct null_trace {
  atomic_bool on; /* asked by every job, so without the lock */
  pthread_mutex_t mutex;
  cald_trace_event* events; /* a ring */
  uint32_t capacity, first, count;
  uint64_t dropped, jobs;
} null_trace;

struct cald_device {
  cald_driver* driver;
  null_trace trace;
  atomic_bool session_open; /* there is one queue, open once at a time */
};

struct cald_session {
  cald_device* device;
};

struct cald_buffer {
  cald_device* device;
  void* data;
  uint64_t bytes;
  uint32_t domain;
  _Atomic uint64_t written_by; /* job_seq of the job that had it as an output last, 0 = none */
};

struct cald_model {
  cald_device* device;
  cald_model_info info; /* points into what follows */
  const cald_graph** graphs;
  uint32_t layers;
};

struct cald_binding_set {
  cald_model* model;
  uint32_t graph;
};

struct cald_job {
  cald_session* session;
  cald_timing timing;
  int32_t state;
};

/* ---- null_driver.c ---- */

/* Fills `err` (may be NULL) and returns `code`, so that a failure is one line. */
cald_status null_fail(cald_error* err, cald_status code, const char* where, const char* format,
                      ...);

/* Zeroed memory from the host, NULL when exhausted; freed by null_free. */
void* null_alloc(const cald_device* device, uint64_t bytes);
void null_free(const cald_device* device, void* pointer);
uint64_t null_now(const cald_device* device);

/* Copies a struct this driver filled to a caller whose version of it may be shorter or longer. */
void null_answer(void* out, const void* filled, size_t filled_bytes);

/* ---- null_buffer.c ---- */

cald_status null_buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                              cald_buffer** out, cald_error* err);
void null_buffer_free(cald_buffer* buffer);
cald_status null_buffer_map(cald_buffer* buffer, void** out, cald_error* err);
cald_status null_buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                            cald_error* err);
cald_status null_buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                            cald_error* err);
cald_status null_buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                              cald_error* err);
cald_status null_buffer_transfer(cald_transfer* transfer, cald_error* err);
cald_status null_buffer_state(cald_buffer* buffer, cald_buffer_state* out, cald_error* err);
/* Refuses, saying which role, unless every binding lies inside its buffer, and that is `device`'s.
 */
cald_status null_check_bindings(const cald_device* device, const cald_binding* bindings,
                                uint32_t n_bindings, const char* where, cald_error* err);

/* ---- null_model.c ---- */

cald_status null_model_footprint(cald_device* device, const cald_package* package,
                                 const cald_load_options* options, cald_footprint* out,
                                 cald_error* err);
cald_status null_model_load(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_model** out, cald_error* err);
void null_model_unload(cald_model* model);
cald_status null_model_info(cald_model* model, cald_model_info* out, cald_error* err);
cald_status null_kv_info(cald_model* model, cald_kv_info* out, cald_error* err);

/* ---- null_job.c ---- */

cald_status null_session_open(cald_device* device, uint32_t index, cald_session** out,
                              cald_error* err);
void null_session_close(cald_session* session);
cald_status null_binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                                  uint32_t n_bindings, cald_binding_set** out, cald_error* err);
void null_binding_set_free(cald_binding_set* set);
cald_status null_submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                        cald_error* err);
cald_status null_kv_submit(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                           cald_error* err);
cald_status null_job_query(cald_job* job, int32_t* state, cald_error* err);
cald_status null_job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err);
cald_status null_job_cancel(cald_job* job, cald_error* err);
cald_status null_job_timing(cald_job* job, cald_timing* out, cald_error* err);
void null_job_destroy(cald_job* job);
cald_status null_poll(cald_session* session, uint64_t now_ns, uint64_t* next_ns, cald_error* err);

/* ---- null_trace.c ---- */

int null_trace_init(null_trace* trace); /* 0 = OK, else errno */
void null_trace_fini(cald_device* device);
void null_trace_job(cald_device* device, uint64_t job_seq, uint64_t t_ns);
cald_status null_trace_start(cald_device* device, uint32_t capacity, cald_error* err);
cald_status null_trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                             cald_trace_info* info, cald_error* err);
cald_status null_trace_stop(cald_device* device, cald_error* err);

#endif
