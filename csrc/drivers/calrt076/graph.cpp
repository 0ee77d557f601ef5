// SPDX-License-Identifier: Apache-2.0
// How the SDK describes a graph, as the graph of calrt that is bound.
#include "drivers/calrt076/buffer.h"
#include "drivers/calrt076/model.h"

namespace calrt::calrt076 {
namespace {

using ull = unsigned long long;

uint32_t size_of(int32_t dtype) { return dtype == CALD_BF16 ? 2 : dtype == 0 ? 0 : 4; }

Error contradicts(const ModelGraph& graph, const sdk::Io& io, const char* what) {
  return fail(Status::INTERNAL, "%s: the SDK's description of %s contradicts itself: %s",
              graph.name.c_str(), io.name.c_str(), what);
}

// Slowest axis first. Of a tiled matrix, memory is [padded[1] / d0][padded[0]][d0].
Result<cald_layout> layout_of(const ModelGraph& graph, const sdk::Io& io) {
  cald_layout layout{};
  uint64_t stride = size_of(io.dtype);
  const auto add = [&](uint32_t dim, uint64_t divisor, uint64_t modulus, uint64_t extent) {
    layout.axes[layout.n_axes++] = {dim, 0, divisor, modulus, extent, stride};
    stride *= extent;
  };
  for (uint32_t d = 0; d < io.rank; ++d)
    if (io.dims[d] == 0 || io.padded[d] < io.dims[d] || io.padded[d] > UINT32_MAX)
      return contradicts(graph, io, "a dimension is 0, or larger than its room");
  if (io.d0 == 0) {
    for (uint32_t d = io.rank; d-- > 0;) add(d, 1, 0, io.padded[d]);
  } else {
    if (io.rank != 2 || io.padded[1] % io.d0 != 0)
      return contradicts(graph, io, "tiles are of a matrix whose columns they divide");
    add(1, 1, io.d0, io.d0);
    add(0, 1, 0, io.padded[0]);
    add(1, io.d0, 0, io.padded[1] / io.d0);
  }
  std::reverse(layout.axes, layout.axes + layout.n_axes);
  if (stride != io.bytes) return contradicts(graph, io, "its bytes are not those of its padding");
  layout.bytes = io.bytes;
  return layout;
}

Result<void> add_io(ModelGraph* to, const sdk::Io& io, uint64_t elements) {
  const bool logits = io.role == CALD_ROLE_LOGITS;
  if (io.role == 0 || (!logits && io.dtype != CALD_I32) || size_of(io.dtype) == 0)
    return fail(Status::UNSUPPORTED, "%s: %s (dtype %d) is not an input or output that calrt binds",
                to->name.c_str(), io.name.c_str(), io.dtype);
  const uint32_t rank = logits ? 2 : 1;
  if (io.rank != rank || io.dims[rank - 1] != elements || (logits && io.dims[0] != 1))
    return fail(Status::UNSUPPORTED, "%s: %s has rank %u and %llu elements in a row; %u and %llu",
                to->name.c_str(), io.name.c_str(), io.rank, static_cast<ull>(io.dims[rank - 1]),
                rank, static_cast<ull>(elements));
  cald_io out{};
  out.struct_size = sizeof out;
  out.role = io.role;
  out.dtype = io.dtype;
  out.rank = io.rank;
  std::copy_n(io.dims.begin(), io.rank, out.shape);
  CALRT_TRY_ASSIGN(out.layout, layout_of(*to, io));
  out.align = kLeastAlign;  // of calrt's buffers: what the SDK reads is a copy
  out.domains = CALD_DOMAIN_HOST;
  to->ios.push_back(out);
  return {};
}

}  // namespace

Result<std::unique_ptr<ModelGraph>> describe_graph(const sdk::Graph& theirs, uint32_t index,
                                                   const std::string& name, uint32_t vocab) {
  auto made = std::make_unique<ModelGraph>();
  made->index = index;
  made->name = name;
  bool has[CALD_ROLE_LOGITS + 1] = {};
  for (const bool output : {false, true})
    for (const sdk::Io& io : theirs.io[output]) {
      const bool rows = io.role == CALD_ROLE_TOKENS || io.role == CALD_ROLE_POSITIONS;
      if (io.role != 0 && ((io.role == CALD_ROLE_LOGITS) != output || has[io.role]))
        return contradicts(*made, io, "it is there twice, or on the wrong side");
      CALRT_TRY(add_io(made.get(), io, output ? vocab : rows ? theirs.rows : 1));
      has[io.role] = true;
    }
  if (!has[CALD_ROLE_TOKENS] || !has[CALD_ROLE_POSITIONS] || !has[CALD_ROLE_LOGITS])
    return fail(Status::UNSUPPORTED, "%s has no tokens, positions or logits", name.c_str());
  for (const cald_io& io : made->ios)
    (io.role == CALD_ROLE_LOGITS ? made->outputs : made->inputs).push_back(&io);
  cald_graph& graph = made->graph;
  graph.struct_size = sizeof graph;
  graph.kind = theirs.kind;
  graph.name = made->name.c_str();
  graph.batch = 1;
  graph.chunk = theirs.kind == CALD_GRAPH_PREFILL ? theirs.rows : 0;
  graph.lane_map = has[CALD_ROLE_LANES] ? CALD_LANE_MAP_ANY : CALD_LANE_MAP_NONE;
  graph.n_inputs = static_cast<uint32_t>(made->inputs.size());
  graph.inputs = made->inputs.data();
  graph.n_outputs = 1;
  graph.outputs = made->outputs.data();
  graph.share_group = "main";
  return made;
}

}  // namespace calrt::calrt076
