// SPDX-License-Identifier: Apache-2.0
// A caller of libcald_cpu.so through nothing but its ABI table, for the cpu tests.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "calrt/driver.h"
#include "tests/test_host.h"

namespace calrt::testing {

inline const cald_driver_table& cpu_table() {
  static const cald_driver_table* table = [] {
    const char* folder = std::getenv("CALRT_DRIVER_PATH");
    const std::string path = std::string(folder == nullptr ? "." : folder) + "/libcald_cpu.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    auto entry = reinterpret_cast<cald_driver_entry_fn>(dlsym(library, "cald_driver_entry"));
    const cald_driver_table* out = nullptr;
    if (entry(nullptr, CALD_ABI_VERSION, &out) != CALD_OK) throw std::runtime_error("entry");
    return out;
  }();
  return *table;
}

struct Failure {
  cald_status code = CALD_OK;
  std::string text;
  cald_error raw{};
  Failure() { raw.struct_size = sizeof raw; }
  // Takes over the status of a call that was given &raw.
  bool ok(cald_status status) {
    code = status;
    text = raw.message;
    return status == CALD_OK;
  }
};

struct Device {
  cald_driver* driver = nullptr;
  cald_device* device = nullptr;
  cald_session* session = nullptr;
  Failure failure;

  // isa: "" keeps the environment.
  explicit Device(uint32_t threads = 1, const char* isa = "") {
    static const cald_host host = make_host();
    if (*isa != '\0') setenv("CALRT_ISA", isa, 1);
    const std::string count = std::to_string(threads);
    const cald_option option = {"threads", count.c_str()};
    cald_device_options options{};
    options.struct_size = sizeof options;
    options.n_options = 1;
    options.options = &option;
    const auto& t = cpu_table();
    if (failure.ok(t.driver_open(&host, &driver, &failure.raw)) &&
        failure.ok(t.device_open(driver, &options, &device, &failure.raw)))
      failure.ok(t.session_open(device, 0, &session, &failure.raw));
    if (*isa != '\0') unsetenv("CALRT_ISA");
  }
  ~Device() {
    cpu_table().session_close(session);
    cpu_table().device_close(device);
    cpu_table().driver_close(driver);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
};

struct LoadArgs {
  uint32_t lanes = 4, cells = 100;
  int32_t compute = CALD_COMPUTE_F32, kv = CALD_F32, logits = CALD_F32;
  std::vector<uint32_t> profiles = {1, 4, 8, 16}, chunks = {16, 64};
  int32_t (*progress)(void* user, uint64_t done, uint64_t total) = nullptr;
  void* user = nullptr;

  cald_load_options options() const {
    cald_load_options o{};
    o.struct_size = sizeof o;
    o.lanes = lanes;
    o.cells = cells;
    o.compute = compute;
    o.kv_dtype = kv;
    o.logits_dtype = logits;
    o.parallel = "none";
    o.placement = "any";
    o.n_profiles = static_cast<uint32_t>(profiles.size());
    o.n_chunks = static_cast<uint32_t>(chunks.size());
    o.profiles = profiles.data();
    o.chunks = chunks.data();
    o.user = user;
    o.progress = progress;
    return o;
  }
};

// One row of a decode job, or a prefill's token.
struct Step {
  int32_t token, position, lane;
};

class Model {
 public:
  Model(Device& device, const cald_package& package, const LoadArgs& args)
      : device_(&device), logits_bf16_(args.logits == CALD_BF16) {
    const cald_load_options options = args.options();
    if (!failure.ok(
            cpu_table().model_load(device.device, &package, &options, &model, &failure.raw)))
      return;
    info.struct_size = sizeof info;
    cpu_table().model_info(model, &info, nullptr);
  }
  ~Model() {
    for (cald_buffer* b : buffers_) cpu_table().buffer_free(b);
    cpu_table().model_unload(model);
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  uint32_t graph(const std::string& name) const {
    for (uint32_t g = 0; g < info.n_graphs; ++g)
      if (name == info.graphs[g]->name) return g;
    throw std::runtime_error("no graph " + name);
  }

  cald_binding bind(int32_t role, const void* data, uint64_t bytes) {
    cald_buffer* buffer = nullptr;
    void* mapped = nullptr;
    cpu_table().buffer_alloc(device_->device, CALD_DOMAIN_HOST, bytes, 64, &buffer, nullptr);
    buffers_.push_back(buffer);
    cpu_table().buffer_map(buffer, &mapped, nullptr);
    if (data != nullptr) std::memcpy(mapped, data, bytes);
    return {role, 0, buffer, 0, bytes};
  }
  static void* mapped(const cald_binding& binding) {
    void* data = nullptr;
    cpu_table().buffer_map(binding.buffer, &data, nullptr);
    return data;
  }
  uint64_t logit_bytes(uint64_t rows) const { return rows * info.vocab * (logits_bf16_ ? 2 : 4); }

  // Runs a job to its end; what it failed with is in `failure`.
  cald_status run(uint32_t graph, const std::vector<cald_binding>& bindings) {
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.graph = graph;
    desc.model = model;
    desc.n_bindings = static_cast<uint32_t>(bindings.size());
    desc.bindings = bindings.data();
    desc.deadline_ns = CALD_NO_DEADLINE;
    cald_job* job = nullptr;
    if (!failure.ok(cpu_table().submit(device_->session, &desc, &job, &failure.raw)))
      return failure.code;
    cpu_table().job_wait(job, CALD_NO_DEADLINE, nullptr);
    int32_t state = 0;
    cpu_table().job_query(job, &state, &failure.raw);
    failure.code = state == CALD_JOB_DONE ? CALD_OK : failure.raw.code;
    failure.text = failure.raw.message;
    cpu_table().job_destroy(job);
    return failure.code;
  }

  // Rows beyond `steps` are padding. The bytes of each step's logits; empty on failure.
  std::vector<std::string> decode(uint32_t batch, const std::vector<Step>& steps) {
    std::vector<int32_t> tokens(batch, -7), positions(batch, -7), lanes(batch, -1);
    for (size_t i = 0; i < steps.size(); ++i) {
      tokens[i] = steps[i].token;
      positions[i] = steps[i].position;
      lanes[i] = steps[i].lane;
    }
    const cald_binding out = bind(CALD_ROLE_LOGITS, nullptr, logit_bytes(batch));
    run(graph("decode_b" + std::to_string(batch)),
        {bind(CALD_ROLE_TOKENS, tokens.data(), batch * 4ull),
         bind(CALD_ROLE_POSITIONS, positions.data(), batch * 4ull),
         bind(CALD_ROLE_LANES, lanes.data(), batch * 4ull), out});
    return rows_of(out, steps.size());
  }

  // Logits of `rows` (default: the last valid one).
  std::vector<std::string> prefill(uint32_t chunk, const std::vector<int32_t>& valid, int32_t first,
                                   int32_t lane, const std::vector<int32_t>& rows = {}) {
    std::vector<int32_t> tokens(chunk, -7), positions(chunk, -7);
    const auto n_valid = static_cast<int32_t>(valid.size());
    for (int32_t i = 0; i < n_valid; ++i) {
      tokens[static_cast<size_t>(i)] = valid[static_cast<size_t>(i)];
      positions[static_cast<size_t>(i)] = first + i;
    }
    const size_t count = rows.empty() ? 1 : rows.size();
    const cald_binding out = bind(CALD_ROLE_LOGITS, nullptr, logit_bytes(count));
    std::vector<cald_binding> bindings = {bind(CALD_ROLE_TOKENS, tokens.data(), chunk * 4ull),
                                          bind(CALD_ROLE_POSITIONS, positions.data(), chunk * 4ull),
                                          bind(CALD_ROLE_LANES, &lane, 4),
                                          bind(CALD_ROLE_N_VALID, &n_valid, 4), out};
    if (!rows.empty()) bindings.push_back(bind(CALD_ROLE_LOGIT_ROWS, rows.data(), rows.size() * 4));
    run(graph("prefill_t" + std::to_string(chunk)), bindings);
    return rows_of(out, count);
  }

  cald_model* model = nullptr;
  cald_model_info info{};
  Failure failure;

 private:
  std::vector<std::string> rows_of(const cald_binding& out, size_t rows) {
    std::vector<std::string> result;
    if (failure.code != CALD_OK) return result;
    const auto* bytes = static_cast<const char*>(mapped(out));
    for (size_t r = 0; r < rows; ++r)
      result.emplace_back(bytes + r * logit_bytes(1), logit_bytes(1));
    return result;
  }

  Device* device_;
  bool logits_bf16_;
  std::vector<cald_buffer*> buffers_;
};

}  // namespace calrt::testing
