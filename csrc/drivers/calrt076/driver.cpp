// SPDX-License-Identifier: Apache-2.0
// The ABI table of libcald_calrt076.so: each entry checks its handles, calls one function and turns
// its Result into a status.
#include "drivers/calrt076/session.h"

namespace calrt::calrt076 {
namespace {

cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  return guarded("driver_open", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(out, "out"));
    CALRT_TRY_ASSIGN(Runtime runtime, Runtime::start());
    *out = new cald_driver{host, std::move(runtime)};
    return {};
  });
}

void driver_close(cald_driver* driver) { delete driver; }

cald_status device_count(cald_driver* driver, uint32_t* out, cald_error* err) {
  return guarded("device_count", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(driver, "driver"));
    return told(sdk::count(out), "counting devices");
  });
}

cald_status device_enumerate(cald_driver* driver, uint32_t index, cald_device_info* out,
                             cald_error* err) {
  return guarded("device_enumerate", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(driver, "driver"));
    CALRT_TRY(check_struct(out, "info"));
    uint32_t count = 0;
    CALRT_TRY(told(sdk::count(&count), "counting devices"));
    if (index >= count)
      return fail(Status::OUT_OF_RANGE, "device index %u: there are %u", index, count);
    return describe_device(nullptr, out);
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
    return describe_device(device, out);
  });
}

cald_status device_topology(cald_device* device, cald_topology* out, cald_error* err) {
  return guarded("device_topology", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "topology"));
    describe_topology(*device, out);
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
    if (index != 0)
      return fail(Status::OUT_OF_RANGE, "session %u: calrt076 has one queue, 0", index);
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
    CALRT_TRY_ASSIGN(*out, alloc_buffer(device, bytes, align));
    return {};
  });
}

void buffer_free(cald_buffer* buffer) { free_buffer(buffer); }

cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  return guarded("buffer_map", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(buffer, "buffer"));
    *out = buffer->data;
    return {};
  });
}

cald_status buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                         cald_error* err) {
  return guarded("buffer_rules", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "rules"));
    CALRT_TRY(check_domain(domain));
    describe_rules(out);
    return {};
  });
}

cald_status buffer_transfer(cald_transfer* moved, cald_error* err) {
  return guarded("buffer_transfer", err, [&] { return transfer(moved); });
}

cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* err) {
  return guarded("buffer_h2d", err, [&]() -> Result<void> {
    cald_transfer move{sizeof(cald_transfer),  CALD_TO_DEVICE, buffer, offset,
                       const_cast<void*>(src), bytes,          0};
    return transfer(&move);
  });
}

cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* err) {
  return guarded("buffer_d2h", err, [&]() -> Result<void> {
    cald_transfer move{sizeof(cald_transfer), CALD_TO_HOST, buffer, offset, dst, bytes, 0};
    return transfer(&move);
  });
}

cald_status buffer_state(cald_buffer* buffer, cald_buffer_state* out, cald_error* err) {
  return guarded("buffer_state", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(buffer, "buffer"));
    CALRT_TRY(check_struct(out, "state"));
    describe_state(buffer, out);
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

cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                   cald_error* err) {
  return guarded("submit", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(session, "session"));
    CALRT_TRY(check_struct(desc, "desc"));
    auto handle = std::make_unique<cald_job>();  // before the job is accepted: this can fail
    CALRT_TRY_ASSIGN(handle->job, session->submit(*desc));
    handle->session = session;
    *out = handle.release();
    return {};
  });
}

// The query itself succeeds; `err` says why a job failed.
cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  return guarded("job_query", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    const Result<void> end = job->job->query(state);
    if (!end.ok()) (void)report(end.error(), "job", err);
    return {};
  });
}

cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  return guarded("job_wait", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    return job->job->wait(deadline_ns);
  });
}

cald_status job_cancel(cald_job* job, cald_error* err) {
  return guarded("job_cancel", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    int32_t state = 0;
    (void)job->job->query(&state);
    if (state < CALD_JOB_DONE) job->session->cancel(*job->job);
    return {};
  });
}

cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  return guarded("job_timing", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    CALRT_TRY(check_struct(out, "timing"));
    job->job->describe(out);
    return {};
  });
}

void job_destroy(cald_job* job) { delete job; }

const cald_driver_table kTable = [] {
  cald_driver_table table{};
  table.struct_size = sizeof table;
  table.abi_version = CALD_ABI_VERSION;
  table.name = "calrt076";
  table.version = "0.1.0";
#define ENTRY(name) table.name = name
  ENTRY(driver_open), ENTRY(driver_close), ENTRY(device_count), ENTRY(device_enumerate);
  ENTRY(device_open), ENTRY(device_close), ENTRY(device_info), ENTRY(device_topology);
  ENTRY(device_caps), ENTRY(device_counters), ENTRY(session_open), ENTRY(session_close);
  ENTRY(buffer_alloc), ENTRY(buffer_free), ENTRY(buffer_map), ENTRY(buffer_h2d);
  ENTRY(buffer_d2h), ENTRY(buffer_transfer), ENTRY(buffer_rules), ENTRY(buffer_state);
  ENTRY(model_load), ENTRY(model_unload), ENTRY(model_info), ENTRY(submit);
  ENTRY(job_query), ENTRY(job_wait), ENTRY(job_cancel), ENTRY(job_timing), ENTRY(job_destroy);
#undef ENTRY
  return table;
}();

}  // namespace
}  // namespace calrt::calrt076

extern "C" cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                                         const cald_driver_table** out) {
  (void)host;  // for the handshake only; driver_open gives the one to keep
  if (abi_requested >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  *out = &calrt::calrt076::kTable;
  return CALD_OK;
}
