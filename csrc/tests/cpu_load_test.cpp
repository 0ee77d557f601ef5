// SPDX-License-Identifier: Apache-2.0
// Opening the cpu device and loading models: options, descriptions, footprint, progress, and what
// is refused.
#include <functional>
#include <limits>

#include "check.h"
#include "cpu_client.h"
#include "cpu_tiny_model.h"

using namespace calrt::testing;

namespace {

// Loads with one thing changed; the failure, or OK.
Failure load(Device& device, const std::function<void(TinyModel&, LoadArgs&)>& change) {
  TinyModel tiny;
  LoadArgs args;
  change(tiny, args);
  return Model(device, tiny.package(), args).failure;
}

void refused(const Failure& failure, cald_status code, const char* part) {
  if (failure.code != code || failure.text.find(part) == std::string::npos)
    std::fprintf(stderr, "%d \"%s\", expected %d \"%s\"\n", failure.code, failure.text.c_str(),
                 code, part);
  CHECK(failure.code == code);
  CHECK(failure.text.find(part) != std::string::npos);
}

Failure open(const char* key, const char* value, const char* config = "", uint32_t index = 0) {
  cald_driver* driver = nullptr;
  cpu_table().driver_open(nullptr, &driver, nullptr);
  const cald_option option = {key, value};
  cald_device_options options{};
  options.struct_size = sizeof options;
  options.index = index;
  options.config = config;
  options.n_options = 1;
  options.options = &option;
  cald_device* device = nullptr;
  Failure failure;
  if (failure.ok(cpu_table().device_open(driver, &options, &device, &failure.raw)))
    cpu_table().device_close(device);
  cpu_table().driver_close(driver);
  return failure;
}

}  // namespace

TEST(device_options) {
  CHECK(open("threads", "2").code == CALD_OK);
  refused(open("threads", "0"), CALD_INVALID_ARGUMENT, "threads=0: 1 to 256");
  refused(open("threads", "two"), CALD_INVALID_ARGUMENT, "threads=two");
  refused(open("speed", "9"), CALD_INVALID_ARGUMENT,
          "unknown option \"speed\"; cpu knows: threads");
  refused(open("threads", "1", "fast"), CALD_INVALID_ARGUMENT, "fast");
  refused(open("threads", "1", "", 1), CALD_OUT_OF_RANGE, "device index 1");
  setenv("CALRT_ISA", "mmx", 1);
  refused(open("threads", "1"), CALD_INVALID_ARGUMENT, "CALRT_ISA=mmx");
  unsetenv("CALRT_ISA");
}

TEST(device_describes_itself) {
  Device device;
  cald_device_info info{};
  CHECK(cpu_table().device_info(device.device, &info, nullptr) == CALD_INVALID_ARGUMENT);
  info.struct_size = sizeof info;
  CHECK(cpu_table().device_info(device.device, &info, nullptr) == CALD_OK);
  CHECK(std::string(info.name) == "cpu" && std::string(info.device_class) == "cpu-ref");
  CHECK(info.depth == 1 && info.queue == 8 && info.sessions == 1 && info.memory_bytes > 0);
  uint32_t count = 0;
  CHECK(cpu_table().device_caps(device.device, nullptr, &count, nullptr) == CALD_OK);
  std::vector<cald_cap> caps(count);
  CHECK(cpu_table().device_caps(device.device, caps.data(), &count, nullptr) == CALD_OK);
  for (const cald_cap& cap : caps) CHECK(cap.level == 0 && cap.name != nullptr);
  cald_session* second = nullptr;
  CHECK(cpu_table().session_open(device.device, 0, &second, nullptr) == CALD_INVALID_STATE);
  CHECK(cpu_table().session_open(device.device, 1, &second, nullptr) == CALD_OUT_OF_RANGE);
}

TEST(buffers) {
  Device device;
  cald_buffer* buffer = nullptr;
  const auto& t = cpu_table();
  CHECK(t.buffer_alloc(device.device, CALD_DOMAIN_DEVICE, 8, 64, &buffer, nullptr) ==
        CALD_UNSUPPORTED);
  CHECK(t.buffer_alloc(device.device, CALD_DOMAIN_HOST, 8, 48, &buffer, nullptr) ==
        CALD_INVALID_ARGUMENT);
  CHECK(t.buffer_alloc(device.device, CALD_DOMAIN_HOST, 0, 64, &buffer, nullptr) ==
        CALD_OUT_OF_RANGE);
  CHECK(t.buffer_alloc(device.device, CALD_DOMAIN_HOST, 100, 4096, &buffer, nullptr) == CALD_OK);
  void* data = nullptr;
  CHECK(t.buffer_map(buffer, &data, nullptr) == CALD_OK);
  CHECK(reinterpret_cast<uintptr_t>(data) % 4096 == 0);
  char out[4] = {};
  CHECK(t.buffer_h2d(buffer, 96, "abcd", 4, nullptr) == CALD_OK);
  CHECK(t.buffer_d2h(buffer, 96, out, 4, nullptr) == CALD_OK && std::memcmp(out, "abcd", 4) == 0);
  CHECK(t.buffer_h2d(buffer, 97, "abcd", 4, nullptr) == CALD_OUT_OF_RANGE);
  CHECK(t.buffer_d2h(buffer, UINT64_MAX, out, 4, nullptr) == CALD_OUT_OF_RANGE);
  t.buffer_free(buffer);
  t.buffer_free(nullptr);
}

TEST(graphs_and_footprint) {
  TinyModel tiny;
  Device device;
  LoadArgs args;
  args.logits = CALD_BF16;
  args.profiles = {1, 16};
  args.chunks = {64};
  Model model(device, tiny.package(), args);
  CHECK(model.info.n_graphs == 3 && model.info.vocab == 77 && model.info.lanes == 4);
  CHECK(model.info.compute == CALD_COMPUTE_F32 && model.info.logits_dtype == CALD_BF16);
  const cald_graph& decode = *model.info.graphs[model.graph("decode_b16")];
  CHECK(decode.kind == CALD_GRAPH_DECODE && decode.batch == 16 && decode.n_inputs == 3);
  CHECK(decode.lane_map == CALD_LANE_MAP_ANY);
  const cald_io& logits = *decode.outputs[0];
  CHECK(logits.dtype == CALD_BF16 && logits.shape[0] == 16 && logits.shape[1] == 77);
  CHECK(logits.layout.bytes == 16 * 77 * 2 && logits.layout.axes[0].stride == 154);
  const cald_graph& prefill = *model.info.graphs[model.graph("prefill_t64")];
  CHECK(prefill.chunk == 64 && prefill.n_inputs == 5 && prefill.inputs[4]->optional == 1);
  const cald_load_options options = args.options();
  cald_footprint footprint{};
  footprint.struct_size = sizeof footprint;
  CHECK(cpu_table().model_footprint(device.device, &tiny.package(), &options, &footprint,
                                    nullptr) == CALD_OK);
  CHECK(footprint.host_bytes > model.info.weight_bytes + model.info.kv_bytes);
}

TEST(progress_reaches_the_end_and_can_cancel) {
  TinyModel tiny;
  Device device;
  LoadArgs args;
  struct Seen {
    uint64_t done = 0, total = 0, calls = 0;
  } seen;
  args.user = &seen;
  args.progress = [](void* user, uint64_t done, uint64_t total) {
    *static_cast<Seen*>(user) = {done, total, static_cast<Seen*>(user)->calls + 1};
    return 0;
  };
  CHECK(Model(device, tiny.package(), args).failure.code == CALD_OK);
  CHECK(seen.calls >= 2 && seen.done == seen.total && seen.total > 0);
  args.progress = [](void*, uint64_t, uint64_t) { return 1; };
  CHECK(Model(device, tiny.package(), args).failure.code == CALD_CANCELLED);
}

TEST(load_options_refused) {
  Device device;
  const auto with = [&](const std::function<void(LoadArgs&)>& change) {
    return load(device, [&](TinyModel&, LoadArgs& args) { change(args); });
  };
  refused(with([](LoadArgs& a) { a.lanes = 0; }), CALD_OUT_OF_RANGE, "lanes=0");
  refused(with([](LoadArgs& a) { a.cells = 0; }), CALD_OUT_OF_RANGE, "cells=0");
  refused(with([](LoadArgs& a) { a.compute = CALD_COMPUTE_INT8; }), CALD_UNSUPPORTED, "compute=3");
  refused(with([](LoadArgs& a) { a.kv = CALD_F16; }), CALD_UNSUPPORTED, "kv_dtype=3");
  refused(with([](LoadArgs& a) { a.logits = CALD_I32; }), CALD_UNSUPPORTED, "logits_dtype=8");
  refused(with([](LoadArgs& a) { a.profiles = {4, 4}; }), CALD_INVALID_ARGUMENT, "4 after 4");
  refused(with([](LoadArgs& a) { a.chunks = {0}; }), CALD_OUT_OF_RANGE, "chunks=0");
  refused(with([](LoadArgs& a) { a.profiles = {}, a.chunks = {}; }), CALD_INVALID_ARGUMENT, "both");
  refused(with([](LoadArgs& a) { a.lanes = 4096, a.cells = 1 << 22; }), CALD_OUT_OF_HOST_MEMORY,
          "the KV lanes");
}

TEST(packages_refused) {
  Device device;
  const auto with = [&](const std::function<void(TinyModel&)>& change) {
    return load(device, [&](TinyModel& tiny, LoadArgs&) { change(tiny); });
  };
  refused(with([](TinyModel& t) { t.arch().name = "gpt9"; }), CALD_UNSUPPORTED, "gpt9");
  refused(with([](TinyModel& t) { t.arch().experts = 8; }), CALD_UNSUPPORTED, "experts=8");
  refused(with([](TinyModel& t) { t.arch().layers = 0; }), CALD_PACKAGE_REJECTED, "layers=0");
  refused(with([](TinyModel& t) { t.arch().kv_heads = 4; }), CALD_PACKAGE_REJECTED, "kv_heads=4");
  refused(with([](TinyModel& t) { t.arch().head_dim = 7; }), CALD_PACKAGE_REJECTED, "head_dim=7");
  refused(with([](TinyModel& t) { t.arch().vocab = 78; }), CALD_PACKAGE_REJECTED,
          "token_embd.weight has shape [77, 48]; the architecture needs [78, 48]");
  refused(with([](TinyModel& t) { t.arch().tie_embeddings = 0; }), CALD_PACKAGE_REJECTED,
          "output.weight is missing");
  refused(with([](TinyModel& t) { t.tensor("blk.1.ffn_up.weight").name = "blk.1.extra"; }),
          CALD_PACKAGE_REJECTED, "blk.1.ffn_up.weight is missing");
  refused(with([](TinyModel& t) { t.arch().layers = 1; }), CALD_UNSUPPORTED, "blk.1.");
  refused(with([](TinyModel& t) { t.tensor("output_norm.weight").dtype = CALD_I8; }),
          CALD_PACKAGE_REJECTED, "dtype 4");
  refused(with([](TinyModel& t) { t.tensor("output_norm.weight").bytes -= 4; }),
          CALD_PACKAGE_CORRUPT, "output_norm.weight");
  refused(with([](TinyModel& t) { t.tensor("output_norm.weight").offset = UINT64_MAX - 8; }),
          CALD_PACKAGE_CORRUPT, "output_norm.weight");
  refused(with([](TinyModel& t) { CHECK(ftruncate(t.fd(), 1000) == 0); }), CALD_PACKAGE_CORRUPT,
          "the file ends before that");
  refused(with([](TinyModel& t) { t.artifact().fd = -1; }), CALD_PACKAGE_CORRUPT, "failed");
  refused(with([](TinyModel& t) { t.package().weights = -1; }), CALD_UNSUPPORTED, "weights");
}
