/* SPDX-License-Identifier: Apache-2.0
 * null with a trace of begins and ends on a clock of its own, which is ahead, runs fast, and can be
 * read only roughly. */
#include "tests/drivers/skewed.h"

#include <pthread.h>
#include <time.h>

#include "calrt/driver.h"

cald_status null_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out);

enum { kEvents = 1 << 16 };

static cald_driver_table table;
static const cald_driver_table* null_table;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static cald_trace_event events[kEvents];
static uint32_t capacity, first, used;
static uint64_t dropped, readings;

static uint64_t host_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t device_time(uint64_t host_ns) {
  return host_ns + host_ns / 1000000 * SKEWED_DRIFT_PPM + SKEWED_OFFSET_NS;
}

static void add(const char* name, int32_t phase, uint32_t track, uint64_t job_seq, uint64_t t_ns) {
  if (used == capacity) {
    ++dropped;
    return;
  }
  const cald_trace_event event = {device_time(t_ns), job_seq, name, phase, track, (int64_t)job_seq};
  events[(first + used++) % kEvents] = event;
}

static cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                          cald_error* err) {
  const uint64_t begun = host_now();
  const cald_status answered = null_table->submit(session, desc, out, err);
  const uint64_t ended = host_now();
  const uint64_t middle = begun + (ended - begun) / 2;
  if (answered != CALD_OK) return answered;
  pthread_mutex_lock(&mutex);
  add("job", CALD_TRACE_BEGIN, 0, desc->job_seq, begun);
  add("infer", CALD_TRACE_BEGIN, 0, desc->job_seq, middle);
  add("infer", CALD_TRACE_END, 0, desc->job_seq, ended);
  add("job", CALD_TRACE_END, 0, desc->job_seq, ended);
  add("jobs", CALD_TRACE_COUNTER, 1, 0, ended);
  pthread_mutex_unlock(&mutex);
  return answered;
}

static cald_status trace_start(cald_device* device, uint32_t wanted, cald_error* err) {
  (void)device, (void)err;
  pthread_mutex_lock(&mutex);
  capacity = wanted < kEvents ? wanted : kEvents;
  first = used = 0;
  dropped = 0;
  pthread_mutex_unlock(&mutex);
  return CALD_OK;
}

static cald_status trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                               cald_trace_info* info, cald_error* err) {
  (void)device, (void)err;
  pthread_mutex_lock(&mutex);
  const uint32_t room = out != NULL ? *count : 0, n = used < room ? used : room;
  for (uint32_t i = 0; i < n; ++i) out[i] = events[(first + i) % kEvents];
  first = (first + n) % kEvents;
  used -= n;
  *count = n;
  if (info != NULL) {
    /* The error of a reading goes back and forth between both ends of what is stated. */
    const uint64_t now = host_now();
    const int64_t error = ++readings % 2 ? SKEWED_RESIDUAL_NS : -SKEWED_RESIDUAL_NS;
    info->dropped = dropped;
    info->host_ns = now;
    info->device_ns = device_time(now) + (uint64_t)(error / 2);
    info->residual_ns = SKEWED_RESIDUAL_NS;
  }
  pthread_mutex_unlock(&mutex);
  return CALD_OK;
}

static cald_status trace_stop(cald_device* device, cald_error* err) {
  (void)device, (void)err;
  return CALD_OK;
}

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  const cald_status answered = null_driver_entry(host, abi_requested, &null_table);
  if (answered != CALD_OK) return answered;
  table = *null_table;
  table.name = "skewed";
  table.submit = submit;
  table.trace_start = trace_start;
  table.trace_drain = trace_drain;
  table.trace_stop = trace_stop;
  *out = &table;
  return CALD_OK;
}
