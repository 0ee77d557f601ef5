// SPDX-License-Identifier: Apache-2.0
// Each entry of the ABI in turn throws or answers a number that means nothing: one typed error
// comes out of that call, everything else of the process goes on.
#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "calrt/device.h"
#include "calrt/job.h"
#include "calrt/model.h"
#include "tests/table_client.h"

using namespace calrt;

namespace {

using Table = cald_driver_table;

// Calls every entry of null once, in the order a program would; what failed is tried once more.
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

  explicit Tour(const std::string& layers) {
    auto loaded = DriverLibrary::load("null", layers);
    tried.emplace_back("driver_open");
    if (!loaded.ok()) {
      errors.push_back(loaded.error());
      return;
    }
    library = *loaded;
    const Table& t = library->table();
    cald_driver* const driver = library->handle();
    uint32_t count = 0;
    cald_device_info info{};
    info.struct_size = sizeof info;
    attempt("device_count", [&](auto* e) { return t.device_count(driver, &count, e); });
    attempt("device_enumerate", [&](auto* e) { return t.device_enumerate(driver, 0, &info, e); });
    cald_device_options options{};
    options.struct_size = sizeof options;
    options.config = "";
    cald_device* device = nullptr;
    if (attempt("device_open",
                [&](auto* e) { return t.device_open(driver, &options, &device, e); }))
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

const std::pair<const char*, bool> kEntries[] = {
#define CALD_ENTRY(name, need, minor, cls) \
  {#name, !std::is_void_v<decltype(std::function(Table{}.name))::result_type>},
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
};

bool one_error(const Tour& tour, const char* entry, Status code, int64_t native) {
  if (tour.errors.size() != 1) {
    std::fprintf(stderr, "%s: %zu errors\n", entry, tour.errors.size());
    return false;
  }
  const Error& error = tour.errors[0];
  const bool good = error.code == code && error.native_code == native && error.where == entry &&
                    !error.message.empty();
  if (!good) std::fprintf(stderr, "%s: %s\n", entry, error_text(error).c_str());
  return good;
}

}  // namespace

TEST(the_tour_calls_every_entry) {
  const Tour tour("");
  CHECK(tour.errors.empty());
  for (const Error& error : tour.errors) std::fprintf(stderr, "%s\n", error_text(error).c_str());
  for (const auto& [entry, has_status] : kEntries) {
    const auto times = std::count(tour.tried.begin(), tour.tried.end(), entry);
    if (times != (has_status ? 1 : 0)) std::fprintf(stderr, "%s: %td\n", entry, times);
    CHECK(times == (has_status ? 1 : 0));
  }
}

TEST(each_entry_may_throw) {
  TableClient other("null", "");  // somebody else's device, at work meanwhile
  uint64_t seq = 0;
  for (const auto& [entry, has_status] : kEntries) {
    for (const char* how : {" throw nth=1", " throw=other nth=1", " throw after nth=1"}) {
      if (!has_status && std::strstr(how, "after") != nullptr) continue;
      const Tour tour(std::string("fault:") + entry + how);
      if (has_status)
        CHECK(one_error(tour, entry, Status::INTERNAL, 0));
      else
        CHECK(tour.errors.empty());  // it is logged: a destroyer has no answer
      other.submit(++seq);
      CHECK(other.told().size() == seq);
    }
  }
}

TEST(each_entry_may_answer_a_number_that_means_nothing) {
  for (const auto& [entry, has_status] : kEntries) {
    if (!has_status) continue;
    for (const int code : {30, -1, INT_MIN}) {
      const Tour tour(std::string("fault:") + entry + " nth=1 status=" + std::to_string(code));
      CHECK(one_error(tour, entry, Status::INTERNAL, code));
      CHECK(!tour.errors.empty() && tour.errors[0].unmapped);
    }
  }
}

TEST(each_entry_may_answer_each_status) {
  for (const auto& [entry, has_status] : kEntries) {
    if (!has_status) continue;
    for (int code = 1; code < kStatusCount; ++code) {
      const Tour tour(std::string("fault:") + entry +
                      " nth=1 native=5 status=" + std::to_string(code));
      CHECK(one_error(tour, entry, static_cast<Status>(code), 5));
    }
  }
}

// The same through the runtime: open, load, submit, wait, close.
TEST(the_runtime_outlives_a_throw_of_each_entry) {
  int failed = 0;
  for (const auto& [entry, has_status] : kEntries) {
    const auto run = [&](const std::string& layers) -> Result<void> {
      CALRT_TRY_ASSIGN(auto device, Device::open("null", {}, {layers, {}}));
      CALRT_TRY_ASSIGN(auto model, Model::load(device, PackageForTest::make("null", "null"), {}));
      CALRT_TRY_ASSIGN(std::shared_ptr<BindingSet> set, model->make_bindings(0));
      CALRT_TRY_ASSIGN(auto session, device->session());
      CALRT_TRY_ASSIGN(auto job, Job::submit(session, model, set, monotonic_ns() + 20'000'000'000));
      CALRT_TRY(job->wait(monotonic_ns() + 20'000'000'000));
      return {};
    };
    for (const char* how : {" throw times=1", " throw=other times=1"}) {
      const auto answered = run(std::string("fault:") + entry + how);
      if (!answered.ok()) {
        ++failed;
        CHECK(answered.error().code == Status::INTERNAL);
        CHECK(answered.error().message.find("threw") != std::string::npos);
      }
      CHECK(run("").ok());
    }
  }
  CHECK(failed >= 16);  // driver_open, device_open, _info, session_open, ...: some are not needed
}

namespace {

// Answers OK for one entry, and does nothing.
struct Silent : layers::Layer {
  explicit Silent(std::string entry) : entry_(std::move(entry)) {}
  const char* name() const override { return "silent"; }
  bool replace(layers::Call& call) override {
    if (entry_ != layers::entry_name(call.entry)) return false;
    call.status = CALD_OK;
    return true;
  }
  std::string entry_;
};

// What comes of a device, a model and a job where `entry` is silent.
Result<void> run_with_silent(const std::string& entry) {
  OpenSettings settings;
  settings.layers = "silent:" + entry;
  CALRT_TRY_ASSIGN(const auto device, Device::open("null", {}, settings));
  CALRT_TRY_ASSIGN(const auto session, device->session());
  CALRT_TRY(device->alloc(64, CALD_DOMAIN_HOST, 64));
  CALRT_TRY_ASSIGN(const auto model,
                   Model::load(device, PackageForTest::make("null", "null"), LoadRequest{}));
  CALRT_TRY_ASSIGN(std::unique_ptr<BindingSet> made, model->make_bindings(0));
  const uint64_t deadline = device->now_ns() + 20'000'000'000;
  const std::shared_ptr<BindingSet> set = std::move(made);
  CALRT_TRY_ASSIGN(const auto job, Job::submit(session, model, set, deadline));
  CALRT_TRY(job->wait(deadline));
  KvMove clear;
  clear.op = CALD_KV_CLEAR;
  clear.n = 1;
  CALRT_TRY_ASSIGN(const auto moved, Job::submit_kv(session, model, clear, {}, deadline));
  return moved->wait(deadline);
}

}  // namespace

TEST(ok_without_a_handle_is_an_error_of_the_driver) {
  layers::register_layer("silent",
                         [](const std::string& entry) -> Result<std::shared_ptr<layers::Layer>> {
                           return std::shared_ptr<layers::Layer>(std::make_shared<Silent>(entry));
                         });
  CHECK(run_with_silent("").ok());
  for (const char* entry : {"driver_open", "device_open", "session_open", "buffer_alloc",
                            "model_load", "binding_set_make", "submit", "kv_submit"}) {
    const auto ran = run_with_silent(entry);
    CHECK(!ran.ok() && ran.error().code == Status::INTERNAL && ran.error().where == entry);
    CHECK(!ran.ok() && ran.error().message.find("gave no handle") != std::string::npos);
  }
}
