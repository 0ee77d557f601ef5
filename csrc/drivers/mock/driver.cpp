// SPDX-License-Identifier: Apache-2.0
// The ABI table of libcald_mock.so: each entry checks its handles, calls one function and turns its
// Result into a status.
#include <cmath>

#include "drivers/mock/session.h"

namespace calrt::mock {
namespace {

// ---- driver and device --------------------------------------------------------------------------

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
      return fail(Status::OUT_OF_RANGE, "device index %u: mock has one device, 0", index);
    CALRT_TRY_ASSIGN(const Preset* preset, find_preset(""));
    answer(out, describe_device(nullptr, *preset));
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
    answer(out, describe_device(device, *device->preset));
    return {};
  });
}

cald_status device_topology(cald_device* device, cald_topology* out, cald_error* err) {
  return guarded("device_topology", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "topology"));
    answer(out, describe_topology(*device->preset));
    return {};
  });
}

cald_status device_health(cald_device* device, cald_health* out, cald_error* err) {
  return guarded("device_health", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "health"));
    const double unknown = std::nan("");
    answer(out, cald_health{sizeof(cald_health), CALD_HEALTH_OK, unknown, unknown, unknown});
    return {};
  });
}

cald_status device_caps(cald_device* device, cald_cap* out, uint32_t* count, cald_error* err) {
  return guarded("device_caps", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_handle(count, "count"));
    list_caps(*device, out, count);
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
      answer(info, read_clocks(*device));
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

// ---- buffers ------------------------------------------------------------------------------------

cald_status buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                         cald_error* err) {
  return guarded("buffer_rules", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "rules"));
    CALRT_TRY_ASSIGN(const cald_buffer_rules rules, rules_of(*device, domain));
    answer(out, rules);
    return {};
  });
}

cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                         cald_buffer** out, cald_error* err) {
  return guarded("buffer_alloc", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY_ASSIGN(auto buffer, make_buffer(device, domain, bytes, align));
    *out = buffer.release();
    return {};
  });
}

void buffer_free(cald_buffer* buffer) { delete buffer; }

cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  return guarded("buffer_map", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(buffer, "buffer"));
    CALRT_TRY_ASSIGN(*out, map_buffer(*buffer));
    return {};
  });
}

cald_status buffer_transfer(cald_transfer* what, cald_error* err) {
  return guarded("buffer_transfer", err, [&]() -> Result<void> {
    CALRT_TRY(check_struct(what, "transfer"));
    return transfer(what);
  });
}

cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* err) {
  return guarded("buffer_h2d", err, [&]() -> Result<void> {
    cald_transfer what{
        sizeof what, CALD_TO_DEVICE, buffer, offset, const_cast<void*>(src), bytes, 0};
    return transfer(&what);
  });
}

cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* err) {
  return guarded("buffer_d2h", err, [&]() -> Result<void> {
    cald_transfer what{sizeof what, CALD_TO_HOST, buffer, offset, dst, bytes, 0};
    return transfer(&what);
  });
}

cald_status buffer_state(cald_buffer* buffer, cald_buffer_state* out, cald_error* err) {
  return guarded("buffer_state", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(buffer, "buffer"));
    CALRT_TRY(check_struct(out, "state"));
    answer(out, state_of(*buffer));
    return {};
  });
}

// ---- models -------------------------------------------------------------------------------------

cald_status model_footprint(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_footprint* out,
                            cald_error* err) {
  return guarded("model_footprint", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    CALRT_TRY(check_struct(out, "footprint"));
    CALRT_TRY_ASSIGN(const LoadPlan plan, plan_load(*device, package, options));
    answer(out, cald_footprint{sizeof(cald_footprint), 0, plan.host_bytes(), plan.device_bytes()});
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
    answer(out, model->describe());
    return {};
  });
}

cald_status kv_info(cald_model* model, cald_kv_info* out, cald_error* err) {
  return guarded("kv_info", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(model, "model"));
    CALRT_TRY(check_struct(out, "info"));
    answer(out, model->describe_kv());
    return {};
  });
}

cald_status binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                             uint32_t n_bindings, cald_binding_set** out, cald_error* err) {
  return guarded("binding_set_make", err, [&]() -> Result<void> {
    CALRT_TRY_ASSIGN(auto set, make_binding_set(model, graph, bindings, n_bindings));
    *out = set.release();
    return {};
  });
}

void binding_set_free(cald_binding_set* set) { delete set; }

// ---- sessions and jobs --------------------------------------------------------------------------

cald_status session_open(cald_device* device, uint32_t index, cald_session** out, cald_error* err) {
  return guarded("session_open", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(device, "device"));
    const size_t have = device->preset->session_chips.size();
    if (index >= have)
      return fail(Status::OUT_OF_RANGE, "session %u: %s has %zu", index,
                  device->preset->device_class, have);
    auto session = std::make_unique<cald_session>(device, index);
    if (device->session_open[index].exchange(true))
      return fail(Status::INVALID_STATE, "session %u is already open", index);
    if (Result<void> started = session->start(); !started.ok()) {
      device->session_open[index] = false;
      return started;
    }
    *out = session.release();
    return {};
  });
}

void session_close(cald_session* session) {
  if (session == nullptr) return;
  std::atomic<bool>& open = session->device()->session_open[session->index()];
  delete session;
  open = false;
}

// The handle first: once the job is queued nothing may fail any more.
Result<void> submit_work(cald_session* session, std::unique_ptr<Work> work, const Terms& terms,
                         cald_job** out) {
  auto job = std::make_unique<cald_job>();
  CALRT_TRY_ASSIGN(job->job, session->submit(std::move(work), terms));
  *out = job.release();
  return {};
}

cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                   cald_error* err) {
  return guarded("submit", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(session, "session"));
    CALRT_TRY(check_struct(desc, "desc"));
    const cald_job_desc asked = taken(*desc);
    CALRT_TRY_ASSIGN(auto work, make_graph_work(*session->device(), asked));
    return submit_work(session, std::move(work),
                       {asked.job_seq, asked.deadline_ns, asked.on_complete, asked.user}, out);
  });
}

cald_status kv_submit(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                      cald_error* err) {
  return guarded("kv_submit", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(session, "session"));
    CALRT_TRY(check_struct(desc, "desc"));
    CALRT_TRY_ASSIGN(auto work, make_kv_work(*session->device(), taken(*desc)));
    return submit_work(session, std::move(work),
                       {desc->job_seq, desc->deadline_ns, desc->on_complete, desc->user}, out);
  });
}

cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  return guarded("job_query", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    query(*job->job, state, err);
    return {};
  });
}

cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  return guarded("job_wait", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    return wait(*job->job, deadline_ns);
  });
}

cald_status job_cancel(cald_job* job, cald_error* err) {
  return guarded("job_cancel", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    return cancel(job->job);
  });
}

cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  return guarded("job_timing", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(job, "job"));
    CALRT_TRY(check_struct(out, "timing"));
    answer(out, timing_of(*job->job));
    return {};
  });
}

void job_destroy(cald_job* job) { delete job; }

cald_status poll(cald_session* session, uint64_t now_ns, uint64_t* next_ns, cald_error* err) {
  return guarded("poll", err, [&]() -> Result<void> {
    CALRT_TRY(check_handle(session, "session"));
    CALRT_TRY_ASSIGN(*next_ns, session->poll(now_ns));
    return {};
  });
}

// ---- the table ----------------------------------------------------------------------------------

const cald_driver_table kTable = {
    .struct_size = sizeof(cald_driver_table),
    .abi_version = CALD_ABI_VERSION,
    .name = "mock",
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
    .model_footprint = model_footprint,
    .model_load = model_load,
    .model_unload = model_unload,
    .model_info = model_info,
    .submit = submit,
    .job_query = job_query,
    .job_wait = job_wait,
    .job_cancel = job_cancel,
    .job_timing = job_timing,
    .job_destroy = job_destroy,
    .poll = poll,
    .device_topology = device_topology,
    .buffer_rules = buffer_rules,
    .buffer_transfer = buffer_transfer,
    .buffer_state = buffer_state,
    .binding_set_make = binding_set_make,
    .binding_set_free = binding_set_free,
    .kv_info = kv_info,
    .kv_submit = kv_submit,
    .trace_start = trace_start,
    .trace_drain = trace_drain,
    .trace_stop = trace_stop,
};

}  // namespace
}  // namespace calrt::mock

extern "C" cald_status cald_driver_entry(const cald_host*, uint32_t abi_requested,
                                         const cald_driver_table** out) {
  if (abi_requested >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  if (out == nullptr) return CALD_INVALID_ARGUMENT;
  *out = &calrt::mock::kTable;
  return CALD_OK;
}
