// SPDX-License-Identifier: Apache-2.0
// What the stand-in's runtime, device and model are made of. All of it is guarded by the one mutex
// of the runtime, but what is fixed after the load.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "calculet/calrt_sdk.h"
#include "drivers/mock/cells.h"
#include "drivers/mock/logits.h"
#include "vices.h"

namespace calrt::standin {

using Lock = std::unique_lock<std::mutex>;
using ull = unsigned long long;

inline constexpr uint32_t kChips = 2, kQueueDepth = 2, kSets = 2, kSequences = 16;
inline constexpr size_t kRemembered = 64;  // ended runs

struct OutBuf {
  int state = CALRT_OUTBUF_FREE;
  uint64_t run = 0;       // whose output it holds or awaits
  uint64_t acquired = 0;  // the run that it was acquired for
  std::vector<unsigned char> data;
};

struct Graph {
  std::string name;
  int32_t kind = 0;
  uint32_t rows = 0;
  std::vector<calrt_io_desc> inputs;
  calrt_io_desc output{};
  mock::LogitRows logits;
  OutBuf outbufs[kSets];
  std::vector<const void*> bound[kSets];
};

struct Run {
  uint64_t number = 0;
  uint32_t graph = 0;
  int set = 0;
  int state = CALRT_RUN_QUEUED;
  std::vector<const void*> inputs;

  bool outstanding() const { return state < CALRT_RUN_DONE; }
};

struct Trace {
  uint32_t capacity = 0;  // 0: not started
  std::deque<calrt_trace_event> events;
};

struct Runtime {
  std::mutex mutex;
  bool up = false;
  calrt_vdev* device = nullptr;  // the open one
  uint64_t last_run = 0;
};
Runtime& runtime();

uint64_t device_ticks();
void trace(calrt_vdev& device, int32_t phase, const Run& run, const Graph& graph);

// 0, or what to answer. The lock is held.
int check_up();
int check_device(const calrt_vdev* device);
int check_model(const calrt_model* model);
int check_idle(const calrt_model& model, const char* what);  // MISUSE while a run is outstanding

}  // namespace calrt::standin

struct calrt_vdev {
  std::string name = "standin VirtualDevice", firmware = "standin 0.7.6";
  int mode = CALRT_PARALLEL_TENSOR;
  calrt_counters counters{};
  uint64_t h2d_bytes = 0, d2h_bytes = 0;
  calrt::standin::Trace trace;
  std::unique_ptr<calrt_model> model;
};

struct calrt_model {
  calrt_model(calrt_vdev* on, uint32_t context);
  ~calrt_model();

  uint32_t outstanding() const;
  void work();  // the thread that stands for the device

  calrt_vdev* device;
  calrt_model_desc desc{};
  std::vector<std::unique_ptr<calrt::standin::Graph>> graphs;

  calrt::mock::Cells cells;  // a lane of `context` cells each; the arena is what may be taken
  calrt::mock::Noise noise;
  std::vector<uint32_t> taken;  // by sequence
  uint32_t free_cells;

  std::deque<calrt::standin::Run> runs;  // outstanding and remembered, in the order of numbers
  std::deque<calrt_done> unreported;
  std::condition_variable changed;
  bool closing = false;
  uint32_t waiting = 0;  // threads in calrt_wait
  std::thread worker;
};

// The beginning of every function that needs the runtime: `lock` is held to its end.
#define STANDIN_ENTER(function)                                                      \
  if (const int answer = ::calrt::standin::enter(Function::function)) return answer; \
  Lock lock(runtime().mutex);                                                        \
  if (const int answer = check_up()) return answer
#define STANDIN_CHECK(check) \
  if (const int answer = (check)) return answer
