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
  std::vector<LaneWrite> writes;
  bool prefill = false;
  uint32_t n_valid = 0;      // rows that count
  uint32_t output_rows = 0;  // rows of logits that have a meaning
};

// How much of everything is given, before a set is taken: SHAPE_MISMATCH, OUT_OF_RANGE, UNSUPPORTED
// or INVALID_ARGUMENT, naming the field and the numbers.
Result<void> check_counts(const cald_graph& graph, const GraphCall& call);
// Copies the call into the set's inputs, pads the rest (lane -1), and checks what lies there now.
// `call` has passed check_counts. The errors of check_counts; UNSUPPORTED where the host cannot
// address an input.
Result<CheckedCall> fill_and_check(BindingSet& set, const GraphCall& call);

// The input or output of a role, null when the graph has none.
const cald_io* find_io(const cald_graph& graph, int32_t role);

}  // namespace calrt::engine
