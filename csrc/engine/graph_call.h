// SPDX-License-Identifier: Apache-2.0
// A call against its graph: every rule that can be checked without the device, and the fill.
#pragma once

#include <vector>

#include "base/result.h"
#include "calrt/model.h"
#include "engine/graph_runner.h"

namespace calrt::engine {

// What a checked call writes and returns.
struct CheckedCall {
  bool prefill = false;
  std::vector<LaneWrite> writes;
  uint32_t n_valid = 0;      // rows that count
  uint32_t output_rows = 0;  // rows of logits that have a meaning
};

// INVALID_ARGUMENT, SHAPE_MISMATCH, OUT_OF_RANGE or UNSUPPORTED, naming the field and the numbers.
Result<CheckedCall> check_call(const Model& model, uint32_t graph, const GraphCall& call);
// Writes the call into the set's inputs; rows beyond it become padding (lane -1).
void fill_call(const Model& model, BindingSet& set, const GraphCall& call,
               const CheckedCall& checked);

// The input or output of a role, null when the graph has none.
const cald_io* find_io(const cald_graph& graph, int32_t role);

}  // namespace calrt::engine
