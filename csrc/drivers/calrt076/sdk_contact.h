// SPDX-License-Identifier: Apache-2.0
// Every contact with the SDK of CalRT 0.7.6. What it lends is copied; the caller keeps its rules.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "calrt/driver.h"

struct calrt_vdev;
struct calrt_model;

namespace calrt::calrt076::sdk {

using Number = int;  // the SDK's error number; 0 = OK, and only then an output is written
inline constexpr Number kOutbufState = 21, kKvFull = 22;  // answered by output() and apply() too

struct Assumption {  // what is relied on, and how well it is known (docs/vendor-driver.md)
  const char* name;
  int32_t level;
  int64_t value;
  const char* source;
};
const std::vector<Assumption>& assumptions();
std::string last_text(), version();  // the text is of this thread's last error
Number init(), shutdown(), count(uint32_t* devices);

struct DeviceFacts {
  std::string name;
  std::vector<uint64_t> chip_bytes, chip_free;
};
Number open(uint32_t index, calrt_vdev** out), close(calrt_vdev* device);
Number describe(calrt_vdev* device, DeviceFacts* out);

struct Io {
  std::string name;
  int32_t role, dtype;  // CALD_*, 0 where calrt knows none
  uint32_t rank;
  std::array<uint64_t, 4> dims, padded;
  uint64_t d0, align, bytes;  // d0: columns of a tile; 0 = row-major by padded
};
struct Graph {
  int32_t kind;  // CALD_GRAPH_*, 0 where calrt knows none
  uint32_t rows;
  std::vector<Io> io[2];  // inputs, outputs
};
struct ModelFacts {
  uint32_t vocab, context, cells, sequences;
  int32_t kv_dtype;
  uint64_t weight_bytes, kv_bytes;
  std::vector<Graph> graphs;
};
Number load(calrt_vdev* device, bool tensor, const std::string& directory, calrt_model** out);
Number unload(calrt_model* model);  // no run is outstanding
Number describe(calrt_model* model, ModelFacts* out);

// One run is outstanding at most. `inputs` and what they point to stay until it has ended.
Number infer(calrt_model* model, uint32_t graph, const void* const* inputs, uint64_t* run);
// The next end of a run that is told, perhaps of none that is awaited. Has no time limit.
Number wait(calrt_model* model, uint64_t* run, Number* error);
enum class RunState { LIVE, DONE, FAILED };
Number query(calrt_model* model, uint64_t run, RunState* out);
// Copies a run's output; OUTBUF_STATE if it was not the run's from the first byte to the last.
Number output(calrt_model* model, uint32_t graph, uint64_t run, void* to, uint64_t bytes);
// Cells [0, n) for a sequence; KV_FULL where fewer are free: the SDK is never asked then.
Number apply(calrt_model* model, uint32_t sequence, uint32_t n);

}  // namespace calrt::calrt076::sdk
