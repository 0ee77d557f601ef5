// SPDX-License-Identifier: Apache-2.0
// A tour of every entry of the ABI, for tests of what comes of a driver that fails in one of them.
#pragma once

#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/table_client.h"

namespace calrt {

using Table = cald_driver_table;

// Calls every entry of a driver like null once, in the order a program would; what failed is tried
// once more.
struct Tour {
  std::vector<Error> errors;
  std::vector<std::string> tried;  // entries that return a status
  std::shared_ptr<DriverLibrary> library;

  bool attempt(const char* entry, const std::function<cald_status(cald_error*)>& call) {
    tried.emplace_back(entry);
    for (int i = 0; i < 2; ++i) {
      auto answered = call_driver(entry, call);
      if (answered.ok()) return true;
      errors.push_back(answered.error());
    }
    return false;
  }

  explicit Tour(const std::string& layers, const std::string& driver = "null",
                bool isolated = false) {
    auto loaded = DriverLibrary::load(driver, layers, isolated);
    tried.emplace_back("driver_open");
    if (!loaded.ok()) {
      errors.push_back(loaded.error());
      return;
    }
    library = *loaded;
    const Table& t = library->table();
    cald_driver* const on = library->handle();
    uint32_t count = 0;
    cald_device_info info{};
    info.struct_size = sizeof info;
    attempt("device_count", [&](auto* e) { return t.device_count(on, &count, e); });
    attempt("device_enumerate", [&](auto* e) { return t.device_enumerate(on, 0, &info, e); });
    cald_device_options options{};
    options.struct_size = sizeof options;
    options.config = "";
    cald_device* device = nullptr;
    if (attempt("device_open", [&](auto* e) { return t.device_open(on, &options, &device, e); }))
      on_device(DeviceHandle({device, &t}));
  }

  void on_device(const DeviceHandle& owner) {
    const Table& t = library->table();
    cald_device* const device = owner.get().pointer;
    cald_device_info info{};
    info.struct_size = sizeof info;
    cald_health health{};
    health.struct_size = sizeof health;
    cald_topology topology{};
    topology.struct_size = sizeof topology;
    cald_buffer_rules rules{};
    rules.struct_size = sizeof rules;
    uint32_t room = 0;
    attempt("device_info", [&](auto* e) { return t.device_info(device, &info, e); });
    attempt("device_health", [&](auto* e) { return t.device_health(device, &health, e); });
    attempt("device_caps", [&](auto* e) { return t.device_caps(device, nullptr, &room, e); });
    attempt("device_counters",
            [&](auto* e) { return t.device_counters(device, nullptr, &room, e); });
    attempt("device_topology", [&](auto* e) { return t.device_topology(device, &topology, e); });
    attempt("buffer_rules",
            [&](auto* e) { return t.buffer_rules(device, CALD_DOMAIN_HOST, &rules, e); });
    attempt("trace_start", [&](auto* e) { return t.trace_start(device, 16, e); });
    cald_session* session = nullptr;
    cald_buffer *in = nullptr, *out = nullptr;
    const auto alloc = [&](cald_buffer** made, cald_error* e) {
      return t.buffer_alloc(device, CALD_DOMAIN_HOST, 64, 64, made, e);
    };
    if (!attempt("session_open", [&](auto* e) { return t.session_open(device, 0, &session, e); }))
      return;
    const SessionHandle held({session, &t});
    if (!attempt("buffer_alloc", [&](auto* e) { return alloc(&in, e); })) return;
    const BufferHandle first({in, &t});
    if (alloc(&out, nullptr) != CALD_OK) return;
    const BufferHandle second({out, &t});
    on_buffer(in);
    on_model(device, session, in, out);
    cald_trace_event events[16];
    uint32_t drained = 16;
    attempt("trace_drain",
            [&](auto* e) { return t.trace_drain(device, events, &drained, nullptr, e); });
    attempt("trace_stop", [&](auto* e) { return t.trace_stop(device, e); });
  }

  void on_buffer(cald_buffer* buffer) {
    const Table& t = library->table();
    void* address = nullptr;
    uint8_t data[4] = {};
    cald_buffer_state state{};
    state.struct_size = sizeof state;
    cald_transfer transfer{};
    transfer.struct_size = sizeof transfer;
    transfer.direction = CALD_TO_HOST;
    transfer.buffer = buffer;
    transfer.host = data;
    transfer.bytes = 4;
    attempt("buffer_map", [&](auto* e) { return t.buffer_map(buffer, &address, e); });
    attempt("buffer_h2d", [&](auto* e) { return t.buffer_h2d(buffer, 0, data, 4, e); });
    attempt("buffer_d2h", [&](auto* e) { return t.buffer_d2h(buffer, 0, data, 4, e); });
    attempt("buffer_transfer", [&](auto* e) { return t.buffer_transfer(&transfer, e); });
    attempt("buffer_state", [&](auto* e) { return t.buffer_state(buffer, &state, e); });
  }

  void on_model(cald_device* device, cald_session* session, cald_buffer* in, cald_buffer* out) {
    const Table& t = library->table();
    static const uint32_t profiles[] = {1};
    cald_load_options options{};
    options.struct_size = sizeof options;
    options.lanes = 1;
    options.cells = 64;
    options.compute = CALD_COMPUTE_F32;
    options.kv_dtype = options.logits_dtype = CALD_F32;
    options.parallel = "none";
    options.placement = "any";
    options.n_profiles = 1;
    options.profiles = profiles;
    const cald_package* package = PackageForTest::typed();
    cald_footprint footprint{};
    footprint.struct_size = sizeof footprint;
    cald_model_info info{};
    info.struct_size = sizeof info;
    cald_kv_info kv{};
    kv.struct_size = sizeof kv;
    cald_model* model = nullptr;
    attempt("model_footprint",
            [&](auto* e) { return t.model_footprint(device, package, &options, &footprint, e); });
    if (!attempt("model_load",
                 [&](auto* e) { return t.model_load(device, package, &options, &model, e); }))
      return;
    const ModelHandle held({model, &t});
    attempt("model_info", [&](auto* e) { return t.model_info(model, &info, e); });
    attempt("kv_info", [&](auto* e) { return t.kv_info(model, &kv, e); });

    const cald_binding bindings[] = {{CALD_ROLE_TOKENS, 0, in, 0, 4},
                                     {CALD_ROLE_LOGITS, 0, out, 0, 40}};
    cald_binding_set* set = nullptr;
    if (attempt("binding_set_make",
                [&](auto* e) { return t.binding_set_make(model, 0, bindings, 2, &set, e); }))
      BindingSetHandle({set, &t}).reset();
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.model = model;
    desc.n_bindings = 2;
    desc.bindings = bindings;
    desc.deadline_ns = CALD_NO_DEADLINE;
    cald_kv_desc clear{};
    clear.struct_size = sizeof clear;
    clear.op = CALD_KV_CLEAR;
    clear.model = model;
    clear.n = 1;
    clear.deadline_ns = CALD_NO_DEADLINE;
    cald_job *job = nullptr, *moved = nullptr;
    if (attempt("kv_submit", [&](auto* e) { return t.kv_submit(session, &clear, &moved, e); }))
      JobHandle({moved, &t}).reset();
    if (!attempt("submit", [&](auto* e) { return t.submit(session, &desc, &job, e); })) return;
    const JobHandle owner({job, &t});
    int32_t state = 0;
    uint64_t next = 0;
    cald_timing timing{};
    timing.struct_size = sizeof timing;
    attempt("poll", [&](auto* e) { return t.poll(session, 1, &next, e); });
    attempt("job_query", [&](auto* e) { return t.job_query(job, &state, e); });
    attempt("job_wait", [&](auto* e) { return t.job_wait(job, monotonic_ns(), e); });
    attempt("job_cancel", [&](auto* e) { return t.job_cancel(job, e); });
    attempt("job_timing", [&](auto* e) { return t.job_timing(job, &timing, e); });
  }
};

// Every entry, and whether it returns a status.
inline const std::pair<const char*, bool> kEntries[] = {
#define CALD_ENTRY(name, need, minor, cls) \
  {#name, !std::is_void_v<decltype(std::function(Table{}.name))::result_type>},
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
};

}  // namespace calrt
