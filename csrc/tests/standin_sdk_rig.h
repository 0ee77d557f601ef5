// SPDX-License-Identifier: Apache-2.0
// A user of the stand-in SDK who knows its headers alone: a loaded model, one run after the other,
// and children that may hang or die.
#pragma once

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "calculet/calrt_sdk.hpp"
#include "tests/check.h"

namespace calrt::testing {

// What the stand-in reads of a package like preset:tiny.
class StandinPackage {
 public:
  explicit StandinPackage(uint32_t context = 512, const char* mode = "none") {
    std::string name = (std::filesystem::temp_directory_path() / "standin-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    folder = name;
    write(
        R"({"model": {"vocab": 512, "context": )" + std::to_string(context) +
        R"(}, "graphs": [{"kind": "decode", "batch": [1]}, {"kind": "prefill", "chunk": [16, 64]}],)" +
        R"( "parallelism": {"mode": ")" + mode + "\"}}");
  }
  ~StandinPackage() { std::filesystem::remove_all(folder); }
  StandinPackage(const StandinPackage&) = delete;
  StandinPackage& operator=(const StandinPackage&) = delete;
  void write(const std::string& manifest) const {
    std::ofstream(folder + "/manifest.json") << manifest;
  }

  std::string folder;
};

inline calculet::Error init_with(const char* vices) {
  setenv("CALRT_STANDIN_VICES", vices, 1);
  return calculet::init();
}

// BF16 in the order that the header states for outputs.
inline std::vector<float> untiled(const calrt_io_desc& io, const void* data) {
  std::vector<float> out;
  for (uint64_t column = 0; column < io.dims[1]; ++column) {
    uint16_t half;
    const uint64_t at = column / io.d0 * io.padded[0] * io.d0 + column % io.d0;
    std::memcpy(&half, static_cast<const uint16_t*>(data) + at, sizeof half);
    out.push_back(std::bit_cast<float>(uint32_t{half} << 16));
  }
  return out;
}

// The inputs of one run: decode with one token, else the smallest chunk that holds them.
struct RunInputs {
  std::vector<int32_t> ids, positions;
  int32_t seq, n;
  uint32_t graph;
  const void* pointers[4];

  RunInputs(const std::vector<int32_t>& tokens, int32_t first, int32_t sequence)
      : ids(tokens),
        seq(sequence),
        n(static_cast<int32_t>(tokens.size())),
        graph(n == 1    ? 0
              : n <= 16 ? 1
                        : 2) {
    ids.resize(n == 1 ? 1 : n <= 16 ? 16 : 64, -7);
    for (size_t i = 0; i < ids.size(); ++i) positions.push_back(first + static_cast<int32_t>(i));
    pointers[0] = ids.data();
    pointers[1] = positions.data();
    pointers[2] = &seq;
    pointers[3] = &n;
  }
  RunInputs(const RunInputs&) = delete;
  RunInputs& operator=(const RunInputs&) = delete;
};

struct Sdk {
  StandinPackage package;
  calculet::VirtualDevice device;
  calculet::Model model;

  explicit Sdk(const char* vices = "", uint32_t context = 512) : package(context) {
    CHECK(init_with(vices) == 0 && device.open(0) == 0);
    CHECK(device.set_parallel_mode(CALRT_PARALLEL_NONE) == 0);
    CHECK(device.load(package.folder.c_str(), &model) == 0);
  }
  ~Sdk() { CHECK(model.unload() == 0 && device.close() == 0 && calculet::shutdown() == 0); }
  Sdk(const Sdk&) = delete;
  Sdk& operator=(const Sdk&) = delete;

  calculet::Kv kv() const { return calculet::Kv(model); }
  uint32_t free_cells() const {
    uint32_t cells = 0;
    CHECK(kv().free_cells(&cells) == 0);
    return cells;
  }
  int state_of(uint64_t run) const {
    int state = -1;
    CHECK(model.query(run, &state) == 0);
    return state;
  }
  uint64_t infer(const RunInputs& inputs, int set = CALRT_PING) {
    uint64_t run = 0;
    CHECK(model.infer(inputs.graph, set, inputs.pointers, &run) == 0 && run != 0);
    return run;
  }
  calrt_done wait() {
    calrt_done done{};
    CHECK(model.Wait(&done) == 0);
    return done;
  }
  // Logits of a run that has been waited for.
  std::vector<float> taken(uint32_t graph, uint64_t run) {
    calculet::OutputBuf out;
    calrt_io_desc io{};
    CHECK(model.output(graph, 0, &io) == 0 && model.acquire(run, &out) == 0);
    if (out.data() == nullptr || out.bytes() != io.bytes) return {};
    const std::vector<float> logits = untiled(io, out.data());
    CHECK(model.release(run) == 0);
    return logits;
  }
  // infer, Wait, acquire, release: as production does it.
  std::vector<float> step(const std::vector<int32_t>& tokens, int32_t first, uint32_t seq,
                          int set = CALRT_PING) {
    const auto end = static_cast<uint32_t>(first) + static_cast<uint32_t>(tokens.size());
    CHECK(kv().Apply(seq, end) == 0);
    const RunInputs inputs(tokens, first, static_cast<int32_t>(seq));
    const uint64_t run = infer(inputs, set);
    const calrt_done done = wait();
    CHECK(done.run == run && done.error == 0 && done.graph == inputs.graph && done.set == set);
    return taken(inputs.graph, run);
  }
};

struct Ended {
  int status = 0;  // of waitpid
  std::string text;
  bool hung = false;  // was alive a while after it said `until`, and was killed

  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
  bool clean() const { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
  bool died_of(int signal) const { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }
};

// Runs `what` in a child of its own with some vices, and what it wrote to stderr. When it says
// `until` it is given a moment to go on, which it should not, and killed.
inline Ended in_child(const std::string& vices, const std::function<void()>& what,
                      const std::string& until = {}) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    for (const int fatal : {SIGABRT, SIGSEGV}) std::signal(fatal, SIG_DFL);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    setenv("CALRT_STANDIN_VICES", vices.c_str(), 1);
    failures() = 0;
    what();
    std::fputs("finished\n", stderr);
    _exit(failures() == 0 ? 0 : 1);
  }
  close(ends[1]);
  Ended out;
  for (int patience_ms = 60'000;;) {
    pollfd waiting{ends[0], POLLIN, 0};
    char some[4096];
    ssize_t n = -1;
    if (::poll(&waiting, 1, patience_ms) == 1) n = read(ends[0], some, sizeof some);
    if (n == 0) break;
    if (n < 0) {
      out.hung = patience_ms < 60'000;
      kill(child, SIGKILL);
      break;
    }
    out.text.append(some, static_cast<size_t>(n));
    if (!until.empty() && out.says(until)) patience_ms = 20;
  }
  close(ends[0]);
  waitpid(child, &out.status, 0);
  return out;
}

}  // namespace calrt::testing
