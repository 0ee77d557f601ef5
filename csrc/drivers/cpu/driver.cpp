// SPDX-License-Identifier: Apache-2.0
// The ABI table of libcald_cpu.so: each entry checks its handles, calls one function and turns its
// Result into a status.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "drivers/cpu/device.h"
#include "drivers/cpu/session.h"

namespace calrt::cpu {

cald_status report(const Error& error, const char* where, cald_error* err) {
  const auto code = static_cast<cald_status>(error.code);
  if (err == nullptr || err->struct_size < kLeastSize<cald_error>) return code;
  err->code = code;
  err->native_code = error.native_code;
  std::snprintf(err->message, sizeof err->message, "%s", error.message.c_str());
  std::snprintf(err->where, sizeof err->where, "%s", where);
  return code;
}

namespace {

constexpr uint64_t kLeastAlign = 64, kLargestAlign = uint64_t{1} << 21;
constexpr uint64_t kLargestBuffer = uint64_t{1} << 48;

Result<void> check_domain(uint32_t domain) {
  if (domain == CALD_DOMAIN_HOST) return {};
  return fail(Status::UNSUPPORTED, "memory domain %u: cpu has host memory (%d) only", domain,
              CALD_DOMAIN_HOST);
}

cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  return guarded("driver_open", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(out, "out"));
    *out = new cald_driver{host};
    return {};
  });
}

void driver_close(cald_driver* driver) { delete driver; }

cald_status device_count(cald_driver* driver, uint32_t* out, cald_error* err) {
  return guarded("device_count", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(driver, "driver"));
    *out = 1;
    return {};
  });
}

cald_status device_enumerate(cald_driver* driver, uint32_t index, cald_device_info* out,
                             cald_error* err) {
  return guarded("device_enumerate", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(driver, "driver"));
    CALRT_TRY(check_struct(out, "info"));
    if (index != 0)
      return fail(Status::OUT_OF_RANGE, "device index %u: cpu has one device, 0", index);
    describe_device(out);
    return {};
  });
}

cald_status device_open(cald_driver* driver, const cald_device_options* options, cald_device** out,
                        cald_error* err) {
  return guarded("device_open", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(driver, "driver"));
    CALRT_TRY(check_struct(options, "options"));
    CALRT_TRY_ASSIGN(auto device, open_device(driver, *options));
    *out = device.release();
    return {};
  });
}

void device_close(cald_device* device) { delete device; }

cald_status device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  return guarded("device_info", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "info"));
    describe_device(out);
    return {};
  });
}

cald_status device_topology(cald_device* device, cald_topology* out, cald_error* err) {
  return guarded("device_topology", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "topology"));
    describe_topology(out);
    return {};
  });
}

cald_status device_health(cald_device* device, cald_health* out, cald_error* err) {
  return guarded("device_health", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "health"));
    out->state = CALD_HEALTH_OK;
    out->temperature_c = out->power_w = out->clock_mhz = std::nan("");
    return {};
  });
}

cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count, cald_error* err) {
  return guarded("device_caps", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_handle(count, "count"));
    list_caps(out, count);
    return {};
  });
}

cald_status device_counters(cald_device* device, cald_counter* out, uint32_t* count,
                            cald_error* err) {
  return guarded("device_counters", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_handle(count, "count"));
    list_counters(*device, out, count);
    return {};
  });
}

cald_status session_open(cald_device* device, uint32_t index, cald_session** out, cald_error* err) {
  return guarded("session_open", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    if (index != 0) return fail(Status::OUT_OF_RANGE, "session %u: cpu has one queue, 0", index);
    if (device->session_open.exchange(true))
      return fail(Status::INVALID_STATE, "session 0 is already open");
    auto session = std::make_unique<cald_session>(device);
    if (Result<void> started = session->start(); !started.ok()) {
      device->session_open = false;
      return started;
    }
    *out = session.release();
    return {};
  });
}

void session_close(cald_session* session) {
  if (session == nullptr) return;
  cald_device* device = session->device();
  delete session;
  device->session_open = false;
}

cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                         cald_buffer** out, cald_error* err) {
  return guarded("buffer_alloc", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_domain(domain));
    if (align == 0 || (align & (align - 1)) != 0 || align > kLargestAlign)
      return fail(Status::INVALID_ARGUMENT, "align=%llu: a power of two up to %llu expected",
                  static_cast<unsigned long long>(align),
                  static_cast<unsigned long long>(kLargestAlign));
    if (bytes == 0 || bytes > kLargestBuffer)
      return fail(Status::OUT_OF_RANGE, "bytes=%llu: 1 to 2^48 expected",
                  static_cast<unsigned long long>(bytes));
    const uint64_t aligned = std::max(align, kLeastAlign);
    const uint64_t rounded = (bytes + aligned - 1) / aligned * aligned;
    auto buffer = std::make_unique<cald_buffer>();
    // Of the host's memory, which it may share with other processes.
    const cald_host& host = *device->driver->host;
    buffer->data = static_cast<unsigned char*>(host.alloc(host.user, rounded, aligned));
    if (buffer->data == nullptr)
      return fail(Status::OUT_OF_HOST_MEMORY,
                  "%llu bytes for a buffer: the system has no memory left",
                  static_cast<unsigned long long>(bytes));
    std::memset(buffer->data, 0, rounded);
    buffer->device = device;
    buffer->bytes = bytes;
    *out = buffer.release();
    return {};
  });
}

void buffer_free(cald_buffer* buffer) {
  if (buffer == nullptr) return;
  const cald_host& host = *buffer->device->driver->host;
  host.free(host.user, buffer->data);
  delete buffer;
}

cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  return guarded("buffer_map", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(buffer, "buffer"));
    *out = buffer->data;
    return {};
  });
}

Result<void> check_extent(const cald_buffer* buffer, uint64_t offset, uint64_t bytes) {
  CALRT_TRY(check_handle(buffer, "buffer"));
  if (bytes > buffer->bytes || offset > buffer->bytes - bytes)
    return fail(Status::OUT_OF_RANGE, "%llu bytes at %llu: the buffer has %llu",
                static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(offset),
                static_cast<unsigned long long>(buffer->bytes));
  return {};
}

cald_status buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                         cald_error* err) {
  return guarded("buffer_rules", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "rules"));
    CALRT_TRY(check_domain(domain));
    cald_buffer_rules rules{};
    rules.domain = domain;
    rules.align = kLeastAlign;
    rules.padding = 1;
    rules.max_bytes = kLargestBuffer;
    answer(out, rules);
    return {};
  });
}

cald_status buffer_transfer(cald_transfer* transfer, cald_error* err) {
  return guarded("buffer_transfer", err, [&]() -> Result<void> {
    CALRT_TRY(check_struct(transfer, "transfer"));
    transfer->moved = 0;
    CALRT_TRY(check_extent(transfer->buffer, transfer->offset, transfer->bytes));
    unsigned char* at = transfer->buffer->data + transfer->offset;
    if (transfer->direction == CALD_TO_DEVICE)
      std::memcpy(at, transfer->host, transfer->bytes);
    else if (transfer->direction == CALD_TO_HOST)
      std::memcpy(transfer->host, at, transfer->bytes);
    else
      return fail(Status::INVALID_ARGUMENT, "direction=%d: %d or %d expected", transfer->direction,
                  CALD_TO_DEVICE, CALD_TO_HOST);
    transfer->moved = transfer->bytes;
    return {};
  });
}

cald_status buffer_state(cald_buffer* buffer, cald_buffer_state* out, cald_error* err) {
  return guarded("buffer_state", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(buffer, "buffer"));
    CALRT_TRY(check_struct(out, "state"));
    const uint64_t both = buffer->output_state.load(std::memory_order_acquire);
    cald_buffer_state state{};
    state.state = static_cast<int32_t>(both & 3);
    state.job_seq = both >> 2;
    answer(out, state);
    return {};
  });
}

cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* err) {
  return guarded("buffer_h2d", err, [&]() -> Result<void> {
    CALRT_TRY(check_extent(buffer, offset, bytes));
    std::memcpy(buffer->data + offset, src, bytes);
    return {};
  });
}

cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* err) {
  return guarded("buffer_d2h", err, [&]() -> Result<void> {
    CALRT_TRY(check_extent(buffer, offset, bytes));
    std::memcpy(dst, buffer->data + offset, bytes);
    return {};
  });
}

cald_status model_footprint(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_footprint* out,
                            cald_error* err) {
  return guarded("model_footprint", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "footprint"));
    CALRT_TRY_ASSIGN(const LoadPlan plan, plan_load(*device, package, options));
    out->host_bytes = plan.weight_bytes() + plan.kv_bytes() + plan.scratch_bytes();
    out->device_bytes = 0;
    return {};
  });
}

cald_status model_load(cald_device* device, const cald_package* package,
                       const cald_load_options* options, cald_model** out, cald_error* err) {
  return guarded("model_load", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY_ASSIGN(auto model, cald_model::load(device, package, options));
    *out = model.release();
    return {};
  });
}

void model_unload(cald_model* model) { delete model; }

cald_status model_info(cald_model* model, cald_model_info* out, cald_error* err) {
  return guarded("model_info", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(model, "model"));
    CALRT_TRY(check_struct(out, "info"));
    model->describe(out);
    return {};
  });
}

cald_status kv_info(cald_model* model, cald_kv_info* out, cald_error* err) {
  return guarded("kv_info", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(model, "model"));
    CALRT_TRY(check_struct(out, "info"));
    const LoadPlan& plan = model->plan;
    cald_kv_info info{};
    info.ops = kKvOps;
    info.lanes = plan.lanes;
    info.cells = plan.cells;
    info.dtype = plan.kv_bf16 ? CALD_BF16 : CALD_F32;
    info.n_layers = plan.shape.layers;
    info.bytes_per_cell = kv_bytes_per_cell(plan);
    answer(out, info);
    return {};
  });
}

template <class Desc>
cald_status submit_to(const char* where, cald_session* session, const Desc* desc, cald_job** out,
                      cald_error* err) {
  return guarded(where, err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(session, "session"));
    CALRT_TRY(check_struct(desc, "desc"));
    // The handle first: once the job is queued nothing may fail any more.
    auto job = std::make_unique<cald_job>();
    CALRT_TRY_ASSIGN(job->state, session->submit(*desc));
    *out = job.release();
    return {};
  });
}

cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                   cald_error* err) {
  return submit_to("submit", session, desc, out, err);
}

cald_status kv_submit(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                      cald_error* err) {
  return submit_to("kv_submit", session, desc, out, err);
}

cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  return guarded("job_query", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    std::lock_guard lock(job->state->mutex);
    *state = job->state->state;
    if (*state == CALD_JOB_FAILED || *state == CALD_JOB_CANCELLED)
      report(job->state->error, "job", err);
    return {};
  });
}

cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  return guarded("job_wait", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    JobState& state = *job->state;
    std::unique_lock lock(state.mutex);
    const auto ended = [&] { return state.state >= CALD_JOB_DONE; };
    if (deadline_ns >= static_cast<uint64_t>(INT64_MAX)) {
      state.ended.wait(lock, ended);
      return {};
    }
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline_ns)};
    if (!state.ended.wait_until(lock, until, ended))
      return fail(Status::WAIT_TIMEOUT, "job %llu has not ended yet",
                  static_cast<unsigned long long>(state.job_seq));
    return {};
  });
}

cald_status job_cancel(cald_job* job, cald_error* err) {
  return guarded("job_cancel", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    {
      std::lock_guard lock(job->state->mutex);
      if (job->state->state >= CALD_JOB_DONE) return {};
    }
    job->state->session->cancel(*job->state);
    return {};
  });
}

cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  return guarded("job_timing", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    CALRT_TRY(check_struct(out, "timing"));
    std::lock_guard lock(job->state->mutex);
    const JobState& s = *job->state;
    const uint64_t began = s.started_ns != 0 ? s.started_ns : s.ended_ns;
    out->submitted_ns = s.submitted_ns;
    out->queue_ns = began != 0 ? began - s.submitted_ns : 0;
    out->h2d_ns = out->infer_ns = out->d2h_ns = 0;
    const uint64_t ran = s.started_ns != 0 && s.ended_ns != 0 ? s.ended_ns - s.started_ns : 0;
    (out->*s.work.stage()) = ran;
    return {};
  });
}

void job_destroy(cald_job* job) { delete job; }

cald_status trace_start(cald_device* device, uint32_t capacity, cald_error* err) {
  return guarded("trace_start", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    return device->trace.start(capacity);
  });
}

cald_status trace_drain(cald_device* device, cald_trace_event* out, uint32_t* count,
                        cald_trace_info* info, cald_error* err) {
  return guarded("trace_drain", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_handle(count, "count"));
    if (info != nullptr) {
      CALRT_TRY(check_struct(info, "info"));
      cald_trace_info now{};
      now.dropped = device->trace.dropped();
      now.device_ns = now.host_ns = device->driver->now_ns();  // one clock: residual 0
      answer(info, now);
    }
    *count = device->trace.drain(out, out == nullptr ? 0 : *count);
    return {};
  });
}

cald_status trace_stop(cald_device* device, cald_error* err) {
  return guarded("trace_stop", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    device->trace.stop();
    return {};
  });
}

const cald_driver_table kTable = {
    sizeof(cald_driver_table),
    CALD_ABI_VERSION,
    "cpu",
    "0.1.0",
    driver_open,
    driver_close,
    device_count,
    device_enumerate,
    device_open,
    device_close,
    device_info,
    device_health,
    device_caps,
    device_counters,
    session_open,
    session_close,
    buffer_alloc,
    buffer_free,
    buffer_map,
    buffer_h2d,
    buffer_d2h,
    model_footprint,
    model_load,
    model_unload,
    model_info,
    submit,
    job_query,
    job_wait,
    job_cancel,
    job_timing,
    job_destroy,
    nullptr,  // poll: this device runs on its own threads
    device_topology,
    buffer_rules,
    buffer_transfer,
    buffer_state,
    nullptr,  // binding_set_make: there is nothing to map once
    nullptr,  // binding_set_free
    kv_info,
    kv_submit,
    trace_start,
    trace_drain,
    trace_stop,
};

}  // namespace
}  // namespace calrt::cpu

extern "C" cald_status cald_driver_entry(const cald_host*, uint32_t abi_requested,
                                         const cald_driver_table** out) {
  if (abi_requested >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  if (out == nullptr) return CALD_INVALID_ARGUMENT;
  *out = &calrt::cpu::kTable;
  return CALD_OK;
}
