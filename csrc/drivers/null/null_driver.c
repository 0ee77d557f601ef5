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
 *   - calrt serialises the calls on one handle (except job_query, job_wait, job_cancel); calls on
 *     different handles do run at the same time, so what two handles share is atomic or locked;
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
    err->native_code = 0; /* a real driver puts the vendor's number here; calrt/status_map.h */
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
  void* memory = host->alloc(host->user, bytes, 16);
  if (memory != NULL) memset(memory, 0, bytes);
  return memory;
}

void null_free(const cald_device* device, void* pointer) {
  const cald_host* host = device->driver->host;
  host->free(host->user, pointer);
}

uint64_t null_now(const cald_device* device) {
  const cald_host* host = device->driver->host;
  return host->now_ns(host->user);
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
    .id = "null:0", /* the same in every process and after a restart, e.g. a bus address */
    .domains = CALD_DOMAIN_HOST,
    .completion = CALD_COMPLETION_CALLBACK, /* only a blocking wait: CALD_COMPLETION_WAIT */
    .clock = CALD_CLOCK_REAL,
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
  memset(device, 0, sizeof *device);
  device->driver = driver;
  if (null_trace_init(&device->trace) != 0) {
    null_free(device, device);
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "device_open", "no lock for the trace");
  }
  *out = device;
  return CALD_OK;
}

static void device_close(cald_device* device) {
  if (device == NULL) return;
  null_trace_fini(device);
  null_free(device, device);
}

static cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  (void)device, (void)err;
  null_answer(out, &kInfo, sizeof kInfo);
  return CALD_OK;
}

/* What the device is made of, and with it what a load may ask for: calrt refuses a `parallel` that
 * is not among the modes, or a `placement` that is not among the placements, by name. A package
 * over two chips would have modes {"none", "tensor"} and placements {"chip:0", "chip:1",
 * "chips:0+1"}, and links with their rates. Lists and strings live as long as the device. */
static cald_status device_topology(cald_device* device, cald_topology* out, cald_error* err) {
  (void)device, (void)err;
  static const cald_chip chip = {.struct_size = sizeof chip, .index = 0, .name = "null"};
  static const cald_chip* const chips[] = {&chip};
  static const uint64_t session_chips[] = {1}; /* session 0 runs on chip 0 */
  static const char* const modes[] = {"none"};
  static const char* const placements[] = {"any"};
  static const cald_topology topology = {
      .struct_size = sizeof topology,
      .n_chips = 1,
      .chips = chips,
      .n_sessions = 1,
      .session_chips = session_chips,
      .n_modes = 1,
      .n_placements = 1,
      .modes = modes,
      .placements = placements,
  };
  null_answer(out, &topology, sizeof topology);
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
    .session_open = null_session_open,
    .session_close = null_session_close,
    .buffer_alloc = null_buffer_alloc,
    .buffer_free = null_buffer_free,
    .buffer_map = null_buffer_map,
    .buffer_h2d = null_buffer_h2d,
    .buffer_d2h = null_buffer_d2h,
    .model_footprint = null_model_footprint,
    .model_load = null_model_load,
    .model_unload = null_model_unload,
    .model_info = null_model_info,
    .submit = null_submit,
    .job_query = null_job_query,
    .job_wait = null_job_wait,
    .job_cancel = null_job_cancel,
    .job_timing = null_job_timing,
    .job_destroy = null_job_destroy,
    .poll = null_poll,
    .device_topology = device_topology,
    .buffer_rules = null_buffer_rules,
    .buffer_transfer = null_buffer_transfer,
    .buffer_state = null_buffer_state,
    .binding_set_make = null_binding_set_make,
    .binding_set_free = null_binding_set_free,
    .kv_info = null_kv_info,
    .kv_submit = null_kv_submit,
    .trace_start = null_trace_start,
    .trace_drain = null_trace_drain,
    .trace_stop = null_trace_stop,
};

/* The only exported symbol. Another major of the ABI is another language: refuse it. */
cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  (void)host; /* for the handshake only; driver_open gives the one to keep */
  if (abi_requested >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  *out = &kTable;
  return CALD_OK;
}
