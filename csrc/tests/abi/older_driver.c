/* SPDX-License-Identifier: Apache-2.0
 * A driver of ABI 0.1: built from the header as it was then, and from nothing newer. One device
 * with host memory; a job writes the number of its outputs' bytes over each of them, low byte. */
#include <stdlib.h>
#include <string.h>

#include "tests/abi/driver_0_1.h"

struct cald_driver {
  const cald_host* host;
};
struct cald_device {
  const cald_host* host;
};
struct cald_session {
  cald_device* device;
};
struct cald_buffer {
  cald_device* device;
  unsigned char* data;
};
struct cald_model {
  cald_model_info info;
};
struct cald_job {
  cald_timing timing;
};

/* Structs of the caller may be longer than they were in 0.1: only what it says is there is filled.
 */
static void give(void* out, const void* filled, size_t bytes) {
  uint32_t room = 0;
  memcpy(&room, out, sizeof room);
  memcpy(out, filled, room < bytes ? room : bytes);
  memcpy(out, &room, sizeof room);
}

static cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  (void)err;
  if (host->struct_size < sizeof(cald_host)) return CALD_VERSION_MISMATCH;
  *out = malloc(sizeof **out);
  (*out)->host = host;
  return CALD_OK;
}
static void driver_close(cald_driver* driver) { free(driver); }
static cald_status device_count(cald_driver* driver, uint32_t* out, cald_error* err) {
  (void)driver, (void)err;
  *out = 1;
  return CALD_OK;
}
static cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  (void)device, (void)err;
  const cald_device_info info = {.struct_size = sizeof info,
                                 .chips = 1,
                                 .name = "older",
                                 .device_class = "older",
                                 .runtime = "",
                                 .sessions = 1,
                                 .depth = 1,
                                 .queue = 8};
  give(out, &info, sizeof info);
  return CALD_OK;
}
static cald_status device_enumerate(cald_driver* driver, uint32_t index, cald_device_info* out,
                                    cald_error* err) {
  (void)driver, (void)index;
  return device_info(NULL, out, err);
}
static cald_status device_open(cald_driver* driver, const cald_device_options* options,
                               cald_device** out, cald_error* err) {
  (void)options, (void)err;
  *out = malloc(sizeof **out);
  (*out)->host = driver->host;
  return CALD_OK;
}
static void device_close(cald_device* device) { free(device); }
static cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count,
                               cald_error* err) {
  (void)device, (void)out, (void)err;
  *count = 0;
  return CALD_OK;
}
static cald_status session_open(cald_device* device, uint32_t index, cald_session** out,
                                cald_error* err) {
  (void)index, (void)err;
  *out = malloc(sizeof **out);
  (*out)->device = device;
  return CALD_OK;
}
static void session_close(cald_session* session) { free(session); }
static cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes,
                                uint64_t align, cald_buffer** out, cald_error* err) {
  (void)domain, (void)err;
  *out = malloc(sizeof **out);
  (*out)->device = device;
  (*out)->data = device->host->alloc(device->host->user, bytes, align);
  memset((*out)->data, 0, bytes);
  return CALD_OK;
}
static void buffer_free(cald_buffer* buffer) {
  if (buffer != NULL) buffer->device->host->free(buffer->device->host->user, buffer->data);
  free(buffer);
}
static cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  (void)err;
  *out = buffer->data;
  return CALD_OK;
}
static cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                              cald_error* err) {
  (void)err;
  memcpy(buffer->data + offset, src, bytes);
  return CALD_OK;
}
static cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                              cald_error* err) {
  (void)err;
  memcpy(dst, buffer->data + offset, bytes);
  return CALD_OK;
}
static cald_status model_load(cald_device* device, const cald_package* package,
                              const cald_load_options* options, cald_model** out, cald_error* err) {
  (void)device, (void)err;
  *out = calloc(1, sizeof **out);
  (*out)->info.struct_size = sizeof(cald_model_info);
  (*out)->info.n_graphs = package->n_graphs; /* static in the tests: need not be copied */
  (*out)->info.graphs = package->graphs;
  (*out)->info.lanes = options->lanes;
  (*out)->info.cells = options->cells;
  (*out)->info.vocab = package->arch->vocab;
  return CALD_OK;
}
static void model_unload(cald_model* model) { free(model); }
static cald_status model_info(cald_model* model, cald_model_info* out, cald_error* err) {
  (void)err;
  give(out, &model->info, sizeof model->info);
  return CALD_OK;
}
static cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                          cald_error* err) {
  (void)session, (void)err;
  for (uint32_t i = 0; i < desc->n_bindings; ++i) {
    const cald_binding* binding = &desc->bindings[i];
    if (binding->role >= CALD_ROLE_LOGITS)
      memset(binding->buffer->data + binding->offset, (int)(binding->bytes & 0xff), binding->bytes);
  }
  *out = calloc(1, sizeof **out);
  (*out)->timing.infer_ns = 1;
  const cald_completion done = {
      .struct_size = sizeof done, .state = CALD_JOB_DONE, .job_seq = desc->job_seq};
  if (desc->on_complete != NULL) desc->on_complete(desc->user, &done);
  return CALD_OK;
}
static cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  (void)job, (void)err;
  *state = CALD_JOB_DONE;
  return CALD_OK;
}
static cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  (void)job, (void)deadline_ns, (void)err;
  return CALD_OK;
}
static cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  (void)err;
  give(out, &job->timing, sizeof job->timing);
  return CALD_OK;
}
static void job_destroy(cald_job* job) { free(job); }

static const cald_driver_table kTable = {
    .struct_size = sizeof(cald_driver_table),
    .abi_version = CALD_ABI_VERSION,
    .name = "older",
    .version = "1",
    .driver_open = driver_open,
    .driver_close = driver_close,
    .device_count = device_count,
    .device_enumerate = device_enumerate,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .device_caps = device_caps,
    .session_open = session_open,
    .session_close = session_close,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_map = buffer_map,
    .buffer_h2d = buffer_h2d,
    .buffer_d2h = buffer_d2h,
    .model_load = model_load,
    .model_unload = model_unload,
    .model_info = model_info,
    .submit = submit,
    .job_query = job_query,
    .job_wait = job_wait,
    .job_timing = job_timing,
    .job_destroy = job_destroy,
};

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  (void)host;
  if (abi_requested >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  *out = &kTable;
  return CALD_OK;
}
