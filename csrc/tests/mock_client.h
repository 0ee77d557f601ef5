// SPDX-License-Identifier: Apache-2.0
// A caller of libcald_mock.so through nothing but its ABI table, and packages for it.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "calrt/driver.h"
#include "layout/layout.h"
#include "layout/pack.h"
#include "tests/check.h"
#include "tests/test_host.h"

namespace calrt::testing {

inline uint64_t in_ms(uint64_t ms) { return host_now_ns(nullptr) + ms * 1'000'000; }

inline const cald_driver_table& mock_table() {
  static const cald_driver_table* table = [] {
    const std::string folders = std::getenv("CALRT_DRIVER_PATH");
    const std::string path = folders.substr(folders.rfind(':') + 1) + "/libcald_mock.so";
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
  cald_error raw{};
  Failure() { raw.struct_size = sizeof raw; }
  std::string text() const { return raw.message; }
  bool says(const char* part) const { return text().find(part) != std::string::npos; }
};

// What a package may say, as far as mock cares.
struct Shape {
  uint32_t vocab = 512;
  std::vector<uint32_t> profiles = {1, 4, 8, 16}, chunks = {16, 64};
  int32_t decode_map = CALD_LANE_MAP_ANY, prefill_map = CALD_LANE_MAP_ANY;
  int32_t dtype = CALD_F32;
  uint64_t tile = 0;  // columns of the logits in a tile; 0: linear
  bool logit_rows = true;
};

class MockPackage {
 public:
  explicit MockPackage(const Shape& shape = {}) : shape_(shape) {
    for (const uint32_t b : shape.profiles) add(CALD_GRAPH_DECODE, b);
    for (const uint32_t t : shape.chunks) add(CALD_GRAPH_PREFILL, t);
    for (const auto& graph : graphs_) list_.push_back(&graph);
    arch_.struct_size = sizeof arch_;
    arch_.vocab = shape.vocab;
    arch_.name = "mock";
    package.struct_size = sizeof package;
    package.name = "test";
    package.id = "";
    package.arch = &arch_;
    package.weights = -1;
    package.n_graphs = static_cast<uint32_t>(list_.size());
    package.graphs = list_.data();
  }
  MockPackage(const MockPackage&) = delete;
  MockPackage& operator=(const MockPackage&) = delete;

  cald_package package{};
  const Shape& shape() const { return shape_; }

 private:
  using Ios = std::vector<const cald_io*>;

  void io(Ios* to, int32_t role, uint64_t n) {
    cald_io& io = ios_.emplace_back();
    io.struct_size = sizeof io;
    io.role = role;
    io.dtype = CALD_I32;
    io.rank = 1;
    io.shape[0] = n;
    io.layout = *linear_layout(CALD_I32, {n});
    io.align = 64;
    io.domains = CALD_DOMAIN_HOST;
    io.optional = role == CALD_ROLE_LOGIT_ROWS ? 1 : 0;
    if (role == CALD_ROLE_LOGITS) {
      io.dtype = shape_.dtype;
      io.rank = 2;
      io.shape[1] = shape_.vocab;
      io.layout = shape_.tile == 0
                      ? *linear_layout(shape_.dtype, {n, shape_.vocab})
                      : *tiled_layout(shape_.dtype, {n, shape_.vocab}, 1, shape_.tile, {-1, 0, -2});
    }
    to->push_back(&io);
  }

  void add(int32_t kind, uint32_t n) {
    const bool decode = kind == CALD_GRAPH_DECODE;
    const int32_t map = decode ? shape_.decode_map : shape_.prefill_map;
    Ios& in = lists_.emplace_back();
    io(&in, CALD_ROLE_TOKENS, n);
    io(&in, CALD_ROLE_POSITIONS, n);
    if (map == CALD_LANE_MAP_ANY) io(&in, CALD_ROLE_LANES, decode ? n : 1);
    if (!decode) io(&in, CALD_ROLE_N_VALID, 1);
    if (!decode && shape_.logit_rows) io(&in, CALD_ROLE_LOGIT_ROWS, n);
    Ios& out = lists_.emplace_back();
    io(&out, CALD_ROLE_LOGITS, decode || shape_.logit_rows ? n : 1);
    cald_graph& graph = graphs_.emplace_back();
    graph.struct_size = sizeof graph;
    graph.kind = kind;
    names_.push_back((decode ? "decode_b" : "prefill_t") + std::to_string(n));
    graph.name = names_.back().c_str();
    graph.batch = decode ? n : 1;
    graph.chunk = decode ? 0 : n;
    graph.lane_map = map;
    graph.n_inputs = static_cast<uint32_t>(in.size());
    graph.inputs = in.data();
    graph.n_outputs = 1;
    graph.outputs = out.data();
    graph.share_group = "main";
  }

  const Shape shape_;
  cald_arch arch_{};
  std::deque<cald_io> ios_;
  std::deque<Ios> lists_;
  std::deque<std::string> names_;
  std::deque<cald_graph> graphs_;
  std::vector<const cald_graph*> list_;
};

using OpenOptions = std::vector<std::pair<const char*, const char*>>;

struct MockDevice {
  cald_driver* driver = nullptr;
  cald_device* device = nullptr;
  std::map<uint32_t, cald_session*> sessions;
  Failure failure;

  explicit MockDevice(const char* preset = "", const OpenOptions& options = {}) {
    static const cald_host host = make_host();
    std::vector<cald_option> list;
    for (const auto& [key, value] : options) list.push_back({key, value});
    cald_device_options asked{};
    asked.struct_size = sizeof asked;
    asked.config = preset;
    asked.n_options = static_cast<uint32_t>(list.size());
    asked.options = list.data();
    CHECK(mock_table().driver_open(&host, &driver, &failure.raw) == CALD_OK);
    mock_table().device_open(driver, &asked, &device, &failure.raw);
  }
  ~MockDevice() {
    for (const auto& [index, session] : sessions) mock_table().session_close(session);
    mock_table().device_close(device);
    mock_table().driver_close(driver);
  }
  MockDevice(const MockDevice&) = delete;
  MockDevice& operator=(const MockDevice&) = delete;

  cald_session* session(uint32_t index = 0) {
    cald_session*& open = sessions[index];
    if (open == nullptr)
      CHECK(mock_table().session_open(device, index, &open, &failure.raw) == CALD_OK);
    return open;
  }
  void close_session(uint32_t index = 0) {
    mock_table().session_close(sessions[index]);
    sessions.erase(index);
  }
  cald_device_info info() const {
    cald_device_info info{};
    info.struct_size = sizeof info;
    CHECK(mock_table().device_info(device, &info, nullptr) == CALD_OK);
    return info;
  }
  bool polled() const { return info().completion == CALD_COMPLETION_POLL; }
  uint64_t counter(const std::string& name) const {
    cald_counter counters[32];
    uint32_t count = 32;
    mock_table().device_counters(device, counters, &count, nullptr);
    for (uint32_t i = 0; i < count; ++i)
      if (name == counters[i].name) return counters[i].value;
    throw std::runtime_error("no counter " + name);
  }
  int64_t cap(const std::string& name) const {
    cald_cap caps[64];
    for (auto& cap : caps) cap.struct_size = sizeof cap;
    uint32_t count = 64;
    mock_table().device_caps(device, caps, &count, nullptr);
    for (uint32_t i = 0; i < count; ++i)
      if (name == caps[i].name) return caps[i].value;
    throw std::runtime_error("no capability " + name);
  }
};

struct LoadArgs {
  uint32_t lanes = 4, cells = 512;
  int32_t logits = CALD_F32;
  const char* parallel = "none";
  const char* placement = "chip:0";
  int32_t (*progress)(void* user, uint64_t done, uint64_t total) = nullptr;

  cald_load_options options(const Shape& shape) const {
    cald_load_options out{};
    out.struct_size = sizeof out;
    out.lanes = lanes;
    out.cells = cells;
    out.compute = CALD_COMPUTE_BF16;
    out.kv_dtype = CALD_BF16;
    out.logits_dtype = logits;
    out.parallel = parallel;
    out.placement = placement;
    out.n_profiles = static_cast<uint32_t>(shape.profiles.size());
    out.profiles = shape.profiles.data();
    out.n_chunks = static_cast<uint32_t>(shape.chunks.size());
    out.chunks = shape.chunks.data();
    out.progress = progress;
    return out;
  }
};

struct DecodeRow {
  int32_t token, position, lane;
};
using Tokens = std::vector<int32_t>;
using FloatRows = std::vector<std::vector<float>>;

// A loaded model, and jobs on it that are run to their ends one by one.
class MockModel {
 public:
  MockModel(MockDevice& device, const MockPackage& package, const LoadArgs& args = {})
      : device_(device) {
    const cald_load_options options = args.options(package.shape());
    if (mock_table().model_load(device.device, &package.package, &options, &model, &failure.raw) !=
        CALD_OK)
      return;
    info.struct_size = sizeof info;
    mock_table().model_info(model, &info, nullptr);
  }
  ~MockModel() {
    for (auto& [role, binding] : bindings_) mock_table().buffer_free(binding.buffer);
    if (cells_.buffer != nullptr) mock_table().buffer_free(cells_.buffer);
    mock_table().model_unload(model);
  }
  MockModel(const MockModel&) = delete;
  MockModel& operator=(const MockModel&) = delete;

  uint32_t graph(const std::string& name) const {
    for (uint32_t g = 0; g < info.n_graphs; ++g)
      if (name == info.graphs[g]->name) return g;
    throw std::runtime_error("no graph " + name);
  }
  const cald_io& io(uint32_t graph, int32_t role) const {
    const cald_graph& of = *info.graphs[graph];
    for (uint32_t i = 0; i < of.n_inputs; ++i)
      if (of.inputs[i]->role == role) return *of.inputs[i];
    return *of.outputs[0];
  }
  bool has(uint32_t graph, int32_t role) const { return io(graph, role).role == role; }

  // The buffer of a role, the same in every job; filled with `values` and then `padding`.
  cald_binding bind(uint32_t graph, int32_t role, const Tokens& values, int32_t padding = -7) {
    const cald_io& of = io(graph, role);
    cald_binding& known = bindings_[{graph, role}];
    if (known.buffer == nullptr) known = make(role, of.layout.bytes);
    if (role == CALD_ROLE_LOGITS) return known;
    auto* ints = static_cast<int32_t*>(mapped(known));
    for (uint64_t i = 0; i < of.shape[0]; ++i) ints[i] = i < values.size() ? values[i] : padding;
    return known;
  }
  cald_binding make(int32_t role, uint64_t bytes, uint32_t domain = CALD_DOMAIN_HOST) {
    cald_buffer* buffer = nullptr;
    CHECK(mock_table().buffer_alloc(device_.device, domain, bytes, 64, &buffer, nullptr) ==
          CALD_OK);
    return {role, 0, buffer, 0, bytes};
  }
  static void* mapped(const cald_binding& binding) {
    void* data = nullptr;
    CHECK(mock_table().buffer_map(binding.buffer, &data, nullptr) == CALD_OK);
    return static_cast<char*>(data) + binding.offset;
  }

  std::vector<cald_binding> decode_bindings(uint32_t graph, const std::vector<DecodeRow>& rows) {
    Tokens tokens, positions, lanes;
    for (const DecodeRow& row : rows) {
      tokens.push_back(row.token);
      positions.push_back(row.position);
      lanes.push_back(row.lane);
    }
    std::vector<cald_binding> out = {bind(graph, CALD_ROLE_TOKENS, tokens),
                                     bind(graph, CALD_ROLE_POSITIONS, positions),
                                     bind(graph, CALD_ROLE_LOGITS, {})};
    if (has(graph, CALD_ROLE_LANES)) out.push_back(bind(graph, CALD_ROLE_LANES, lanes, -1));
    return out;
  }
  std::vector<cald_binding> prefill_bindings(uint32_t graph, const Tokens& valid, int32_t first,
                                             int32_t lane, const Tokens& rows = {}) {
    Tokens positions;
    for (size_t i = 0; i < valid.size(); ++i) positions.push_back(first + static_cast<int32_t>(i));
    std::vector<cald_binding> out = {
        bind(graph, CALD_ROLE_TOKENS, valid), bind(graph, CALD_ROLE_POSITIONS, positions),
        bind(graph, CALD_ROLE_N_VALID, {static_cast<int32_t>(valid.size())}),
        bind(graph, CALD_ROLE_LOGITS, {})};
    if (has(graph, CALD_ROLE_LANES)) out.push_back(bind(graph, CALD_ROLE_LANES, {lane}));
    if (!rows.empty()) {
      out.push_back(bind(graph, CALD_ROLE_LOGIT_ROWS, rows));
      out.back().bytes = rows.size() * 4;
    }
    return out;
  }

  cald_job_desc desc(uint32_t graph, const std::vector<cald_binding>& bindings) {
    cald_job_desc out{};
    out.struct_size = sizeof out;
    out.graph = graph;
    out.model = model;
    out.n_bindings = static_cast<uint32_t>(bindings.size());
    out.bindings = bindings.data();
    out.job_seq = ++last_seq_;
    out.deadline_ns = CALD_NO_DEADLINE;
    return out;
  }
  cald_kv_desc kv_desc(uint32_t op, uint32_t lane, uint32_t cell, uint32_t n) {
    cald_kv_desc out{};
    out.struct_size = sizeof out;
    out.op = op;
    out.model = model;
    out.lane = lane;
    out.cell = cell;
    out.n = n;
    out.job_seq = ++last_seq_;
    out.deadline_ns = CALD_NO_DEADLINE;
    return out;
  }

  cald_status finish(cald_status submitted, cald_job* job) {
    if (submitted != CALD_OK) return submitted;
    if (polled_) {
      for (uint64_t next = 0; next != CALD_NO_DEADLINE;)
        CHECK(mock_table().poll(device_.session(session), next, &next, nullptr) == CALD_OK);
    }
    CHECK(mock_table().job_wait(job, in_ms(60'000), nullptr) == CALD_OK);
    int32_t state = 0;
    failure.raw.code = CALD_OK;
    CHECK(mock_table().job_query(job, &state, &failure.raw) == CALD_OK);
    mock_table().job_destroy(job);
    return state == CALD_JOB_DONE ? CALD_OK : failure.raw.code;
  }
  cald_status run(uint32_t graph, const std::vector<cald_binding>& bindings) {
    const cald_job_desc asked = desc(graph, bindings);
    cald_job* job = nullptr;
    const cald_status status =
        mock_table().submit(device_.session(session), &asked, &job, &failure.raw);
    return finish(status, job);
  }
  cald_status run(const cald_kv_desc& asked) {
    cald_job* job = nullptr;
    const cald_status status =
        mock_table().kv_submit(device_.session(session), &asked, &job, &failure.raw);
    return finish(status, job);
  }

  // The logits of a graph's output as they are now.
  FloatRows logits(uint32_t graph) {
    const cald_io& of = io(graph, CALD_ROLE_LOGITS);
    std::vector<float> flat(of.shape[0] * of.shape[1]);
    CHECK(unpack_f32(of.layout, of.dtype, of.shape, of.rank, mapped(bind(graph, of.role, {})),
                     flat.data())
              .ok());
    FloatRows rows;
    for (uint64_t r = 0; r < of.shape[0]; ++r)
      rows.emplace_back(flat.begin() + static_cast<std::ptrdiff_t>(r * of.shape[1]),
                        flat.begin() + static_cast<std::ptrdiff_t>((r + 1) * of.shape[1]));
    return rows;
  }
  FloatRows decode(uint32_t batch, const std::vector<DecodeRow>& rows) {
    const uint32_t g = graph("decode_b" + std::to_string(batch));
    CHECK(run(g, decode_bindings(g, rows)) == CALD_OK);
    return logits(g);
  }
  FloatRows prefill(uint32_t chunk, const Tokens& valid, int32_t first, int32_t lane,
                    const Tokens& rows = {}) {
    const uint32_t g = graph("prefill_t" + std::to_string(chunk));
    CHECK(run(g, prefill_bindings(g, valid, first, lane, rows)) == CALD_OK);
    return logits(g);
  }

  // Cells [0, n) of a lane out and in again, as READ and WRITE have them.
  std::vector<uint32_t> read(uint32_t lane, uint32_t n) {
    cald_kv_desc asked = kv_desc(CALD_KV_READ, lane, 0, n);
    give_cells(&asked);
    CHECK(run(asked) == CALD_OK);
    const auto* words = static_cast<const uint32_t*>(mapped(cells_));
    return {words, words + 2 * n};
  }
  void write(uint32_t lane, uint32_t cell, const std::vector<uint32_t>& words) {
    cald_kv_desc asked =
        kv_desc(CALD_KV_WRITE, lane, cell, static_cast<uint32_t>(words.size() / 2));
    give_cells(&asked);
    std::memcpy(mapped(cells_), words.data(), words.size() * sizeof words[0]);
    CHECK(run(asked) == CALD_OK);
  }

  cald_model* model = nullptr;
  cald_model_info info{};
  Failure failure;
  uint32_t session = 0;

 private:
  void give_cells(cald_kv_desc* asked) {
    if (cells_.buffer == nullptr) cells_ = make(0, uint64_t{info.cells} * 8);
    asked->buffer = cells_.buffer;
    asked->bytes = uint64_t{asked->n} * 8;
  }

  MockDevice& device_;
  const bool polled_ = device_.polled();
  std::map<std::pair<uint32_t, int32_t>, cald_binding> bindings_;
  cald_binding cells_{};
  uint64_t last_seq_ = 0;
};

inline int32_t argmax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace calrt::testing
