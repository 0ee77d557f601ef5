// SPDX-License-Identifier: Apache-2.0
// calrt076-raw-loop DIRECTORY none|tensor: the SDK's own style, infer() and Wait() at once, without
// calrt: arm A of `calrt bench ab`. It says {"rows", "lanes", "cells"} when the model is loaded.
// Each line "run STEPS GROUPS" on stdin runs decode steps, turn by turn on sequence 0 to GROUPS -
// 1, and is answered by {"ns", "sha256": [of each step's logits as F32]}. The time is of the steps
// alone, each with the copy of its output. The end of stdin ends it.
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "drivers/calrt076/sdk_contact.h"

namespace calrt::calrt076 {
namespace {

int failed(const char* what, sdk::Number number) {
  std::printf("{\"error\":\"%s: the SDK's number %d\"}\n", what, number);
  return 1;
}

struct Loop {
  calrt_model* model = nullptr;
  uint32_t index = 0;  // of the decode graph of the fewest rows
  const sdk::Graph* graph = nullptr;
  sdk::ModelFacts facts;

  bool choose() {
    for (uint32_t g = 0; g < facts.graphs.size(); ++g) {
      const sdk::Graph& each = facts.graphs[g];
      if (each.kind != CALD_GRAPH_DECODE || (graph != nullptr && each.rows >= graph->rows))
        continue;
      graph = &each;
      index = g;
    }
    if (graph == nullptr) return false;
    for (const sdk::Io& io : graph->io[0])
      if (io.role != CALD_ROLE_TOKENS && io.role != CALD_ROLE_POSITIONS &&
          io.role != CALD_ROLE_LANES)
        return false;
    return graph->rows == 1 && graph->io[1].size() == 1 &&
           (logits().dtype == CALD_BF16 || logits().dtype == CALD_F32) && logits().rank == 2;
  }
  const sdk::Io& logits() const { return graph->io[1].front(); }

  // The elements that count, in order, whatever the tiles and the padding.
  std::string digest(const std::vector<uint8_t>& output) const {
    const sdk::Io& io = logits();
    const uint64_t d0 = io.d0 != 0 ? io.d0 : io.padded[1], size = io.dtype == CALD_F32 ? 4 : 2;
    std::vector<float> out;
    out.reserve(io.dims[1]);
    for (uint64_t column = 0; column < io.dims[1]; ++column) {
      const uint64_t at = column / d0 * io.padded[0] * d0 + column % d0;
      uint32_t bits = 0;
      std::memcpy(&bits, &output[at * size], size);
      if (size == 2) bits <<= 16;  // BF16 is the upper half of F32
      float value;
      std::memcpy(&value, &bits, sizeof value);
      out.push_back(value);
    }
    return sha256_hex(out.data(), out.size() * sizeof(float));
  }

  int run(uint32_t steps, uint32_t groups) {
    std::vector<std::vector<uint8_t>> outputs(steps, std::vector<uint8_t>(logits().bytes));
    for (uint32_t lane = 0; lane < groups; ++lane)
      if (const sdk::Number error = sdk::apply(model, lane, (steps + groups - 1) / groups);
          error != 0)
        return failed("Apply", error);
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t step = 0; step < steps; ++step) {
      const auto token = static_cast<int32_t>((step * uint64_t{131} + 7) % facts.vocab);
      const auto position = static_cast<int32_t>(step / groups);
      const auto lane = static_cast<int32_t>(step % groups);
      std::vector<const void*> inputs;
      for (const sdk::Io& io : graph->io[0])
        inputs.push_back(io.role == CALD_ROLE_TOKENS      ? &token
                         : io.role == CALD_ROLE_POSITIONS ? &position
                                                          : &lane);
      uint64_t run = 0, ended = 0;
      sdk::Number error = 0;
      if (error = sdk::infer(model, index, inputs.data(), &run); error != 0)
        return failed("infer", error);
      sdk::Number of_run = 0;
      if (error = sdk::wait(model, &ended, &of_run); error != 0) return failed("Wait", error);
      if (ended != run) return failed("Wait told of another run", of_run);
      if (of_run != 0) return failed("the run", of_run);
      error = sdk::output(model, index, run, outputs[step].data(), outputs[step].size());
      if (error != 0) return failed("the output", error);
    }
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                        std::chrono::steady_clock::now() - begin)
                        .count();
    std::printf("{\"ns\":%lld,\"sha256\":[", static_cast<long long>(ns));
    for (uint32_t step = 0; step < steps; ++step)
      std::printf("%s\"%s\"", step == 0 ? "" : ",", digest(outputs[step]).c_str());
    std::printf("]}\n");
    return 0;
  }
};

int main_of(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a driver that hangs must not keep the device for ever
  if (argc != 3) {
    std::fprintf(stderr, "usage: calrt076-raw-loop DIRECTORY none|tensor\n");
    return 2;
  }
  Loop loop;
  calrt_vdev* device = nullptr;
  if (const sdk::Number error = sdk::init(); error != 0) return failed("init", error);
  if (const sdk::Number error = sdk::open(0, &device); error != 0) return failed("open", error);
  const bool tensor = std::strcmp(argv[2], "tensor") == 0;
  if (const sdk::Number error = sdk::load(device, tensor, argv[1], &loop.model); error != 0)
    return failed("load", error);
  if (const sdk::Number error = sdk::describe(loop.model, &loop.facts); error != 0)
    return failed("describe", error);
  if (!loop.choose()) return failed("it has no decode graph of one row with BF16 or F32 logits", 0);
  std::printf("{\"rows\":%u,\"lanes\":%u,\"cells\":%u}\n", loop.graph->rows, loop.facts.sequences,
              loop.facts.context);
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    unsigned steps = 0, groups = 0;
    if (std::sscanf(line, "run %u %u", &steps, &groups) != 2 || steps == 0 || groups == 0 ||
        groups > loop.facts.sequences || (steps - 1) / groups >= loop.facts.context)
      return failed("\\\"run STEPS GROUPS\\\" within lanes and cells is due", 0);
    if (const int code = loop.run(steps, groups); code != 0) return code;
    std::fflush(stdout);
  }
  (void)sdk::unload(loop.model);
  (void)sdk::close(device);
  return 0;
}

}  // namespace
}  // namespace calrt::calrt076

int main(int argc, char** argv) {
  try {
    return calrt::calrt076::main_of(argc, argv);
  } catch (const std::exception& error) {  // no memory
    std::fprintf(stderr, "calrt076-raw-loop: %s\n", error.what());
    return 1;
  }
}
