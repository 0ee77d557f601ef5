// SPDX-License-Identifier: Apache-2.0
// Graphs with their lists expanded, and their shapes and layouts at the largest allowed geometry.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "calrt/manifest.h"

namespace calrt {

inline constexpr size_t kMaxExpandedGraphs = 1024;

struct ExpandedGraph {
  const ManifestGraph* graph = nullptr;  // as long as the manifest
  size_t index = 0;                      // of the graph in the manifest
  std::string name;
  uint64_t batch = 0, chunk = 0;  // chunk 0: decode, or not stated
};

// Decode lists give name_b{B}, prefill lists name_t{T}; a graph with artifacts keeps its name.
// Stops after kMaxExpandedGraphs + 1.
std::vector<ExpandedGraph> expand_graphs(const Manifest& manifest);

// Values of the symbols of a shape; 0 = not known.
struct Geometry {
  uint64_t B = 0, T = 0, R = 0, V = 0, L = 0, C = 0;
  uint64_t operator[](char symbol) const;
};
// The largest a load may ask for, in one expanded graph.
Geometry largest_geometry(const Manifest& manifest, const ExpandedGraph& graph);

std::vector<uint64_t> evaluate(const std::vector<ManifestDim>& dims, const Geometry& geometry);

// The layout of an input or output; undetermined when the dtype, a dim or the tile order is null.
// Errors as in layout.h.
Result<cald_layout> io_layout(const ManifestIo& io, const Geometry& geometry);

std::string dims_text(const std::vector<ManifestDim>& dims);  // "[B, 512]"
bool is_opaque(const Manifest& manifest);  // compiled by a vendor: no weights of ours
bool has_input(const ManifestGraph& graph, int32_t role);

}  // namespace calrt
