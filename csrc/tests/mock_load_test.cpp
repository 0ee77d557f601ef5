// SPDX-License-Identifier: Apache-2.0
// The mock's presets, options, loads and bindings: what is offered, and what is refused by name.
#include <malloc.h>

#include <algorithm>

#include "tests/mock_client.h"

using namespace calrt;
using namespace calrt::testing;

namespace {

const Shape kBare{.profiles = {1},
                  .chunks = {64},
                  .decode_map = CALD_LANE_MAP_NONE,
                  .prefill_map = CALD_LANE_MAP_NONE,
                  .dtype = CALD_BF16,
                  .tile = 16,
                  .logit_rows = false};
Shape qwen_shape() {
  Shape shape = kBare;
  shape.vocab = 151'936;
  return shape;
}
const LoadArgs kQwenArgs{.lanes = 1,
                         .cells = 40'960,
                         .logits = CALD_BF16,
                         .parallel = "tensor",
                         .placement = "chips:0+1"};

}  // namespace

TEST(every_preset_says_what_it_is) {
  const struct {
    const char* name;
    const char* device_class;
    uint32_t chips, sessions;
    int32_t completion;
  } all[] = {{"", "mock-tiny", 1, 1, CALD_COMPLETION_CALLBACK},
             {"tiny", "mock-tiny", 1, 1, CALD_COMPLETION_CALLBACK},
             {"bare", "mock-bare", 1, 1, CALD_COMPLETION_WAIT},
             {"qwen3-30b-a3b", "mock-qwen3-30b-a3b", 2, 1, CALD_COMPLETION_CALLBACK},
             {"dual-chip", "mock-dual-chip", 2, 2, CALD_COMPLETION_CALLBACK}};
  for (const auto& preset : all) {
    MockDevice device(preset.name);
    const cald_device_info info = device.info();
    CHECK(std::string(info.name) == "mock" &&
          info.device_class == std::string(preset.device_class));
    CHECK(info.chips == preset.chips && info.sessions == preset.sessions);
    CHECK(info.completion == preset.completion && info.clock == CALD_CLOCK_REAL);
    CHECK(info.exclusive == 0 && info.memory_free == info.memory_bytes);
    cald_topology topology{};
    topology.struct_size = sizeof topology;
    CHECK(mock_table().device_topology(device.device, &topology, nullptr) == CALD_OK);
    CHECK(topology.n_chips == preset.chips && topology.n_sessions == preset.sessions);
    uint64_t memory = 0, served = 0;
    for (uint32_t i = 0; i < topology.n_chips; ++i) memory += topology.chips[i]->memory_bytes;
    for (uint32_t i = 0; i < topology.n_sessions; ++i) served |= topology.session_chips[i];
    CHECK(memory == info.memory_bytes && served == (1u << preset.chips) - 1);
    CHECK(topology.n_links >= 2 * preset.chips && topology.n_placements >= 2);
    CHECK(device.cap("queue") == info.queue && device.cap("depth") == info.depth);
  }
}

TEST(options_are_refused_by_name) {
  const struct {
    OpenOptions options;
    const char* says;
  } bad[] = {{{{"clocks", "real"}}, "unknown option \"clocks\""},
             {{{"clock", "fast"}}, "clock=fast"},
             {{{"completion", "push"}}, "callback, wait, poll"},
             {{{"speed", "-1"}}, "speed=-1"},
             {{{"speed", "1x"}}, "speed=1x"},
             {{{"speed", "nan"}}, "speed=nan"},
             {{{"speed", ""}}, "speed="},
             {{{"exclusive", "yes"}}, "exclusive=yes"},
             {{{"memory_mb", "0"}}, "memory_mb=0"},
             {{{"clock", "virtual"}, {"completion", "wait"}}, "completion=wait and clock=virtual"},
             {{{"speed", "2"}, {"clock", "virtual"}}, "speed and clock=virtual"}};
  for (const auto& each : bad) {
    MockDevice device("", each.options);
    CHECK(device.device == nullptr && device.failure.raw.code == CALD_INVALID_ARGUMENT);
    CHECK(device.failure.says(each.says));
  }
  MockDevice unknown("tinny");
  CHECK(unknown.device == nullptr && unknown.failure.says("tiny, bare, qwen3-30b-a3b, dual-chip"));
  MockDevice good("", {{"clock", "virtual"}, {"exclusive", "1"}, {"memory_mb", "2"}});
  const cald_device_info info = good.info();
  CHECK(info.clock == CALD_CLOCK_VIRTUAL && info.completion == CALD_COMPLETION_POLL);
  CHECK(info.exclusive == 1 && info.memory_bytes == 2u << 20);
}

// Of a sanitizer's allocator mallinfo knows nothing.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
#else
constexpr bool kSanitized = false;
#endif

TEST(a_cell_costs_no_more_than_20_bytes_of_the_host) {
  const MockPackage package(qwen_shape());
  MockDevice device("qwen3-30b-a3b", {{"clock", "virtual"}});
  const cald_load_options options = kQwenArgs.options(package.shape());
  cald_footprint need{};
  need.struct_size = sizeof need;
  CHECK(mock_table().model_footprint(device.device, &package.package, &options, &need, nullptr) ==
        CALD_OK);
  CHECK(need.host_bytes <= 20 * 40'960);
  CHECK(need.device_bytes == 18'187'039'015 + 3'840ull * (1 << 20));  // 16.938 + 3.750 GiB
  const struct mallinfo2 before = mallinfo2();
  MockModel model(device, package, kQwenArgs);
  device.session();
  const struct mallinfo2 after = mallinfo2();
  CHECK(model.model != nullptr);
  const uint64_t bytes = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
  CHECK(kSanitized || (bytes >= 8 * 40'960 && bytes <= 20 * 40'960));
  CHECK(device.info().memory_free == device.info().memory_bytes - need.device_bytes);
  CHECK(model.info.weight_bytes + model.info.kv_bytes == need.device_bytes);
  // It computes, too: the longest lane there is.
  model.write(0, 0, std::vector<uint32_t>(2 * 40'960, 3));
  CHECK(argmax(model.decode(1, {{7, 40'959, 0}})[0]) != argmax(model.decode(1, {{7, 0, 0}})[0]));
  CHECK(device.counter("cells_read") == 40'960 + 1);
}

TEST(loads_beyond_the_device_are_refused) {
  const MockPackage any, bare(kBare);
  const struct {
    const char* preset;
    const MockPackage* package;
    LoadArgs args;
    cald_status code;
    const char* says;
  } bad[] = {
      {"", &any, {.lanes = 17}, CALD_OUT_OF_RANGE, "lanes=17"},
      {"", &any, {.lanes = 0}, CALD_OUT_OF_RANGE, "lanes=0"},
      {"", &any, {.cells = 4097}, CALD_OUT_OF_RANGE, "cells=4097"},
      {"", &any, {.parallel = "tensor"}, CALD_UNSUPPORTED, "parallel=tensor"},
      {"", &any, {.placement = "chip:1"}, CALD_UNSUPPORTED, "placement=chip:1"},
      {"", &any, {.logits = CALD_F16}, CALD_UNSUPPORTED, "dtype 3"},
      {"bare", &any, {.lanes = 1}, CALD_UNSUPPORTED, "lane_map 2"},
      {"bare", &bare, {.lanes = 2, .logits = CALD_BF16}, CALD_OUT_OF_RANGE, "lanes=2"},
      {"dual-chip", &any, {.placement = "any"}, CALD_UNSUPPORTED, "placement=any"},
      {"dual-chip", &any, {.placement = "chips:0+1"}, CALD_UNSUPPORTED, "parallel=none"},
      {"dual-chip", &any, {.parallel = "tensor"}, CALD_UNSUPPORTED, "placement=chip:0"},
      {"",
       &any,
       {.progress = [](void*, uint64_t, uint64_t) { return 1; }},
       CALD_CANCELLED,
       "cancelled"},
  };
  for (const auto& each : bad) {
    MockDevice device(each.preset);
    MockModel model(device, *each.package, each.args);
    CHECK(model.model == nullptr && model.failure.raw.code == each.code);
    CHECK(model.failure.says(each.says));
    CHECK(device.info().memory_free == device.info().memory_bytes);
  }
  MockDevice small("", {{"memory_mb", "1"}});
  const LoadArgs half{.lanes = 16, .cells = 4096};
  MockModel first(small, any, half), second(small, any, half), third(small, any, half);
  CHECK(first.model != nullptr && second.model != nullptr && third.model == nullptr);
  CHECK(third.failure.raw.code == CALD_OUT_OF_DEVICE_MEMORY);
  CHECK(third.failure.says("524288 bytes of device memory: 0 of 1048576"));
}

TEST(a_model_runs_on_the_session_of_its_chip) {
  const MockPackage package({.profiles = {1, 4}, .decode_map = CALD_LANE_MAP_IDENTITY});
  MockDevice device("dual-chip", {{"clock", "virtual"}});
  MockModel zero(device, package, {.placement = "chip:0"});
  MockModel one(device, package, {.placement = "chip:1"});
  MockModel both(device, package, {.parallel = "tensor", .placement = "chips:0+1"});
  one.session = 1;
  const auto right = zero.decode(1, {{5, 0, 0}});
  CHECK(one.decode(1, {{5, 0, 0}}) == right && both.decode(1, {{5, 0, 0}}) == right);
  one.session = 0;
  const auto bindings = one.decode_bindings(0, {{5, 0, 0}});
  CHECK(one.run(0, bindings) == CALD_INVALID_ARGUMENT && one.failure.says("session 1"));
  both.session = 1;
  CHECK(both.run(0, both.decode_bindings(0, {{5, 0, 0}})) == CALD_INVALID_ARGUMENT);
}

// ---- jobs that must not be accepted -------------------------------------------------------------

TEST(bindings_are_checked) {
  const MockPackage package;
  MockDevice device("", {{"clock", "virtual"}}), other;
  MockModel model(device, package), foreign(other, package);
  const uint32_t g = model.graph("decode_b4"), p = model.graph("prefill_t16");
  const auto good = model.decode_bindings(g, {{5, 0, 0}, {6, 1, 1}});
  const auto refused = [&](uint32_t graph, std::vector<cald_binding> bindings, cald_status code,
                           const char* says) {
    const bool as_expected = model.run(graph, bindings) == code && model.failure.says(says);
    if (!as_expected) std::fprintf(stderr, "%s: %s\n", says, model.failure.raw.message);
    return as_expected;
  };
  const auto with = [&](size_t index, auto&& change) {
    auto bindings = good;
    change(&bindings[index]);
    return bindings;
  };
  CHECK(refused(99, good, CALD_OUT_OF_RANGE, "graph=99"));
  CHECK(refused(g, {good[0], good[1], good[2]}, CALD_INVALID_ARGUMENT, "lanes is not bound"));
  CHECK(refused(g, {good[0], good[0], good[1], good[2], good[3]}, CALD_INVALID_ARGUMENT, "twice"));
  CHECK(refused(g, with(0, [](auto* b) { b->role = CALD_ROLE_N_VALID; }), CALD_INVALID_ARGUMENT,
                "no role n_valid"));
  CHECK(refused(g, with(0, [](auto* b) { b->role = 77; }), CALD_INVALID_ARGUMENT, "no role ?"));
  CHECK(refused(g, with(0, [](auto* b) { b->buffer = nullptr; }), CALD_INVALID_HANDLE, "tokens"));
  CHECK(refused(g, with(0, [](auto* b) { b->offset = 8; }), CALD_OUT_OF_RANGE, "16 bytes at 8"));
  CHECK(refused(g, with(0, [](auto* b) { b->offset = UINT64_MAX; }), CALD_OUT_OF_RANGE, "tokens"));
  CHECK(refused(g, with(0, [](auto* b) { b->bytes = 12; }), CALD_SHAPE_MISMATCH, "12 bytes"));
  CHECK(refused(g, with(2, [](auto* b) { b->bytes -= 4; }), CALD_SHAPE_MISMATCH, "4 rows need"));
  CHECK(refused(g, foreign.decode_bindings(g, {{5, 0, 0}}), CALD_INVALID_HANDLE, "another device"));
  const cald_binding big = model.make(CALD_ROLE_TOKENS, 128);
  CHECK(refused(g, with(0, [&](auto* b) { *b = {b->role, 0, big.buffer, 4, 16}; }),
                CALD_INVALID_ARGUMENT, "aligned to 64"));
  mock_table().buffer_free(big.buffer);

  const auto decode = [&](std::vector<DecodeRow> rows) { return model.decode_bindings(g, rows); };
  CHECK(refused(g, decode({{512, 0, 0}}), CALD_OUT_OF_RANGE, "tokens[0]=512"));
  CHECK(refused(g, decode({{-1, 0, 0}}), CALD_OUT_OF_RANGE, "tokens[0]=-1"));
  CHECK(refused(g, decode({{1, 512, 0}}), CALD_OUT_OF_RANGE, "positions[0]=512"));
  CHECK(refused(g, decode({{1, 0, 4}}), CALD_OUT_OF_RANGE, "lanes[0]=4"));
  CHECK(refused(g, decode({{1, 0, 2}, {1, 0, -1}, {1, 1, 2}}), CALD_INVALID_ARGUMENT,
                "rows 0 and 2 are both on lane 2"));
  const auto prefill = [&](int32_t first, int32_t valid, Tokens rows) {
    auto bindings = model.prefill_bindings(p, Tokens(16, 5), first, 0, rows);
    *static_cast<int32_t*>(MockModel::mapped(bindings[2])) = valid;
    return bindings;
  };
  CHECK(refused(p, prefill(0, 0, {}), CALD_OUT_OF_RANGE, "n_valid[0]=0"));
  CHECK(refused(p, prefill(0, 17, {}), CALD_OUT_OF_RANGE, "n_valid[0]=17"));
  CHECK(refused(p, prefill(0, 4, {4}), CALD_OUT_OF_RANGE, "logit_rows[0]=4"));
  CHECK(refused(p, prefill(500, 16, {}), CALD_OUT_OF_RANGE, "positions[12]=512"));
  auto gap = prefill(0, 16, {});
  static_cast<int32_t*>(MockModel::mapped(gap[1]))[9] = 10;
  CHECK(refused(p, gap, CALD_INVALID_ARGUMENT, "9 is due"));
  CHECK(device.counter("jobs") == 0 && device.counter("cells_written") == 0);
}

TEST(kv_operations_are_checked) {
  const MockPackage package;
  MockDevice device("", {{"clock", "virtual"}});
  MockModel model(device, package);
  const auto refused = [&](auto&& change, cald_status code, const char* says) {
    cald_kv_desc desc = model.kv_desc(CALD_KV_RANGE_COPY, 0, 0, 4);
    change(&desc);
    return model.run(desc) == code && model.failure.says(says);
  };
  CHECK(refused([](auto* d) { d->op = 3; }, CALD_INVALID_ARGUMENT, "op=0x3"));
  CHECK(refused([](auto* d) { d->op = 64; }, CALD_INVALID_ARGUMENT, "op=0x40"));
  CHECK(refused([](auto* d) { d->lane = 4; }, CALD_OUT_OF_RANGE, "lane=4"));
  CHECK(refused([](auto* d) { d->to_lane = 4; }, CALD_OUT_OF_RANGE, "to_lane=4"));
  CHECK(refused([](auto* d) { d->n = 0; }, CALD_OUT_OF_RANGE, "0 cells"));
  CHECK(refused([](auto* d) { d->cell = 509; }, CALD_OUT_OF_RANGE, "cell=509"));
  CHECK(refused([](auto* d) { d->to_cell = UINT32_MAX; }, CALD_OUT_OF_RANGE, "to_cell"));
  CHECK(refused([](auto* d) { d->op = CALD_KV_READ; }, CALD_INVALID_HANDLE, "buffer is null"));
  const cald_binding small = model.make(0, 64);
  const auto read = [&](uint64_t offset, uint64_t bytes) {
    return [&small, offset, bytes](auto* d) {
      d->op = CALD_KV_READ;
      d->buffer = small.buffer;
      d->offset = offset;
      d->bytes = bytes;
    };
  };
  CHECK(refused(read(0, 31), CALD_SHAPE_MISMATCH, "bytes=31"));
  CHECK(refused(read(40, 32), CALD_OUT_OF_RANGE, "32 bytes at 40"));
  mock_table().buffer_free(small.buffer);
  // What overlaps is copied as if by way of another place; a cell can be cleared.
  std::vector<uint32_t> cells(2 * 8);
  for (uint32_t i = 0; i < 16; ++i) cells[i] = 100 + i;
  model.write(0, 0, cells);
  cald_kv_desc overlap = model.kv_desc(CALD_KV_RANGE_COPY, 0, 0, 6);
  overlap.to_cell = 2;
  CHECK(model.run(overlap) == CALD_OK);
  CHECK(model.read(0, 8) == std::vector<uint32_t>({100, 101, 100, 101, 102, 103, 104, 105,  //
                                                   108, 109, 108, 109, 110, 111, 112, 113}));
  CHECK(model.run(model.kv_desc(CALD_KV_CLEAR, 0, 1, 6)) == CALD_OK);
  CHECK(model.read(0, 8) == std::vector<uint32_t>({100, 0, 0, 0, 0, 0, 0, 105,  //
                                                   108, 0, 0, 0, 0, 0, 0, 113}));
}

TEST(a_binding_set_binds_what_it_knows) {
  const MockPackage package;
  MockDevice device("", {{"clock", "virtual"}});
  MockModel model(device, package);
  const uint32_t g = model.graph("decode_b1");
  auto bindings = model.decode_bindings(g, {{5, 0, 0}});
  cald_binding_set* set = nullptr;
  CHECK(mock_table().binding_set_make(model.model, g, bindings.data(),
                                      static_cast<uint32_t>(bindings.size()), &set,
                                      nullptr) == CALD_OK);
  const auto run = [&] {
    cald_job_desc desc = model.desc(g, bindings);
    desc.set = set;
    cald_job* job = nullptr;
    const cald_status status =
        mock_table().submit(device.session(), &desc, &job, &model.failure.raw);
    return model.finish(status, job);
  };
  CHECK(run() == CALD_OK);
  const cald_binding other = model.make(CALD_ROLE_TOKENS, 4);
  bindings[0] = other;
  CHECK(run() == CALD_INVALID_ARGUMENT && model.failure.says("binding set has not"));
  mock_table().binding_set_free(set);
  mock_table().buffer_free(other.buffer);
}

// ---- buffers ------------------------------------------------------------------------------------

TEST(buffers_have_rules_and_counts) {
  MockDevice device("", {{"memory_mb", "1"}, {"speed", "0"}}), bare("bare");
  cald_buffer_rules rules{};
  rules.struct_size = sizeof rules;
  CHECK(mock_table().buffer_rules(device.device, CALD_DOMAIN_DEVICE, &rules, nullptr) == CALD_OK);
  CHECK(rules.align == 64 && rules.padding == 64 && rules.max_bytes == 1u << 20);
  CHECK(mock_table().buffer_rules(device.device, CALD_DOMAIN_SHARED, &rules, nullptr) ==
        CALD_UNSUPPORTED);
  CHECK(mock_table().buffer_rules(bare.device, CALD_DOMAIN_DEVICE, &rules, nullptr) ==
        CALD_UNSUPPORTED);
  Failure failure;
  const auto alloc = [&](uint64_t bytes, uint64_t align = 64) {
    cald_buffer* made = nullptr;
    mock_table().buffer_alloc(device.device, CALD_DOMAIN_DEVICE, bytes, align, &made, &failure.raw);
    return made;
  };
  CHECK(alloc(0) == nullptr && failure.raw.code == CALD_OUT_OF_RANGE);
  CHECK(alloc(64, 48) == nullptr && failure.says("align=48"));
  CHECK(alloc((1u << 20) + 1) == nullptr && failure.raw.code == CALD_OUT_OF_DEVICE_MEMORY);
  cald_buffer* buffer = alloc(1u << 20);
  CHECK(buffer != nullptr && device.info().memory_free == 0);
  CHECK(alloc(64) == nullptr);
  void* address = nullptr;
  CHECK(mock_table().buffer_map(buffer, &address, &failure.raw) == CALD_UNSUPPORTED);
  char out[100], in[100] = "what goes in comes out";
  cald_transfer transfer{sizeof transfer, CALD_TO_DEVICE, buffer, 1000, in, sizeof in, 99};
  CHECK(mock_table().buffer_transfer(&transfer, nullptr) == CALD_OK && transfer.moved == sizeof in);
  transfer.direction = CALD_TO_HOST;
  transfer.host = out;
  CHECK(mock_table().buffer_transfer(&transfer, nullptr) == CALD_OK);
  CHECK(std::memcmp(in, out, sizeof in) == 0);
  CHECK(device.counter("h2d_bytes") == 100 && device.counter("d2h_bytes") == 100);
  transfer.offset = (1u << 20) - 99;
  CHECK(mock_table().buffer_transfer(&transfer, &failure.raw) == CALD_OUT_OF_RANGE);
  CHECK(transfer.moved == 0);
  transfer.direction = 7;
  transfer.offset = 0;
  CHECK(mock_table().buffer_transfer(&transfer, &failure.raw) == CALD_INVALID_ARGUMENT);
  mock_table().buffer_free(buffer);
  CHECK(device.info().memory_free == 1u << 20);
}

TEST(jobs_may_bind_device_memory_which_no_link_is_charged_for) {
  const MockPackage package;
  MockDevice device("", {{"clock", "virtual"}});
  MockModel model(device, package);
  const uint32_t g = model.graph("decode_b1");
  auto bindings = model.decode_bindings(g, {{5, 0, 0}});
  const auto right = model.decode(1, {{5, 0, 0}});
  const uint64_t before = device.counter("busy_ns");
  const cald_binding inside = model.make(CALD_ROLE_LOGITS, bindings[2].bytes, CALD_DOMAIN_DEVICE);
  bindings[2] = inside;
  CHECK(model.run(g, bindings) == CALD_OK);
  CHECK(device.counter("busy_ns") - before == 2'000 + 1 + 100'000);
  std::vector<float> row(512);
  CHECK(mock_table().buffer_d2h(inside.buffer, 0, row.data(), 2048, nullptr) == CALD_OK);
  CHECK(row == right[0] && device.counter("transfer_ns") == 2'000 + 171);
  mock_table().buffer_free(inside.buffer);
}
