// SPDX-License-Identifier: Apache-2.0
#include "calrt/graph_geometry.h"

#include <algorithm>

#include "base/checked.h"
#include "layout/layout.h"

namespace calrt {

std::vector<ExpandedGraph> expand_graphs(const Manifest& manifest) {
  std::vector<ExpandedGraph> out;
  for (size_t i = 0; i < manifest.graphs.size(); ++i) {
    const ManifestGraph& graph = manifest.graphs[i];
    const bool decode = graph.kind == CALD_GRAPH_DECODE;
    const uint64_t batch = graph.batch.empty() ? 0 : graph.batch[0];
    if (!graph.artifacts.empty() || (!decode && graph.chunk.empty())) {
      const uint64_t chunk = decode || graph.chunk.empty() ? 0 : graph.chunk[0];
      out.push_back({&graph, i, graph.name, batch, chunk});
    } else if (decode) {
      for (uint64_t value : graph.batch) {
        out.push_back({&graph, i, graph.name + "_b" + std::to_string(value), value, 0});
      }
    } else {
      for (uint64_t value : graph.chunk) {
        out.push_back({&graph, i, graph.name + "_t" + std::to_string(value), batch, value});
      }
    }
    if (out.size() > kMaxExpandedGraphs) {
      out.resize(kMaxExpandedGraphs + 1);
      break;
    }
  }
  return out;
}

uint64_t Geometry::operator[](char symbol) const {
  switch (symbol) {
    case 'B':
      return B;
    case 'T':
      return T;
    case 'R':
      return R;
    case 'V':
      return V;
    case 'L':
      return L;
    case 'C':
      return C;
    default:
      return 0;
  }
}

Geometry largest_geometry(const Manifest& manifest, const ExpandedGraph& graph) {
  Geometry out;
  out.B = graph.batch;
  out.T = graph.chunk;
  // Without a logit_rows input there is one row to return: the last valid one.
  out.R = has_input(*graph.graph, CALD_ROLE_LOGIT_ROWS) ? graph.chunk : 1;
  out.V = manifest.vocab;
  out.L = manifest.allowed_lanes.largest();
  out.C = manifest.allowed_cells.largest();
  return out;
}

std::vector<uint64_t> evaluate(const std::vector<ManifestDim>& dims, const Geometry& geometry) {
  std::vector<uint64_t> out;
  for (const ManifestDim& dim : dims) {
    out.push_back(dim.symbol == 0 ? dim.value : geometry[dim.symbol]);
  }
  return out;
}

Result<cald_layout> io_layout(const ManifestIo& io, const Geometry& geometry) {
  const std::vector<uint64_t> shape = evaluate(io.shape, geometry);
  const ManifestLayout& layout = io.layout;
  const bool known = io.dtype != 0 && std::find(shape.begin(), shape.end(), 0u) == shape.end();
  if (layout.kind == ManifestLayout::UNDETERMINED || !known) {
    uint64_t bytes = dtype_size(io.dtype);
    for (uint64_t dim : shape) {
      if (!checked_mul(bytes, dim, &bytes) || bytes > kMaxAllocation) {
        return fail(Status::OUT_OF_RANGE, "the allocation is over 2^48 bytes or overflows");
      }
    }
    return undetermined_layout(std::max(bytes, layout.bytes));
  }
  const std::vector<uint64_t> padded = evaluate(layout.padded, geometry);
  switch (layout.kind) {
    case ManifestLayout::STRIDED:
      return strided_layout(io.dtype, shape, layout.strides, layout.bytes);
    case ManifestLayout::TILED: {
      std::vector<int32_t> order = layout.order;
      if (!layout.has_order) {
        for (size_t i = 0; i < shape.size(); ++i) {
          if (i != layout.tile_axis) order.push_back(static_cast<int32_t>(i));
        }
        order.insert(order.end(), {-1, -2});
      }
      CALRT_TRY_ASSIGN(cald_layout tiled, tiled_layout(io.dtype, shape, layout.tile_axis,
                                                       layout.tile_size, order, padded));
      // Every order of these axes takes as many bytes, but where an element is depends on it.
      return layout.has_order ? tiled : undetermined_layout(tiled.bytes);
    }
    default:
      return linear_layout(io.dtype, shape, padded);
  }
}

std::string dims_text(const std::vector<ManifestDim>& dims) {
  std::string out = "[";
  for (const ManifestDim& dim : dims) {
    if (out.size() > 1) out += ", ";
    out += dim.symbol == 0 ? std::to_string(dim.value) : std::string(1, dim.symbol);
  }
  return out + "]";
}

bool is_opaque(const Manifest& manifest) {
  return !manifest.has_weights && manifest.driver != "cpu" && manifest.driver != "mock" &&
         manifest.driver != "null";
}

bool has_input(const ManifestGraph& graph, int32_t role) {
  return std::any_of(graph.inputs.begin(), graph.inputs.end(),
                     [role](const ManifestIo& io) { return io.role == role; });
}

}  // namespace calrt
