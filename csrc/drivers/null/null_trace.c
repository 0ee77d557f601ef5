/* SPDX-License-Identifier: Apache-2.0
 * null's trace: the last `capacity` events, and how many did not fit. A device that traces itself
 * fills such a ring from its own records; without any, leave the three entries NULL. */
#include "null_driver.h"

enum { kMostEvents = 1 << 20 }; /* 48 MiB: a bound of this driver's, told in the refusal */

int null_trace_init(null_trace* trace) { return pthread_mutex_init(&trace->mutex, NULL); }

void null_trace_fini(cald_device* device) {
  null_free(device, device->trace.events);
  pthread_mutex_destroy(&device->trace.mutex);
}

/* A real driver writes a BEGIN and an END for each stage of a job, on one track per engine. A job
 * of null takes no time: one event, the running number of jobs. */
void null_trace_job(cald_device* device, uint64_t job_seq, uint64_t t_ns) {
  null_trace* trace = &device->trace;
  if (!atomic_load_explicit(&trace->on, memory_order_relaxed)) return;
  pthread_mutex_lock(&trace->mutex);
  ++trace->jobs;
  if (trace->count == trace->capacity) {
    ++trace->dropped; /* what is kept stays in one piece; the newest is what gets lost */
  } else {
    const cald_trace_event event = {.t_ns = t_ns,
                                    .id = job_seq,
                                    .name = "jobs", /* lives as long as the driver */
                                    .phase = CALD_TRACE_COUNTER,
                                    .value = (int64_t)trace->jobs};
    trace->events[(trace->first + trace->count++) % trace->capacity] = event;
  }
  pthread_mutex_unlock(&trace->mutex);
}

/* Begins anew each time: no event and no count of the last trace is left. */
cald_status null_trace_start(cald_device* device, uint32_t capacity, cald_error* err) {
  null_trace* trace = &device->trace;
  if (capacity == 0 || capacity > kMostEvents)
    return null_fail(err, CALD_OUT_OF_RANGE, "trace_start", "capacity %u: 1 to %d events", capacity,
                     kMostEvents);
  cald_trace_event* events = null_alloc(device, capacity * sizeof *events);
  if (events == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "trace_start", "no memory for %u events",
                     capacity);
  pthread_mutex_lock(&trace->mutex);
  cald_trace_event* old = trace->events;
  trace->events = events;
  trace->capacity = capacity;
  trace->first = trace->count = 0;
  trace->dropped = trace->jobs = 0;
  atomic_store_explicit(&trace->on, 1, memory_order_relaxed);
  pthread_mutex_unlock(&trace->mutex);
  null_free(device, old);
  return CALD_OK;
}

/* Works after trace_stop too, so that nothing recorded is lost. */
cald_status null_trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                             cald_trace_info* info, cald_error* err) {
  (void)err;
  null_trace* trace = &device->trace;
  const uint32_t room = out != NULL ? *count : 0;
  pthread_mutex_lock(&trace->mutex);
  const uint32_t n = trace->count < room ? trace->count : room;
  for (uint32_t i = 0; i < n; ++i) out[i] = trace->events[(trace->first + i) % trace->capacity];
  if (n != 0) trace->first = (trace->first + n) % trace->capacity;
  trace->count -= n;
  const uint64_t dropped = trace->dropped;
  pthread_mutex_unlock(&trace->mutex);
  *count = n;
  if (info != NULL) {
    /* null's clock is the host's. A device with a clock of its own reads the host's before and
     * after its own and gives half the distance as the residual. */
    const uint64_t now = null_now(device);
    const cald_trace_info answer = {.struct_size = sizeof answer,
                                    .dropped = dropped,
                                    .device_ns = now,
                                    .host_ns = now,
                                    .residual_ns = 0};
    null_answer(info, &answer, sizeof answer);
  }
  return CALD_OK;
}

cald_status null_trace_stop(cald_device* device, cald_error* err) {
  (void)err;
  atomic_store_explicit(&device->trace.on, 0, memory_order_relaxed);
  return CALD_OK;
}
