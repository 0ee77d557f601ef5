// SPDX-License-Identifier: Apache-2.0
// A caller of libcald_calrt076.so through nothing but its ABI table, on the stand-in for the SDK.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "calrt/driver.h"
#include "layout/layout.h"
#include "tests/check.h"
#include "tests/test_host.h"

namespace calrt::testing {

inline constexpr uint32_t kVocab = 64, kArena = 256;  // cells of all lanes together
inline constexpr uint64_t kPatience = 20'000'000'000;

inline const cald_driver_table& table() {
  static const cald_driver_table* found = [] {
    void* library = dlopen(CALRT076_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    auto entry = reinterpret_cast<cald_driver_entry_fn>(dlsym(library, "cald_driver_entry"));
    const cald_driver_table* out = nullptr;
    if (entry(nullptr, CALD_ABI_VERSION, &out) != CALD_OK) throw std::runtime_error("entry");
    return out;
  }();
  return *found;
}

struct Failure {
  cald_error raw{};
  Failure() { raw.struct_size = sizeof raw; }
  bool says(const char* part) const { return std::strstr(raw.message, part) != nullptr; }
};

// A directory that the SDK loads, and the package that calrt hands over for it.
class Directory {
 public:
  Directory() : path_(std::filesystem::temp_directory_path() / "calrt076-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp");
    add("manifest.json",
        R"({"model": {"vocab": 64, "context": 256}, "graphs": [], "parallelism": {"mode": "none"},
            "allowed": {"chunks": [16], "parallel": ["none"]}})");
    arch.struct_size = sizeof arch;
    arch.vocab = kVocab;
    graph.struct_size = sizeof graph;
    graph.kind = CALD_GRAPH_DECODE;
    graph.name = "decode_b1";
    graph.batch = 1;
    package.struct_size = sizeof package;
    package.name = "test";
    package.arch = &arch;
    package.weights = -1;
    package.n_graphs = 1;
    package.graphs = graphs;
  }
  ~Directory() {
    for (const cald_artifact& artifact : artifacts) close(artifact.fd);
    std::filesystem::remove_all(path_);
  }
  // A file of the package; also below a folder of its own.
  void add(const std::string& name, const std::string& text) {
    const std::filesystem::path file = path_ + "/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    artifacts.push_back({sizeof(cald_artifact), fd, "file", "calbin.graph", text.size()});
  }
  const cald_package& typed() {
    list.clear();
    for (const cald_artifact& artifact : artifacts) list.push_back(&artifact);
    package.artifacts = list.data();
    package.n_artifacts = static_cast<uint32_t>(list.size());
    return package;
  }
  const std::string& path() const { return path_; }

  std::vector<cald_artifact> artifacts;
  cald_arch arch{};
  cald_graph graph{};

 private:
  std::string path_;
  const cald_graph* graphs[1] = {&graph};
  std::vector<const cald_artifact*> list;
  cald_package package{};
};

struct Ask {  // of a load
  uint32_t lanes = 4, cells = 64;
  const char* placement = "any";
  uint32_t profile = 1;
};

// What is opened, with the vices of the stand-in. Closes in order, unless `leak`: then nothing.
class World {
 public:
  explicit World(const char* vices = "", bool leak = false) : leak_(leak) {
    setenv("CALRT_STANDIN_VICES", vices, 1);
    CHECK(table().driver_open(&host_, &driver, nullptr) == CALD_OK);
    cald_device_options options{};
    options.struct_size = sizeof options;
    options.config = "";
    CHECK(table().device_open(driver, &options, &device, nullptr) == CALD_OK);
  }
  ~World() {
    if (leak_) return;
    table().session_close(session);
    table().model_unload(model);
    table().device_close(device);
    table().driver_close(driver);
  }
  cald_status load(Directory& directory, Ask ask = {}, Failure* why = nullptr) {
    cald_load_options options{};
    options.struct_size = sizeof options;
    options.lanes = ask.lanes;
    options.cells = ask.cells;
    options.compute = CALD_COMPUTE_BF16;
    options.kv_dtype = options.logits_dtype = CALD_BF16;
    options.parallel = "none";
    options.placement = ask.placement;
    options.n_profiles = 1;
    options.profiles = &ask.profile;
    return table().model_load(device, &directory.typed(), &options, &model,
                              why == nullptr ? nullptr : &why->raw);
  }
  void open(Directory& directory, Ask ask = {}) {
    Failure why;
    if (load(directory, ask, &why) != CALD_OK) throw std::runtime_error(why.raw.message);
    CHECK(table().session_open(device, 0, &session, nullptr) == CALD_OK);
    info.struct_size = sizeof info;
    CHECK(table().model_info(model, &info, nullptr) == CALD_OK);
  }
  uint64_t counter(const char* name) {
    cald_counter all[16];
    uint32_t count = 16;
    CHECK(table().device_counters(device, all, &count, nullptr) == CALD_OK);
    for (uint32_t i = 0; i < count; ++i)
      if (std::strcmp(all[i].name, name) == 0) return all[i].value;
    return UINT64_MAX;
  }

  cald_driver* driver = nullptr;
  cald_device* device = nullptr;
  cald_model* model = nullptr;
  cald_session* session = nullptr;
  cald_model_info info{};

 private:
  const bool leak_;
  const cald_host host_ = make_host();
};

// One token on its way: buffers of its own, and what was told of it.
class Step {
 public:
  explicit Step(World& world) : world_(world), io_(*world.info.graphs[0]->outputs[0]) {
    buffers_.resize(4);
    for (size_t i = 0; i < 4; ++i) {
      const uint64_t bytes = i < 3 ? 4 : io_.layout.bytes;
      CHECK(table().buffer_alloc(world.device, CALD_DOMAIN_HOST, bytes, 64, &buffers_[i],
                                 nullptr) == CALD_OK);
      bindings[i] = {i < 3 ? static_cast<int32_t>(i + 1) : CALD_ROLE_LOGITS, 0, buffers_[i], 0,
                     bytes};
    }
  }
  ~Step() {
    table().job_destroy(job);
    for (cald_buffer* buffer : buffers_) table().buffer_free(buffer);
  }
  cald_status submit(int32_t token, int32_t position, int32_t lane, uint64_t seq = 1,
                     uint64_t deadline_ns = CALD_NO_DEADLINE, Failure* why = nullptr) {
    const int32_t values[] = {token, position, lane};
    for (size_t i = 0; i < 3; ++i) table().buffer_h2d(buffers_[i], 0, &values[i], 4, nullptr);
    table().job_destroy(job);
    job = nullptr;
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.model = world_.model;
    desc.n_bindings = n_bindings;
    desc.bindings = bindings;
    desc.job_seq = seq;
    desc.deadline_ns = deadline_ns;
    desc.on_complete = [](void* user, const cald_completion* end) {
      auto* step = static_cast<Step*>(user);
      step->end = *end;
      ++step->told;
    };
    desc.user = this;
    return table().submit(world_.session, &desc, &job, why == nullptr ? nullptr : &why->raw);
  }
  cald_status wait(uint64_t ns = kPatience) {
    return table().job_wait(job, host_now_ns() + ns, nullptr);
  }
  int32_t state() {
    int32_t now = 0;
    CHECK(table().job_query(job, &now, nullptr) == CALD_OK);
    return now;
  }
  // Runs one token to its end; the logits as the layout says, empty unless DONE.
  std::vector<uint16_t> run(int32_t token, int32_t position, int32_t lane) {
    CHECK(submit(token, position, lane) == CALD_OK);
    CHECK(wait() == CALD_OK);
    if (state() != CALD_JOB_DONE) return {};
    std::vector<uint8_t> raw(io_.layout.bytes);
    CHECK(table().buffer_d2h(buffers_[3], 0, raw.data(), raw.size(), nullptr) == CALD_OK);
    std::vector<uint16_t> logits(kVocab);
    for (uint64_t column = 0; column < kVocab; ++column) {
      const uint64_t index[] = {0, column};
      std::memcpy(&logits[column], &raw[layout_offset(io_.layout, index)], 2);
    }
    return logits;
  }

  cald_binding bindings[4];
  uint32_t n_bindings = 4;
  cald_job* job = nullptr;
  cald_completion end{};
  std::atomic<int> told{0};

 private:
  World& world_;
  const cald_io& io_;
  std::vector<cald_buffer*> buffers_;
};

// Runs `body` in a child that ends without closing anything: for an SDK that hangs. A child that
// dies, or takes longer than the patience, fails.
inline bool in_child(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    failures() = 0;
    body();
    _exit(failures() == 0 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace calrt::testing
