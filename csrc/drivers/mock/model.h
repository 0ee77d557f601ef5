// SPDX-License-Identifier: Apache-2.0
// A loaded model: lanes of cells, graphs, and the session that may run it.
#pragma once

#include <memory>
#include <vector>

#include "drivers/mock/cells.h"
#include "drivers/mock/device.h"
#include "drivers/mock/graph.h"

namespace calrt::mock {

// What a load was asked for, checked against what the preset can do, and what it takes.
struct LoadPlan {
  uint32_t lanes, cells, vocab;
  int32_t compute, kv_dtype, logits_dtype;
  uint32_t session;                       // of the first chip it is placed on
  std::vector<const cald_graph*> graphs;  // of the package: CALL
  // Charged to the device's memory: what the preset says, which need not be what the mock holds.
  uint64_t weight_bytes, kv_bytes;

  uint64_t device_bytes() const { return weight_bytes + kv_bytes; }
  uint64_t host_bytes() const {  // cells and noise: the graphs are a few KB
    return uint64_t{lanes} * cells * kCellBytes + Noise::bytes_of(logits_dtype);
  }
};
Result<LoadPlan> plan_load(const cald_device& device, const cald_package* package,
                           const cald_load_options* options);

}  // namespace calrt::mock

struct cald_model {
  cald_device* device;
  calrt::mock::LoadPlan plan;
  calrt::mock::Cells cells;
  calrt::mock::Noise noise;
  std::vector<std::unique_ptr<calrt::mock::Graph>> graphs;
  std::vector<const cald_graph*> graph_list;

  static calrt::Result<std::unique_ptr<cald_model>> load(cald_device* device,
                                                         const cald_package* package,
                                                         const cald_load_options* options);
  // What its lanes, noise and graphs occupy in the host's memory.
  uint64_t host_bytes() const;
  cald_model_info describe() const;
  cald_kv_info describe_kv() const;

  cald_model(cald_device* on, calrt::mock::LoadPlan planned)
      : device(on),
        plan(std::move(planned)),
        cells(plan.lanes, plan.cells),
        noise(plan.logits_dtype) {}
  ~cald_model() { device->give_back(charged_); }
  cald_model(const cald_model&) = delete;
  cald_model& operator=(const cald_model&) = delete;

 private:
  uint64_t charged_ = 0;
};

struct cald_binding_set {
  cald_model* model;
  uint32_t graph;
  std::vector<cald_binding> bindings;
};
