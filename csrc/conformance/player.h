// SPDX-License-Identifier: Apache-2.0
// Feeds tokens to lanes through any of a model's graphs, whatever its lane map, and keeps what
// comes out. What it is fed to is told apart from what is left alone. One thread.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "conformance/graph_call.h"

namespace calrt::conformance {

using Tokens = std::vector<int32_t>;

struct Row {
  int32_t token, position, lane;
};

class Player {
 public:
  explicit Player(Kit& kit) : kit_(&kit), info_(kit.model_info()) {}

  const cald_model_info& info() const { return info_; }
  const cald_graph& graph(uint32_t index) const { return *info_.graphs[index]; }
  GraphCall& call(uint32_t graph);  // made once
  // Graphs that reach a lane, by rising batch or chunk.
  std::vector<uint32_t> decoders(uint32_t lane = 0) const;
  std::vector<uint32_t> prefillers(uint32_t lane = 0) const;
  std::vector<uint32_t> all(uint32_t lane = 0) const;  // both
  bool reaches(uint32_t graph, uint32_t lane) const;

  // Made-up tokens, the same for the same seed.
  Tokens prompt(uint32_t seed, size_t length) const;
  // A length that leaves every graph some room: two of its largest chunk where that fits.
  size_t long_length() const;

  // Inputs of a decode; rows that are not given are padding. Where row i is lane i and nothing can
  // be padding, they write the lane's last cell, which no prompt here reaches.
  void fill_decode(GraphCall& call, const std::vector<Row>& rows);
  // The row of the batch in which `lane` is after fill_decode.
  uint32_t row_of(const GraphCall& call, const std::vector<Row>& rows, size_t index) const;
  // Inputs of a prefill of at most one chunk.
  void fill_prefill(GraphCall& call, const Tokens& tokens, int32_t first, int32_t lane);
  // A right call of any graph.
  void fill(GraphCall& call, int32_t lane = 0, uint32_t seed = 1);

  // Writes `tokens` to cells [first, ...) of a lane with one graph, and returns the logits after
  // the last. What no chunk fits is fed with the smallest decode graph.
  Bytes feed(uint32_t graph, uint32_t lane, const Tokens& tokens, int32_t first = 0);
  // One token, by the smallest decode graph that reaches the lane, else a prefill.
  Bytes step(uint32_t lane, int32_t token, int32_t position);
  uint32_t stepper(uint32_t lane) const;

 private:
  Bytes feed_chunk(uint32_t graph, uint32_t lane, const Tokens& tokens, int32_t first);
  Kit* kit_;
  const cald_model_info& info_;
  std::map<uint32_t, std::unique_ptr<GraphCall>> calls_;
};

// As numbers: equal, or as far apart as rounding goes. `dtype` is that of the logits.
bool close(const Bytes& a, const Bytes& b, int32_t dtype);
std::vector<float> floats(const Bytes& bytes, int32_t dtype);

// Skips the check on a device that writes nothing to its outputs; DATA-01 has said so.
void needs_results(Kit& kit, Player& player);

}  // namespace calrt::conformance
