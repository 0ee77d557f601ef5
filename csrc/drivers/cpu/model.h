// SPDX-License-Identifier: Apache-2.0
// A loaded model: weights, lanes, scratch, and the description of its graphs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drivers/cpu/forward.h"
#include "drivers/cpu/handles.h"

namespace calrt::cpu {

// One graph and everything its cald_graph points to. Stays where it was made.
struct GraphStorage {
  GraphStorage() = default;
  GraphStorage(const GraphStorage&) = delete;
  GraphStorage& operator=(const GraphStorage&) = delete;

  std::string name;
  cald_graph graph{};
  cald_io inputs[5]{};
  cald_io output{};
  const cald_io* input_list[5]{};
  const cald_io* output_list[1]{};
};

// What a load was asked for, checked against what this driver can do.
struct LoadPlan {
  Shape shape;
  uint32_t lanes, cells, max_rows, threads;
  bool linear_bf16, kv_bf16, logits_bf16;
  std::vector<uint32_t> profiles, chunks;

  uint64_t weight_bytes() const { return Weights::bytes_needed(shape, linear_bf16); }
  uint64_t kv_bytes() const { return KvArena::bytes_needed(shape, lanes, cells, kv_bf16); }
  uint64_t scratch_bytes() const { return Forward::bytes_needed(shape, max_rows, cells, threads); }
};
Result<LoadPlan> plan_load(const cald_device& device, const cald_package* package,
                           const cald_load_options* options);

}  // namespace calrt::cpu

struct cald_model {
  cald_device* device;
  calrt::cpu::LoadPlan plan;
  calrt::cpu::Weights weights;
  std::unique_ptr<calrt::cpu::KvArena> kv;
  std::unique_ptr<calrt::cpu::Forward> forward;
  std::vector<std::unique_ptr<calrt::cpu::GraphStorage>> graphs;
  std::vector<const cald_graph*> graph_list;

  static calrt::Result<std::unique_ptr<cald_model>> load(cald_device* device,
                                                         const cald_package* package,
                                                         const cald_load_options* options);
  void describe(cald_model_info* out) const;
};
