// SPDX-License-Identifier: Apache-2.0
// A graph as loaded: the package's, copied, with the logits' dtype that the load asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drivers/mock/logits.h"
#include "drivers/mock/presets.h"

namespace calrt::mock {

// Immutable, and stays where it was made: `described` points into it.
struct Graph {
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  cald_graph described{};
  LogitRows logits;
  bool row_per_token = false;  // a prefill graph that returns the logits of every valid row

  std::string name, share_group;
  std::vector<std::unique_ptr<cald_io>> ios;
  std::vector<const cald_io*> inputs, outputs;

  bool decodes() const { return described.kind == CALD_GRAPH_DECODE; }
  uint32_t size() const { return decodes() ? described.batch : described.chunk; }
  const cald_io* find(int32_t role) const;
};

// Refuses what the preset cannot run and what has no tokens, positions or logits, naming it.
Result<std::unique_ptr<Graph>> make_graph(const cald_graph& from, const Preset& preset,
                                          int32_t logits_dtype, uint32_t vocab);

}  // namespace calrt::mock
