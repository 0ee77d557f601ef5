// SPDX-License-Identifier: Apache-2.0
// The stand-in SDK by its headers: mock's answers when it behaves, and each vice where it shows.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "tests/mock_client.h"
#include "tests/standin_sdk_rig.h"

using namespace calrt;
using namespace calrt::testing;

namespace {

constexpr const char* kFunctions[] = {
#define STANDIN_FUNCTION(name) #name,
#include "functions.inc"
#undef STANDIN_FUNCTION
};

Tokens prompt(uint32_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 512);
  return tokens;
}

// A lane of mock that does what a sequence of the stand-in does.
struct Oracle {
  MockDevice device;
  MockPackage package;
  MockModel model{device, package};

  std::vector<float> step(const Tokens& tokens, int32_t first, int32_t lane) {
    return tokens.size() == 1
               ? model.decode(1, {{tokens[0], first, lane}})[0]
               : model.prefill(tokens.size() <= 16 ? 16 : 64, tokens, first, lane)[0];
  }
};

// Every function of the header once, each with success; with the vices of the environment.
void call_everything() {
  const char* vices = std::getenv("CALRT_STANDIN_VICES");
  Sdk sdk(std::string(vices != nullptr ? vices : "").c_str());
  CHECK(calculet::last_error() != nullptr && std::strcmp(calrt_version(), CALRT_SDK_VERSION) == 0);
  auto kv = sdk.kv();
  uint32_t count = 0;
  uint64_t total = 0, now = 0;
  int number = 0;
  calrt_vdev_desc device{};
  calrt_counters counters{};
  calrt_model_desc model{};
  calrt_graph_desc graph{};
  calrt_io_desc io{};
  CHECK(calrt_vdev_count(&count) == 0 && count == 1 && sdk.device.info(&device) == 0);
  CHECK(sdk.device.chip_memory(1, &total, &now) == 0 && sdk.device.parallel_mode(&number) == 0);
  CHECK(sdk.device.counters(&counters) == 0 && sdk.device.trace_start(8) == 0);
  CHECK(sdk.model.info(&model) == 0 && sdk.model.graph(0, &graph) == 0);
  CHECK(sdk.model.input(0, 0, &io) == 0);
  CHECK(sdk.step({1}, 0, 0).size() == 512);
  const RunInputs inputs({2}, 1, 0);
  CHECK(kv.Apply(0, 2) == 0 && sdk.model.bind_set(0, CALRT_PONG, inputs.pointers) == 0);
  uint64_t run = 0;
  CHECK(sdk.model.infer(0, CALRT_PONG, nullptr, &run) == 0 && sdk.wait().run == run);
  CHECK(sdk.state_of(run) == CALRT_RUN_DONE && sdk.model.cancel(run) == CALRT_E_STATE);
  CHECK(sdk.model.output_state(0, CALRT_PONG, &number, &run) == 0 && sdk.free_cells() == 510);
  uint32_t cells[4] = {};
  CHECK(kv.seq_cells(0, &count) == 0 && count == 2 && kv.copy(0, 1, 0, 2) == 0);
  CHECK(kv.add(1, 1, 2, -1) == 0 && kv.div(0, 0, 2, 2) == 0 && kv.rm(1, 0, UINT32_MAX) == 0);
  CHECK(kv.state_get(0, 0, 2, cells, sizeof cells) == 0);
  CHECK(kv.state_set(0, 0, 2, cells, sizeof cells) == 0);
  CHECK(kv.keep(0) == 0 && kv.release(0) == 0 && sdk.free_cells() == 512);
  calrt_trace_event event{};
  count = 1;
  CHECK(sdk.device.trace_read(&event, &count, &now) == 0 && sdk.device.trace_stop() == 0);
}

}  // namespace

TEST(the_list_of_functions_is_the_headers) {
  std::ifstream file(STANDIN_SDK_DIR "/include/calculet/calrt_sdk.h");
  std::set<std::string> declared, listed(std::begin(kFunctions), std::end(kFunctions));
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("CALRT_SDK_API", 0) != 0) continue;
    const std::string front = line.substr(0, line.find('('));
    declared.insert(front.substr(front.rfind("calrt_") + 6));
  }
  CHECK(listed.size() == std::size(kFunctions) && listed == declared);
}

TEST(one_prompt_gives_mocks_logits) {
  Oracle mock;
  for (const char* vices : {"", "d0_padding"}) {
    Sdk sdk(vices);
    const Tokens tokens = prompt(100);
    const Tokens head(tokens.begin(), tokens.begin() + 64), tail(tokens.begin() + 64, tokens.end());
    const Tokens few = prompt(9, 2);
    CHECK(sdk.step(head, 0, 3) == mock.step(head, 0, 0));
    CHECK(sdk.step(few, 0, 5) == mock.step(few, 0, 1));  // a neighbour changes nothing
    std::vector<float> logits = sdk.step(tail, 64, 3);
    CHECK(logits == mock.step(tail, 64, 0));
    for (int32_t at = 100; at < 130; ++at) {
      const int32_t token = argmax(logits);
      logits = sdk.step({token}, at, 3, at % 2);
      CHECK(logits == mock.step({token}, at, 0));
    }
    calrt_io_desc io{};
    CHECK(sdk.model.output(0, 0, &io) == 0 && io.d0 == 16 && io.dtype == CALRT_DT_BF16);
    CHECK(io.dims[0] == 1 && io.dims[1] == 512 && io.bytes == 2 * io.padded[0] * io.padded[1]);
    CHECK(io.padded[0] == (*vices == 0 ? 4u : 7u) && io.padded[1] == (*vices == 0 ? 512u : 528u));
  }
}

TEST(the_device_says_what_it_is) {
  const StandinPackage dual(64, "tensor");
  calculet::VirtualDevice device, second;
  calculet::Model model;
  uint64_t total = 0, before = 0, after = 0;
  int mode = -1;
  CHECK(device.open(0) == CALRT_E_NOT_INIT && init_with("") == 0);
  CHECK(calculet::init() == CALRT_E_INIT_TWICE && device.open(1) == CALRT_E_NO_DEVICE);
  CHECK(device.open(0) == 0 && second.open(0) == CALRT_E_DEVICE_BUSY);
  CHECK(std::strcmp(calculet::last_error(), "the device is open") == 0);
  CHECK(device.parallel_mode(&mode) == 0 && mode == CALRT_PARALLEL_TENSOR);
  CHECK(device.chip_memory(1, &total, &before) == 0 && total == before && total > 0);
  CHECK(device.chip_memory(2, &total, &before) == CALRT_E_ARGUMENT);
  CHECK(device.load("nowhere", &model) == CALRT_E_FILE_MISSING);
  CHECK(device.set_parallel_mode(CALRT_PARALLEL_NONE) == 0);
  CHECK(device.load(dual.folder.c_str(), &model) == CALRT_E_FILE_VERSION);
  CHECK(device.set_parallel_mode(CALRT_PARALLEL_TENSOR) == 0);
  CHECK(device.load(dual.folder.c_str(), &model) == 0);
  CHECK(device.load(dual.folder.c_str(), &model) == CALRT_E_MODEL_LIMIT);
  CHECK(device.set_parallel_mode(CALRT_PARALLEL_NONE) == CALRT_E_STATE);
  CHECK(device.close() == CALRT_E_STATE && calculet::shutdown() == CALRT_E_STATE);
  calrt_model_desc desc{};
  CHECK(model.info(&desc) == 0 && desc.vocab == 512 && desc.context == 64 && desc.graphs == 3);
  CHECK(device.chip_memory(0, &total, &after) == 0);
  CHECK(2 * (before - after) == (desc.weight_bytes + desc.kv_bytes) / 2 * 2);
  CHECK(model.unload() == 0 && model.unload() == CALRT_E_HANDLE);
  for (const char* broken : {"", "{}", "[1", R"({"model": {"vocab": 0, "context": 1}})"}) {
    dual.write(broken);
    CHECK(device.load(dual.folder.c_str(), &model) == CALRT_E_FILE_FORMAT);
  }
  CHECK(device.close() == 0 && calculet::shutdown() == 0);
}

TEST(a_bad_run_answers_its_number_and_computes_nothing) {
  Sdk sdk;
  CHECK(sdk.kv().Apply(0, 8) == 0);
  const auto error_of = [&](const Tokens& tokens, int32_t first, int32_t seq, int32_t gap = 0) {
    RunInputs inputs(tokens, first, seq);
    inputs.positions.at(tokens.size() - 1) += gap;
    const uint64_t run = sdk.infer(inputs);
    const calrt_done done = sdk.wait();
    calculet::OutputBuf out;
    CHECK(done.run == run && sdk.state_of(run) == CALRT_RUN_FAILED);
    int state = -1;
    uint64_t of = 1;
    CHECK(sdk.model.acquire(run, &out) == CALRT_E_OUTBUF_STATE);
    CHECK(sdk.model.output_state(inputs.graph, CALRT_PING, &state, &of) == 0);
    CHECK(state == CALRT_OUTBUF_FREE && of == 0);
    return done.error;
  };
  CHECK(error_of({512}, 0, 0) == CALRT_E_IO_VALUE && error_of({-1}, 0, 0) == CALRT_E_IO_VALUE);
  CHECK(error_of({1}, -1, 0) == CALRT_E_IO_VALUE && error_of({1}, 0, 16) == CALRT_E_IO_VALUE);
  CHECK(error_of({1, 2}, 0, 0, 1) == CALRT_E_IO_VALUE);
  CHECK(error_of({1}, 8, 0) == CALRT_E_KV_RANGE && error_of({1, 2}, 7, 0) == CALRT_E_KV_RANGE);
  std::vector<uint32_t> cells(16, 1);
  CHECK(sdk.kv().state_get(0, 0, 8, cells.data(), 64) == 0 && cells == std::vector<uint32_t>(16));
  uint64_t run = 0;
  int state = 0;
  calrt_done done{};
  CHECK(sdk.model.infer(3, 0, nullptr, &run) == CALRT_E_IO_INDEX);
  CHECK(sdk.model.infer(0, 2, nullptr, &run) == CALRT_E_ARGUMENT);
  CHECK(sdk.model.infer(0, 0, nullptr, &run) == CALRT_E_ARGUMENT);
  CHECK(sdk.model.query(1'000'000, &state) == CALRT_E_RUN_UNKNOWN);
  CHECK(sdk.model.Wait(&done) == CALRT_E_STATE && run == 0);
}

TEST(an_output_moves_through_its_states) {
  Sdk sdk;
  CHECK(sdk.kv().Apply(0, 2) == 0);
  const RunInputs inputs({7}, 0, 0);
  int state = -1;
  uint64_t of = 0, run = 0;
  const auto is = [&](int wanted, uint64_t run_of) {
    return sdk.model.output_state(0, CALRT_PONG, &state, &of) == 0 && state == wanted &&
           of == run_of;
  };
  CHECK(is(CALRT_OUTBUF_FREE, 0));
  const uint64_t first = sdk.infer(inputs, CALRT_PONG);
  (void)sdk.wait();
  CHECK(is(CALRT_OUTBUF_READY, first));
  const uint64_t second = sdk.infer(inputs, CALRT_PONG);  // overwrites it without a word
  (void)sdk.wait();
  calculet::OutputBuf out;
  CHECK(sdk.model.acquire(first, &out) == CALRT_E_OUTBUF_STATE);
  CHECK(sdk.model.acquire(second, &out) == 0 && is(CALRT_OUTBUF_ACQUIRED, second));
  CHECK(sdk.model.infer(0, CALRT_PONG, inputs.pointers, &run) == CALRT_E_OUTBUF_STATE);
  CHECK(sdk.model.release(second) == 0 && is(CALRT_OUTBUF_FREE, 0));
  CHECK(sdk.model.release(second) == CALRT_E_OUTBUF_STATE);
}

TEST(lent_inputs_are_read_when_the_run_begins) {
  Oracle mock;
  Sdk sdk("run_takes@1:100000");
  CHECK(sdk.kv().Apply(0, 1) == 0 && sdk.kv().Apply(1, 1) == 0);
  const RunInputs first({7}, 0, 0);
  RunInputs second({8}, 0, 1);
  (void)sdk.infer(first);
  const uint64_t run = sdk.infer(second, CALRT_PONG);
  second.ids[0] = 9;
  const bool early = sdk.state_of(run) == CALRT_RUN_QUEUED;
  (void)sdk.wait();
  CHECK(sdk.wait().run == run);
  const std::vector<float> logits = sdk.taken(0, run);
  if (early) CHECK(logits == mock.step({9}, 0, 0));
}

TEST(a_run_that_has_not_begun_can_be_taken_back) {
  for (const std::string vice : {"", ",completion_after_cancel"}) {
    const Ended child = in_child("run_never_ends@1" + vice, [&] {
      Sdk sdk(("run_never_ends@1" + vice).c_str());
      CHECK(sdk.kv().Apply(0, 2) == 0);
      const RunInputs inputs({7}, 0, 0);
      const uint64_t first = sdk.infer(inputs), second = sdk.infer(inputs, CALRT_PONG);
      while (sdk.state_of(first) != CALRT_RUN_RUNNING) std::this_thread::yield();
      uint64_t run = 0;
      CHECK(sdk.model.infer(1, 0, inputs.pointers, &run) != 0);
      const RunInputs third({1, 2}, 0, 0);
      CHECK(sdk.model.infer(1, 0, third.pointers, &run) == CALRT_E_QUEUE_FULL);
      CHECK(sdk.model.cancel(first) == CALRT_E_STATE && sdk.model.cancel(second) == 0);
      CHECK(sdk.state_of(second) == CALRT_RUN_CANCELLED);
      CHECK(sdk.kv().release(0) == CALRT_E_STATE && sdk.model.unload() == CALRT_E_STATE);
      if (!vice.empty()) CHECK(sdk.wait().run == second);
      CHECK(sdk.infer(inputs, CALRT_PONG) > second);
      std::fputs("finished\n", stderr);
      _exit(failures() == 0 ? 0 : 1);  // the device will not end
    });
    CHECK(child.clean() && child.says("finished"));
    if (!child.clean()) std::fputs(child.text.c_str(), stderr);
  }
}

TEST(apply_spins_until_another_releases) {
  Sdk sdk("", 64);
  CHECK(sdk.kv().Apply(0, 60) == 0 && sdk.kv().Apply(0, 8) == 0 && sdk.free_cells() == 4);
  CHECK(sdk.kv().Apply(1, 65) == CALRT_E_KV_RANGE && sdk.kv().Apply(16, 1) == CALRT_E_KV_SEQ);
  std::atomic<bool> asked = false, released = false, too_early = false;
  std::thread waiter([&] {
    asked = true;
    CHECK(sdk.kv().Apply(1, 5) == 0);
    too_early = !released;
  });
  while (!asked) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(sdk.free_cells() == 4);  // others are not held up
  released = true;
  CHECK(sdk.kv().release(0) == 0);
  waiter.join();
  CHECK(!too_early && sdk.free_cells() == 59);
}

TEST(the_kv_adapter_does_what_mocks_does) {
  Oracle mock;
  Sdk sdk;
  auto kv = sdk.kv();
  const Tokens tokens = prompt(40, 5);
  (void)sdk.step(tokens, 0, 0);
  (void)mock.step(tokens, 0, 0);
  cald_kv_desc copy = mock.model.kv_desc(CALD_KV_LANE_COPY, 0, 0, 40);
  copy.to_lane = 1;
  CHECK(kv.copy(0, 1, 0, UINT32_MAX) == 0 && mock.model.run(copy) == CALD_OK);
  CHECK(sdk.free_cells() == 512 - 80);
  CHECK(sdk.step({3}, 40, 1) == mock.step({3}, 40, 1));

  // Context shift by 8, as rm and add, beside mock's move and turn.
  CHECK(kv.rm(1, 4, 12) == 0 && kv.add(1, 12, 41, -8) == 0 && sdk.free_cells() == 512 - 73);
  cald_kv_desc move = mock.model.kv_desc(CALD_KV_RANGE_COPY, 1, 12, 29);
  move.to_lane = 1;
  move.to_cell = 4;
  cald_kv_desc turn = mock.model.kv_desc(CALD_KV_ROTATE, 1, 4, 29);
  turn.delta = -8;
  CHECK(mock.model.run(move) == CALD_OK && mock.model.run(turn) == CALD_OK);
  CHECK(sdk.step({5}, 33, 1) == mock.step({5}, 33, 1));
  CHECK(kv.add(1, 30, 34, 1) == CALRT_E_KV_RANGE && kv.rm(1, 0, 35) == CALRT_E_KV_RANGE);

  std::vector<uint32_t> cells(2 * 34);
  CHECK(kv.state_get(1, 0, 34, cells.data(), 8 * 34) == 0 && cells == mock.model.read(1, 34));
  CHECK(kv.state_get(1, 0, 34, cells.data(), 8) == CALRT_E_ARGUMENT);
  CHECK(kv.state_set(2, 0, 34, cells.data(), 8 * 34) == CALRT_E_KV_RANGE);
  CHECK(kv.Apply(2, 34) == 0 && kv.state_set(2, 0, 34, cells.data(), 8 * 34) == 0);
  CHECK(sdk.step({6}, 34, 2) == mock.step({6}, 34, 1));

  CHECK(kv.keep(2) == 0 && sdk.free_cells() == 512 - 35 && kv.rm(2, 8, UINT32_MAX) == 0);
  CHECK(sdk.free_cells() == 504 && kv.div(2, 4, 8, 2) == 0 && kv.add(2, 2, 4, 3) == 0);
  CHECK(kv.state_get(2, 0, 8, cells.data(), 64) == 0);
  const std::vector<uint32_t> positions(cells.begin(), cells.begin() + 8);
  CHECK(positions == std::vector<uint32_t>({0, 1, 0, 0, 0, 5, 6, 0}));
}

TEST(kv_operations_can_be_silent_noops) {
  Oracle mock;
  Sdk sdk("kv_silent_noops");
  auto kv = sdk.kv();
  (void)sdk.step(prompt(4), 0, 0);
  (void)mock.step(prompt(4), 0, 0);
  std::vector<uint32_t> cells(8, 77);
  CHECK(kv.copy(0, 1, 0, 4) == 0 && sdk.free_cells() == 508);
  CHECK(kv.add(0, 0, 3, 1) == 0 && kv.div(0, 0, 4, 2) == 0);
  CHECK(kv.state_set(0, 0, 4, cells.data(), 32) == 0);
  cells.assign(8, 78);
  CHECK(kv.state_get(0, 0, 4, cells.data(), 32) == 0 && cells == std::vector<uint32_t>(8, 78));
  CHECK(sdk.step({9}, 4, 0) == mock.step({9}, 4, 0));
}

TEST(an_output_can_be_reused_while_it_is_read) {
  Oracle mock;
  Sdk sdk("outputbuf_reused_early@2");
  CHECK(sdk.step({7}, 0, 0) == mock.step({7}, 0, 0));
  CHECK(sdk.kv().Apply(0, 2) == 0);
  const RunInputs inputs({8}, 1, 0);
  const uint64_t run = sdk.infer(inputs);
  CHECK(sdk.wait().run == run);
  calculet::OutputBuf out;
  calrt_io_desc io{};
  int state = 0;
  uint64_t of = 0;
  CHECK(sdk.model.acquire(run, &out) == 0 && sdk.model.output(0, 0, &io) == 0);
  CHECK(untiled(io, out.data()) != mock.step({8}, 1, 0));
  CHECK(sdk.model.output_state(0, CALRT_PING, &state, &of) == 0);
  CHECK(state == CALRT_OUTBUF_WRITING && of > run && sdk.model.release(run) == 0);
  CHECK(sdk.step({9}, 2, 0) == mock.step({9}, 2, 0));
}

TEST(completions_can_come_twice_late_or_failed) {
  Sdk sdk("completion_twice@1,late_completion@2:30,run_fails@3:25");
  CHECK(sdk.kv().Apply(0, 1) == 0);
  const RunInputs inputs({7}, 0, 0);
  const uint64_t first = sdk.infer(inputs);
  CHECK(sdk.wait().run == first && sdk.wait().run == first);
  calrt_done done{};
  CHECK(sdk.model.Wait(&done) == CALRT_E_STATE);
  const auto before = std::chrono::steady_clock::now();
  (void)sdk.infer(inputs);
  CHECK(sdk.wait().error == 0);
  CHECK(std::chrono::steady_clock::now() - before >= std::chrono::milliseconds(30));
  (void)sdk.infer(inputs);
  CHECK(sdk.wait().error == CALRT_E_CCU);
  calrt_counters counters{};
  CHECK(sdk.device.counters(&counters) == 0 && counters.submitted == 3);
  CHECK(counters.completed == 2 && counters.failed == 1 && counters.outstanding == 0);
}

TEST(error_numbers_can_be_permuted_or_made_up) {
  std::set<int> seen;
  std::string vices = "numbers_permuted";
  for (int number = 1; number <= CALRT_E_INTERNAL; ++number)
    vices += ",call_answers@" + std::to_string(number) + ":vdev_count=" + std::to_string(number);
  Sdk sdk((vices + ",call_answers@31:vdev_count=77").c_str());
  uint32_t count = 0;
  for (int number = 1; number <= CALRT_E_INTERNAL; ++number) {
    const int answer = calrt_vdev_count(&count);
    CHECK(answer >= 1 && answer <= CALRT_E_INTERNAL && answer != number && count == 0);
    seen.insert(answer);
  }
  CHECK(seen.size() == CALRT_E_INTERNAL);
  CHECK(calrt_vdev_count(&count) == 0 && count == 1 && calrt_vdev_count(&count) == 77);
}

TEST(the_trace_has_each_runs_events_in_order) {
  Sdk sdk;
  calrt_trace_event events[8];
  uint32_t n = 8;
  uint64_t now = 0;
  CHECK(sdk.device.trace_read(events, &n, &now) == CALRT_E_TRACE);
  CHECK(sdk.device.trace_start(4) == 0 && sdk.device.trace_start(4) == CALRT_E_TRACE);
  (void)sdk.step({7}, 0, 0);
  (void)sdk.step({8}, 1, 0);
  CHECK(sdk.device.trace_read(events, &n, &now) == 0 && n == 4);  // two were lost
  const int phases[] = {CALRT_TRACE_END, CALRT_TRACE_SUBMIT, CALRT_TRACE_BEGIN, CALRT_TRACE_END};
  for (uint32_t i = 0; i < 4; ++i) {
    CHECK(events[i].phase == phases[i] && std::strcmp(events[i].name, "decode_b1") == 0);
    CHECK(events[i].ticks <= (i < 3 ? events[i + 1].ticks : now));
    CHECK(events[i].run == events[0].run + (i > 0 ? 1 : 0));
  }
  CHECK(sdk.device.trace_stop() == 0 && sdk.device.trace_stop() == CALRT_E_TRACE);
}

TEST(vices_that_are_not_known_are_refused) {
  for (const char* wrong : {"nonsense", "wait_never_returns@0", "wait_never_returns@x", "abort:foo",
                            "abort", "run_takes:x", "completion_twice:1", "call_answers:infer",
                            "call_answers:infer=x", "segfault:infer=1", "run_takes:5,,abort:"}) {
    CHECK(init_with(wrong) == CALRT_E_ARGUMENT);
    CHECK(std::strstr(calculet::last_error(), "is not known") != nullptr);
  }
  CHECK(init_with(",run_takes@3:5,") == 0 && calculet::shutdown() == 0);
}

TEST(every_function_can_fail_to_return_abort_and_segfault) {
  CHECK(in_child("", call_everything).clean());
  for (const std::string name : kFunctions) {
    const Ended hung = in_child("call_never_returns:" + name, call_everything,
                                "vice call_never_returns " + name + ",");
    const Ended aborted = in_child("abort:" + name, call_everything);
    const Ended crashed = in_child("segfault:" + name, call_everything);
    const bool right =
        hung.hung && !hung.says("finished") && aborted.died_of(SIGABRT) && crashed.died_of(SIGSEGV);
    CHECK(right);
    if (!right) std::fprintf(stderr, "%s: %s\n", name.c_str(), hung.text.c_str());
  }
}

TEST(the_nth_occasion_alone_is_one) {
  const Ended child = in_child("abort@2:kv_release", [] {
    Sdk sdk("abort@2:kv_release");
    CHECK(sdk.kv().release(0) == 0);
    std::fputs("once\n", stderr);
    (void)sdk.kv().release(0);
  });
  CHECK(child.died_of(SIGABRT) && child.says("once") && child.says("kv_release, occasion 2"));
}

TEST(wait_and_apply_can_hang) {
  const Ended wait = in_child(
      "",
      [] {
        Sdk sdk("wait_never_returns@2");
        (void)sdk.step({7}, 0, 0);
        CHECK(sdk.kv().Apply(0, 2) == 0);
        const RunInputs inputs({8}, 1, 0);
        const uint64_t run = sdk.infer(inputs);
        while (sdk.state_of(run) != CALRT_RUN_DONE) std::this_thread::yield();
        std::fputs("the run is done\n", stderr);
        (void)sdk.wait();
      },
      "vice wait_never_returns");
  CHECK(wait.hung && wait.says("is done") && wait.says("occasion 2") && !wait.says("finished"));
  const Ended apply = in_child(
      "",
      [] {
        Sdk sdk("apply_spins@2");
        CHECK(sdk.kv().Apply(0, 2) == 0);
        (void)sdk.kv().Apply(0, 3);
      },
      "vice apply_spins");
  CHECK(apply.hung && apply.says("occasion 2") && !apply.says("finished"));
}

TEST(misuse_can_abort) {
  for (const char* vices : {"", "abort_on_misuse"}) {
    const Ended child = in_child("", [&] {
      Sdk sdk(vices);
      calculet::Model stale;
      CHECK(stale.unload() == CALRT_E_HANDLE && sdk.model.release(9) == CALRT_E_OUTBUF_STATE);
    });
    CHECK(*vices == 0 ? child.clean() : child.died_of(SIGABRT) && child.says("misuse: not a"));
  }
}
