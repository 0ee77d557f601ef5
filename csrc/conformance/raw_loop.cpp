// SPDX-License-Identifier: Apache-2.0
// calrt-raw-loop DRIVER DIRECTORY: submit and wait at once through the driver's bare table, without
// calrt's runtime: arm A of `calrt bench ab` where a driver brings no loop of its own. The protocol
// is that of csrc/drivers/calrt076/raw_loop.cpp: {"rows", "lanes", "cells"}; then "run STEPS
// GROUPS", answered by {"ns", "sha256": [of each step's logits as F32]}.
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "calrt/device_spec.h"
#include "calrt/driver_host.h"
#include "calrt/driver_library.h"
#include "calrt/findings.h"
#include "conformance/graph_call.h"
#include "layout/layout.h"

namespace calrt::conformance {
namespace {

int failed(const std::string& why) {
  std::printf("{\"error\":%s}\n", json_quote(why).c_str());
  return 1;
}

const cald_graph* smallest(const cald_model_info& info, uint32_t* index) {
  const cald_graph* found = nullptr;
  for (uint32_t g = 0; g < info.n_graphs; ++g) {
    const cald_graph* each = info.graphs[g];
    if (each->kind != CALD_GRAPH_DECODE || (found != nullptr && each->batch >= found->batch))
      continue;
    found = each;
    *index = g;
  }
  return found;
}

std::string digest(GraphCall& call, const Bytes& output) {
  const cald_io& io = *call.io(CALD_ROLE_LOGITS);
  const uint64_t size = io.dtype == CALD_F32 ? 4 : 2, vocab = io.shape[io.rank - 1];
  std::vector<float> out;
  out.reserve(call.rows() * vocab);
  for (uint64_t row = 0; row < call.rows(); ++row)
    for (uint64_t v = 0; v < vocab; ++v) {
      const uint64_t at[] = {row, v};
      uint32_t bits = 0;
      std::memcpy(&bits, &output[layout_offset(io.layout, at)], size);
      if (size == 2) bits <<= 16;  // BF16 is the upper half of F32
      float value;
      std::memcpy(&value, &bits, sizeof value);
      out.push_back(value);
    }
  return sha256_hex(out.data(), out.size() * sizeof(float));
}

int run(Kit& kit, GraphCall& call, uint32_t steps, uint32_t groups) {
  const uint32_t rows = call.graph().batch;
  std::vector<Bytes> outputs;
  outputs.reserve(steps);
  const uint64_t begin = monotonic_ns();
  for (uint32_t step = 0; step < steps; ++step) {
    const auto token = static_cast<int32_t>((step * uint64_t{131} + 7) % kit.model_info().vocab);
    std::vector<int32_t> lanes;
    for (uint32_t row = 0; row < rows; ++row)
      lanes.push_back(static_cast<int32_t>(step % groups * rows + row));
    call.set(CALD_ROLE_TOKENS, std::vector<int32_t>(rows, token));
    call.set(CALD_ROLE_POSITIONS, std::vector<int32_t>(rows, static_cast<int32_t>(step / groups)));
    call.set(CALD_ROLE_LANES, lanes);
    JobAsk ask;
    ask.job_seq = step + 1;
    call.submit(ask).expect(CALD_JOB_DONE, "a step");
    outputs.push_back(call.buffer(CALD_ROLE_LOGITS).read());
  }
  const uint64_t ns = monotonic_ns() - begin;
  std::printf("{\"ns\":%llu,\"sha256\":[", static_cast<unsigned long long>(ns));
  for (uint32_t step = 0; step < steps; ++step)
    std::printf("%s\"%s\"", step == 0 ? "" : ",", digest(call, outputs[step]).c_str());
  std::printf("]}\n");
  return 0;
}

int serve(Kit& kit) {
  uint32_t index = 0;
  const cald_graph* const graph = smallest(kit.model_info(), &index);
  if (graph == nullptr) return failed("the package has no decode graph");
  GraphCall call(kit, index);
  const int32_t dtype = call.io(CALD_ROLE_LOGITS)->dtype;
  if (dtype != CALD_BF16 && dtype != CALD_F32) return failed("its logits are neither BF16 nor F32");
  const cald_model_info& info = kit.model_info();
  std::printf("{\"rows\":%u,\"lanes\":%u,\"cells\":%u}\n", graph->batch, info.lanes, info.cells);
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    unsigned steps = 0, groups = 0;
    if (std::sscanf(line, "run %u %u", &steps, &groups) != 2 || steps == 0 || groups == 0 ||
        groups > info.lanes / graph->batch || (steps - 1) / groups >= info.cells)
      return failed("\"run STEPS GROUPS\" within lanes and cells is due");
    if (const int code = run(kit, call, steps, groups); code != 0) return code;
    std::fflush(stdout);
  }
  return 0;
}

int main_of(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a driver that hangs must not keep the device for ever
  if (argc != 3) {
    std::fprintf(stderr, "usage: calrt-raw-loop DRIVER DIRECTORY\n");
    return 2;
  }
  Subject subject;
  const Result<DeviceSpec> spec = DeviceSpec::parse(argv[1]);
  if (!spec.ok()) return failed(spec.error().message);
  subject.isolated = spec->isolated;
  subject.config = spec->config;
  subject.index = spec->index;
  const Result<std::string> library = DriverLibrary::find(spec->driver);
  if (!library.ok()) return failed(library.error().message);
  subject.library = *library;
  subject.package = Package::open(argv[2]);
  if (subject.package->verdict().rejected())
    return failed(subject.package->verdict().error().message);
  std::unique_ptr<Kit> kit;
  if (const std::string wrong = Kit::open(std::move(subject), &kit); !wrong.empty())
    return failed(wrong);
  return serve(*kit);
}

int guarded(int argc, char** argv) {
  try {
    return main_of(argc, argv);
  } catch (const Broken& broken) {
    return failed(broken.why);
  } catch (const Skipped& skipped) {
    return failed(skipped.why);
  } catch (const std::exception& error) {
    return failed(error.what());
  }
}

}  // namespace
}  // namespace calrt::conformance

int main(int argc, char** argv) { return calrt::conformance::guarded(argc, argv); }
