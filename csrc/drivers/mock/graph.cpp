// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/graph.h"

#include "drivers/mock/border.h"
#include "layout/layout.h"
#include "layout/roles.h"

namespace calrt::mock {
namespace {

constexpr int32_t kInputRoles[] = {CALD_ROLE_TOKENS, CALD_ROLE_POSITIONS, CALD_ROLE_LANES,
                                   CALD_ROLE_N_VALID, CALD_ROLE_LOGIT_ROWS};

// The same places for elements of another size.
void set_dtype(cald_io* io, int32_t dtype) {
  const uint64_t from = dtype_size(io->dtype), to = dtype_size(dtype);
  io->dtype = dtype;
  if (from == 0 || from == to) return;
  io->layout.bytes = io->layout.bytes / from * to;
  for (cald_axis& axis : io->layout.axes) axis.stride = axis.stride / from * to;
}

Result<void> check_input(const cald_graph& graph, const cald_io& io) {
  const char* role = role_name(io.role);
  if (std::find(std::begin(kInputRoles), std::end(kInputRoles), io.role) == std::end(kInputRoles))
    return fail(Status::UNSUPPORTED, "%s: mock has no use for an input %s (%d)", graph.name, role,
                io.role);
  const cald_layout& layout = io.layout;
  const bool dense = io.rank == 1 && layout.undetermined == 0 && layout.n_axes == 1 &&
                     layout.axes[0].divisor == 1 && layout.axes[0].modulus == 0 &&
                     layout.axes[0].stride == 4 && io.shape[0] <= layout.bytes / 4;
  if (io.dtype != CALD_I32 || !dense)
    return fail(Status::UNSUPPORTED, "%s: %s must be a dense list of i32", graph.name, role);
  return {};
}

Result<void> check_size(const Graph& graph, int32_t role, uint64_t size) {
  const cald_io* io = graph.find(role);
  if (io == nullptr || io->shape[0] == size) return {};
  return fail(Status::SHAPE_MISMATCH, "%s: %s has %llu elements, %llu expected", graph.name.c_str(),
              role_name(role), static_cast<ull>(io->shape[0]), static_cast<ull>(size));
}

Result<void> check_device(const cald_graph& graph, const Preset& preset) {
  if (graph.kind != CALD_GRAPH_DECODE && graph.kind != CALD_GRAPH_PREFILL)
    return fail(Status::UNSUPPORTED, "%s: a graph of kind %d", graph.name, graph.kind);
  const bool decode = graph.kind == CALD_GRAPH_DECODE;
  const uint32_t size = decode ? graph.batch : graph.chunk;
  const uint32_t most = decode ? preset.most_batch : preset.most_chunk;
  if (size == 0 || size > most)
    return fail(Status::UNSUPPORTED, "%s: %s %u, but %s does 1 to %u", graph.name,
                decode ? "batch" : "chunk", size, preset.device_class, most);
  if (graph.lane_map < 0 || graph.lane_map > CALD_LANE_MAP_ANY ||
      (preset.lane_maps >> graph.lane_map & 1) == 0)
    return fail(Status::UNSUPPORTED,
                "%s: lane_map %d (0 none, 1 identity, 2 any) is not one that %s can do", graph.name,
                graph.lane_map, preset.device_class);
  return {};
}

Result<void> check_whole(const Graph& graph, uint32_t vocab) {
  const char* name = graph.name.c_str();
  for (const int32_t role : {CALD_ROLE_TOKENS, CALD_ROLE_POSITIONS})
    if (graph.find(role) == nullptr || graph.find(role)->optional != 0)
      return fail(Status::UNSUPPORTED, "%s: mock needs an input %s", name, role_name(role));
  const bool any = graph.described.lane_map == CALD_LANE_MAP_ANY;
  if (any != (graph.find(CALD_ROLE_LANES) != nullptr))
    return fail(Status::UNSUPPORTED, "%s: %s", name,
                any ? "lane_map any needs an input lanes" : "an input lanes needs lane_map any");
  if (graph.decodes())
    for (const int32_t role : {CALD_ROLE_N_VALID, CALD_ROLE_LOGIT_ROWS})
      if (graph.find(role) != nullptr)
        return fail(Status::UNSUPPORTED, "%s: a decode graph has no input %s", name,
                    role_name(role));
  CALRT_TRY(check_size(graph, CALD_ROLE_TOKENS, graph.size()));
  CALRT_TRY(check_size(graph, CALD_ROLE_POSITIONS, graph.size()));
  CALRT_TRY(check_size(graph, CALD_ROLE_LANES, graph.decodes() ? graph.size() : 1));
  CALRT_TRY(check_size(graph, CALD_ROLE_N_VALID, 1));
  const cald_io* logits = graph.find(CALD_ROLE_LOGITS);
  if (logits == nullptr || graph.outputs.size() != 1)
    return fail(Status::UNSUPPORTED, "%s: one output, logits, expected", name);
  if (logits->rank != 2 || logits->shape[1] != vocab)
    return fail(Status::SHAPE_MISMATCH, "%s: logits have %llu columns, the vocabulary %u tokens",
                name, static_cast<ull>(logits->shape[1]), vocab);
  if (graph.decodes()) CALRT_TRY(check_size(graph, CALD_ROLE_LOGITS, graph.size()));
  return {};
}

}  // namespace

const cald_io* Graph::find(int32_t role) const {
  for (const auto& io : ios)
    if (io->role == role) return io.get();
  return nullptr;
}

Result<std::unique_ptr<Graph>> make_graph(const cald_graph& from, const Preset& preset,
                                          int32_t logits_dtype, uint32_t vocab) {
  CALRT_TRY(check_device(from, preset));
  auto graph = std::make_unique<Graph>();
  graph->name = from.name;
  graph->share_group = from.share_group != nullptr ? from.share_group : "";
  const auto add = [&](const cald_io& io, std::vector<const cald_io*>* list) {
    graph->ios.push_back(std::make_unique<cald_io>(taken(io)));
    cald_io& copy = *graph->ios.back();
    copy.domains = preset.domains;
    copy.align = std::max<uint64_t>(copy.align, 4);
    if (copy.role == CALD_ROLE_LOGITS) set_dtype(&copy, logits_dtype);
    list->push_back(&copy);
  };
  for (uint32_t i = 0; i < from.n_inputs; ++i) {
    CALRT_TRY(check_input(from, *from.inputs[i]));
    add(*from.inputs[i], &graph->inputs);
  }
  for (uint32_t i = 0; i < from.n_outputs; ++i) add(*from.outputs[i], &graph->outputs);

  cald_graph& described = graph->described;
  described = taken(from);
  described.name = graph->name.c_str();
  described.share_group = graph->share_group.c_str();
  described.inputs = graph->inputs.data();
  described.outputs = graph->outputs.data();
  CALRT_TRY(check_whole(*graph, vocab));
  const cald_io& logits = *graph->find(CALD_ROLE_LOGITS);
  CALRT_TRY_ASSIGN(graph->logits, LogitRows::make(logits));
  graph->row_per_token = !graph->decodes() && graph->find(CALD_ROLE_LOGIT_ROWS) == nullptr &&
                         described.chunk > 1 && logits.shape[0] == described.chunk;
  return graph;
}

}  // namespace calrt::mock
