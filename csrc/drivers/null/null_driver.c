/* SPDX-License-Identifier: Apache-2.0
 * null: a driver that does nothing, correctly. It is the porting guide: copy this folder, rename,
 * fill in. README.md beside this file says in which order.
 *
 * It has one device with host memory, loads any package (its graphs as they are), ends each job at
 * once and writes nothing to the outputs. Every entry of the table is here, so that nothing has to
 * be looked up. Only driver.h is used.
 *
 * What holds for every entry below:
 *   - it returns a status, fills the caller's error, and never exits, aborts or throws;
 *   - calrt serialises the calls on one handle (except job_query, job_wait, job_cancel), so there
 *     is no lock here; calls on different handles do run at the same time;
 *   - calrt closes children before parents, so no handle counts its users. */
#include "null_driver.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- small tools -------------------------------------------------------------------------- */

cald_status null_fail(cald_error* err, cald_status code, const char* where, const char* format,
                      ...) {
  if (err != NULL) {
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    snprintf(err->where, sizeof err->where, "%s", where);
    err->code = code;
    err->native_code = 0; /* a real driver puts the vendor's number here */
  }
  return code;
}

void null_answer(void* out, const void* filled, size_t filled_bytes) {
  uint32_t room = 0; /* every such struct starts with its size, set by the caller */
  memcpy(&room, out, sizeof room);
  memcpy(out, filled, room < filled_bytes ? room : filled_bytes);
  memcpy(out, &room, sizeof room);
}

void* null_alloc(const cald_device* device, uint64_t bytes) {
  const cald_host* host = device->driver->host;
  void* memory = host->alloc(host->user, bytes, 64);
  if (memory != NULL) memset(memory, 0, bytes);
  return memory;
}

void null_free(const cald_device* device, void* pointer) {
  const cald_host* host = device->driver->host;
  host->free(host->user, pointer);
}

/* ---- driver ------------------------------------------------------------------------------- */

/* Here a vendor's runtime is initialised: once, however many devices follow. */
static cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  cald_driver* driver = host->alloc(host->user, sizeof *driver, 64);
  if (driver == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "driver_open", "no memory for the driver");
  driver->host = host;
  *out = driver;
  return CALD_OK;
}

static void driver_close(cald_driver* driver) {
  if (driver != NULL) driver->host->free(driver->host->user, driver);
}

static cald_status device_count(cald_driver* driver, uint32_t* out, cald_error* err) {
  (void)driver, (void)err;
  *out = 1;
  return CALD_OK;
}

/* Facts about the hardware. device_class is compared with a package's target: equal or refused. */
static const cald_device_info kInfo = {
    .struct_size = sizeof(cald_device_info),
    .chips = 1,
    .name = "null",
    .device_class = "null",
    .runtime = "",  /* the vendor runtime's version */
    .sessions = 1,  /* queues */
    .depth = 1,     /* jobs at once on a queue */
    .queue = 8,     /* jobs behind them; then submit answers QUEUE_FULL */
    .exclusive = 0, /* hardware that one process holds: 1 */
};

static cald_status device_enumerate(cald_driver* driver, uint32_t index, cald_device_info* out,
                                    cald_error* err) {
  (void)driver;
  if (index != 0)
    return null_fail(err, CALD_OUT_OF_RANGE, "device_enumerate", "index %u: there is 1 device",
                     index);
  null_answer(out, &kInfo, sizeof kInfo);
  return CALD_OK;
}

/* ---- device ------------------------------------------------------------------------------- */

static cald_status device_open(cald_driver* driver, const cald_device_options* options,
                               cald_device** out, cald_error* err) {
  if (options->index != 0)
    return null_fail(err, CALD_OUT_OF_RANGE, "device_open", "index %u: there is 1 device",
                     options->index);
  /* A setting that is not understood is refused: a typing error must not pass for a choice. */
  if (options->config[0] != '\0')
    return null_fail(err, CALD_INVALID_ARGUMENT, "device_open", "null has no configuration '%.64s'",
                     options->config);
  if (options->n_options != 0)
    return null_fail(err, CALD_INVALID_ARGUMENT, "device_open", "null has no option '%.64s'",
                     options->options[0].key);
  cald_device* device = driver->host->alloc(driver->host->user, sizeof *device, 64);
  if (device == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "device_open", "no memory for the device");
  device->driver = driver;
  *out = device;
  return CALD_OK;
}

static void device_close(cald_device* device) {
  if (device != NULL) null_free(device, device);
}

static cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  (void)device, (void)err;
  null_answer(out, &kInfo, sizeof kInfo);
  return CALD_OK;
}

/* What the device cannot tell is NaN, never a made-up 0. */
static cald_status device_health(cald_device* device, cald_health* out, cald_error* err) {
  (void)device, (void)err;
  const double unknown = (double)__builtin_nanf("");
  const cald_health health = {sizeof health, CALD_HEALTH_OK, unknown, unknown, unknown};
  null_answer(out, &health, sizeof health);
  return CALD_OK;
}

/* Capabilities with their evidence: level 0 is proven, 1 only declared by the vendor, and so on.
 * Never claim more than is known. */
static cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count,
                               cald_error* err) {
  (void)device, (void)err;
  static const cald_cap caps[] = {
      {sizeof(cald_cap), 0, "cancel", "null: jobs end at once, so there is nothing to cancel", 0},
      {sizeof(cald_cap), 0, "completion_callback", "null: called inside submit", 1},
  };
  const uint32_t have = sizeof caps / sizeof caps[0], room = out != NULL ? *count : 0;
  *count = have;
  for (uint32_t i = 0; i < have && i < room; ++i) null_answer(&out[i], &caps[i], sizeof caps[i]);
  return CALD_OK;
}

static cald_status device_counters(cald_device* device, cald_counter* out, uint32_t* count,
                                   cald_error* err) {
  (void)device, (void)out, (void)err;
  *count = 0;
  return CALD_OK;
}

static cald_status session_open(cald_device* device, uint32_t index, cald_session** out,
                                cald_error* err) {
  if (index != 0)
    return null_fail(err, CALD_OUT_OF_RANGE, "session_open", "session %u: there is 1", index);
  cald_session* session = null_alloc(device, sizeof *session);
  if (session == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "session_open", "no memory for the session");
  session->device = device;
  *out = session;
  return CALD_OK;
}

/* A real driver waits here for the running job and completes the queued ones as failed. */
static void session_close(cald_session* session) {
  if (session != NULL) null_free(session->device, session);
}

/* ---- buffers ------------------------------------------------------------------------------ */

static cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes,
                                uint64_t align, cald_buffer** out, cald_error* err) {
  if (domain != CALD_DOMAIN_HOST)
    return null_fail(err, CALD_UNSUPPORTED, "buffer_alloc", "domain %u: null has host memory (%u)",
                     domain, CALD_DOMAIN_HOST);
  const cald_host* host = device->driver->host;
  cald_buffer* buffer = null_alloc(device, sizeof *buffer);
  void* data = host->alloc(host->user, bytes, align);
  if (buffer == NULL || data == NULL) {
    host->free(host->user, data);
    host->free(host->user, buffer);
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "buffer_alloc", "no %llu bytes of host memory",
                     (unsigned long long)bytes);
  }
  memset(data, 0, bytes); /* another tenant's data must never show */
  buffer->device = device;
  buffer->data = data;
  buffer->bytes = bytes;
  buffer->domain = domain;
  *out = buffer;
  return CALD_OK;
}

static void buffer_free(cald_buffer* buffer) {
  if (buffer == NULL) return;
  null_free(buffer->device, buffer->data);
  null_free(buffer->device, buffer);
}

/* Only for memory the host can address; UNSUPPORTED for a device domain. */
static cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  (void)err;
  *out = buffer->data;
  return CALD_OK;
}

static int inside(const cald_buffer* buffer, uint64_t offset, uint64_t bytes) {
  return offset <= buffer->bytes && bytes <= buffer->bytes - offset; /* cannot overflow */
}

static cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                              cald_error* err) {
  if (!inside(buffer, offset, bytes))
    return null_fail(err, CALD_OUT_OF_RANGE, "buffer_h2d", "%llu bytes at %llu of a buffer of %llu",
                     (unsigned long long)bytes, (unsigned long long)offset,
                     (unsigned long long)buffer->bytes);
  memcpy((char*)buffer->data + offset, src, bytes);
  return CALD_OK;
}

static cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                              cald_error* err) {
  if (!inside(buffer, offset, bytes))
    return null_fail(err, CALD_OUT_OF_RANGE, "buffer_d2h", "%llu bytes at %llu of a buffer of %llu",
                     (unsigned long long)bytes, (unsigned long long)offset,
                     (unsigned long long)buffer->bytes);
  memcpy(dst, (const char*)buffer->data + offset, bytes);
  return CALD_OK;
}

/* ---- jobs --------------------------------------------------------------------------------- */

/* A real driver queues the job and returns; its own thread runs it: copy inputs in, infer, copy
 * outputs out, then on_complete exactly once, then the state that job_wait sees. The bindings array
 * is gone after this call (CALL), the buffers in it stay until the end (UNTIL_DONE). */
static cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                          cald_error* err) {
  if (desc->graph >= desc->model->info.n_graphs)
    return null_fail(err, CALD_OUT_OF_RANGE, "submit", "graph %u: the model has %u", desc->graph,
                     desc->model->info.n_graphs);
  for (uint32_t i = 0; i < desc->n_bindings; ++i) {
    const cald_binding* binding = &desc->bindings[i];
    if (!inside(binding->buffer, binding->offset, binding->bytes))
      return null_fail(err, CALD_OUT_OF_RANGE, "submit",
                       "role %d: %llu bytes at %llu of a buffer of %llu", binding->role,
                       (unsigned long long)binding->bytes, (unsigned long long)binding->offset,
                       (unsigned long long)binding->buffer->bytes);
  }
  cald_job* job = null_alloc(session->device, sizeof *job);
  if (job == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "submit", "no memory for the job");
  const cald_host* host = session->device->driver->host;
  job->session = session;
  job->timing.submitted_ns = host->now_ns(host->user);
  *out = job;
  if (desc->on_complete != NULL) { /* allowed before submit returns */
    const cald_completion done = {.struct_size = sizeof done,
                                  .state = CALD_JOB_DONE,
                                  .job_seq = desc->job_seq,
                                  .status = CALD_OK,
                                  .bytes_in = CALD_BYTES_UNKNOWN,
                                  .bytes_out = CALD_BYTES_UNKNOWN};
    desc->on_complete(desc->user, &done);
  }
  return CALD_OK;
}

/* For a job that failed, `err` says why and the return value is still OK. */
static cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  (void)job, (void)err;
  *state = CALD_JOB_DONE;
  return CALD_OK;
}

/* OK in any terminal state; WAIT_TIMEOUT at the deadline, which changes nothing. */
static cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  (void)job, (void)deadline_ns, (void)err;
  return CALD_OK;
}

static cald_status job_cancel(cald_job* job, cald_error* err) {
  (void)job, (void)err;
  return CALD_OK; /* it has ended already; a cancel of an ended job is no error */
}

static cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  (void)err;
  null_answer(out, &job->timing, sizeof job->timing);
  return CALD_OK;
}

static void job_destroy(cald_job* job) {
  if (job != NULL) null_free(job->session->device, job);
}

/* For devices that move only when told, on virtual time. Leave it NULL if the device has its own
 * threads or hardware; it is here because null has every entry. */
static cald_status poll(cald_session* session, uint64_t now_ns, uint64_t* next_ns,
                        cald_error* err) {
  (void)session, (void)now_ns, (void)err;
  *next_ns = CALD_NO_DEADLINE;
  return CALD_OK;
}

/* ---- the table ---------------------------------------------------------------------------- */

static const cald_driver_table kTable = {
    .struct_size = sizeof(cald_driver_table),
    .abi_version = CALD_ABI_VERSION,
    .name = "null", /* packages are made for a driver by this name */
    .version = "0.1.0",
    .driver_open = driver_open,
    .driver_close = driver_close,
    .device_count = device_count,
    .device_enumerate = device_enumerate,
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .device_health = device_health,
    .device_caps = device_caps,
    .device_counters = device_counters,
    .session_open = session_open,
    .session_close = session_close,
    .buffer_alloc = buffer_alloc,
    .buffer_free = buffer_free,
    .buffer_map = buffer_map,
    .buffer_h2d = buffer_h2d,
    .buffer_d2h = buffer_d2h,
    .model_footprint = null_model_footprint,
    .model_load = null_model_load,
    .model_unload = null_model_unload,
    .model_info = null_model_info,
    .submit = submit,
    .job_query = job_query,
    .job_wait = job_wait,
    .job_cancel = job_cancel,
    .job_timing = job_timing,
    .job_destroy = job_destroy,
    .poll = poll,
};

/* The only exported symbol. Another major of the ABI is another language: refuse it. */
cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  (void)host; /* for the handshake only; driver_open gives the one to keep */
  if (abi_requested >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  *out = &kTable;
  return CALD_OK;
}
