// SPDX-License-Identifier: Apache-2.0
// What stands behind Graph, GraphContext, BindingSlot and Job.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bind/objects.h"
#include "engine/lane_job.h"

namespace calrt::bind {

struct PyJob {  // "Job"
  std::shared_ptr<engine::LaneJob> job;
  mutable py::object outputs = {};  // by role, once they were asked for
  ~PyJob() { drop_without_gil(job); }
};

struct PyGraph {  // "Graph"
  std::shared_ptr<engine::GraphRunner> runner;
  uint32_t index = 0;
  ~PyGraph() { drop_without_gil(runner); }
  const cald_graph& graph() const { return runner->model()->graph(index); }
  ErrorContext context() const { return ErrorContext(*runner->model()); }
};

// One fixed binding set that the user fills; not thread-safe beyond the GIL.
struct PySlot {  // "BindingSlot"
  std::shared_ptr<engine::GraphRunner> runner;
  std::shared_ptr<BindingSet> set;
  std::vector<std::shared_ptr<engine::LaneLease>> lanes;  // used when submit() names none
  std::shared_ptr<engine::LaneJob> job;                   // the last one submitted
  bool closed = false;
  ~PySlot() {
    drop_without_gil(job);
    drop_without_gil(set);
    drop_without_gil(runner);
  }
};

struct PyContext {                             // "GraphContext"
  std::string graph;                           // its name
  std::vector<std::shared_ptr<PySlot>> slots;  // none once closed
};

// Registers Graph, GraphContext and BindingSlot.
void bind_graph(py::module_& m);
// "prefill" or "decode", "none", "identity" or "any".
const char* graph_kind_name(int32_t kind);
const char* lane_map_name(int32_t lane_map);

}  // namespace calrt::bind
