// SPDX-License-Identifier: Apache-2.0
#include "engine/graph_call.h"

#include <algorithm>

namespace calrt::engine {
namespace {

using Ints = std::span<const int32_t>;

Result<void> check_prefill_counts(const cald_graph& graph, const GraphCall& call) {
  if (call.lanes.size() != 1)
    return fail(Status::SHAPE_MISMATCH, "lanes: %zu given, but prefill graph %s writes one lane",
                call.lanes.size(), graph.name);
  const size_t n = call.tokens.size();
  if (call.n_valid && (*call.n_valid == 0 || *call.n_valid > n))
    return fail(Status::OUT_OF_RANGE, "n_valid=%u is outside 1..%zu (the tokens given)",
                *call.n_valid, n);
  if (!call.logit_rows) return {};
  const cald_io* io = find_io(graph, CALD_ROLE_LOGIT_ROWS);
  if (io == nullptr)
    return fail(Status::UNSUPPORTED, "logit_rows: graph %s returns the last valid row only",
                graph.name);
  const size_t rows = call.logit_rows->size();
  if (rows == 0 || rows > io->shape[0])
    return fail(Status::SHAPE_MISMATCH,
                "logit_rows: %zu given, but graph %s returns 1 to %llu rows", rows, graph.name,
                static_cast<unsigned long long>(io->shape[0]));
  return {};
}

Result<void> check_decode_counts(const cald_graph& graph, const GraphCall& call) {
  if (call.lanes.size() != call.tokens.size())
    return fail(Status::SHAPE_MISMATCH, "lanes: %zu given for %zu tokens: give one per token",
                call.lanes.size(), call.tokens.size());
  if (call.n_valid)
    return fail(Status::INVALID_ARGUMENT, "n_valid belongs to prefill graphs; %s decodes",
                graph.name);
  if (call.logit_rows)
    return fail(Status::INVALID_ARGUMENT,
                "logit_rows belongs to prefill graphs; %s returns every row", graph.name);
  // Without it a row cannot be told that it is padding: it would write cell 0 of somebody's lane.
  if (call.tokens.size() < graph.batch && find_io(graph, CALD_ROLE_LANES) == nullptr)
    return fail(Status::SHAPE_MISMATCH,
                "tokens: %zu given, but graph %s has no input `lanes` and writes all %u rows",
                call.tokens.size(), graph.name, graph.batch);
  return {};
}

Result<void> check_lane_map(const cald_graph& graph, std::span<const kv::LaneRef> lanes) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    const uint32_t lane = lanes[i].lane;
    for (size_t j = 0; j < i; ++j)
      if (lanes[j].lane == lane)
        return fail(Status::INVALID_ARGUMENT, "lanes[%zu] and lanes[%zu] are both lane %u", j, i,
                    lane);
    if (graph.lane_map == CALD_LANE_MAP_IDENTITY && graph.kind == CALD_GRAPH_DECODE && lane != i)
      return fail(
          Status::UNSUPPORTED,
          "lanes[%zu] is lane %u, but graph %s maps row i to lane i only (lane_map identity)", i,
          lane, graph.name);
    if (graph.lane_map == CALD_LANE_MAP_NONE && lane != 0)
      return fail(Status::UNSUPPORTED, "lanes[%zu] is lane %u, but graph %s knows lane 0 only", i,
                  lane, graph.name);
  }
  return {};
}

Result<void> check_range(const char* field, Ints values, uint64_t end, const char* of) {
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] < 0 || static_cast<uint64_t>(values[i]) >= end)
      return fail(Status::OUT_OF_RANGE, "%s[%zu]=%d is outside 0..%lld (%s)", field, i, values[i],
                  static_cast<long long>(end) - 1, of);
  return {};
}

Result<void> check_chunk(Ints positions) {
  for (size_t i = 1; i < positions.size(); ++i)
    if (positions[i] != positions[0] + static_cast<int32_t>(i))
      return fail(Status::INVALID_ARGUMENT,
                  "positions[%zu]=%d, but a chunk fills neighbouring cells: %d is due", i,
                  positions[i], positions[0] + static_cast<int32_t>(i));
  return {};
}

// The room of an input in the set; empty when the graph lacks it.
Result<std::span<int32_t>> room_of(BindingSet& set, const cald_graph& graph, int32_t role) {
  const cald_io* io = find_io(graph, role);
  if (io == nullptr) return std::span<int32_t>();
  int32_t* ints = set.ints(role);
  if (ints == nullptr)
    return fail(Status::UNSUPPORTED, "the host cannot address the inputs of graph %s", graph.name);
  return std::span<int32_t>(ints, static_cast<size_t>(io->shape[0]));
}

// Copies `values` and pads the rest; what lies in the set now, or `values` when the graph lacks it.
Result<Ints> fill(BindingSet& set, const cald_graph& graph, int32_t role, Ints values,
                  int32_t padding) {
  CALRT_TRY_ASSIGN(const std::span<int32_t> room, room_of(set, graph, role));
  if (room.empty()) return values;
  const size_t n = std::min(values.size(), room.size());
  if (values.data() != room.data()) std::copy_n(values.begin(), n, room.begin());
  std::fill(room.begin() + static_cast<std::ptrdiff_t>(n), room.end(), padding);
  return Ints(room.first(n));
}

Result<void> fill_lanes(BindingSet& set, const cald_graph& graph,
                        std::span<const kv::LaneRef> lanes) {
  CALRT_TRY_ASSIGN(const std::span<int32_t> room, room_of(set, graph, CALD_ROLE_LANES));
  for (size_t i = 0; i < room.size(); ++i)
    room[i] = i < lanes.size() ? static_cast<int32_t>(lanes[i].lane) : -1;
  return {};
}

}  // namespace

const cald_io* find_io(const cald_graph& graph, int32_t role) {
  for (uint32_t i = 0; i < graph.n_inputs; ++i)
    if (graph.inputs[i]->role == role) return graph.inputs[i];
  for (uint32_t i = 0; i < graph.n_outputs; ++i)
    if (graph.outputs[i]->role == role) return graph.outputs[i];
  return nullptr;
}

Result<void> check_counts(const cald_graph& graph, const GraphCall& call) {
  const bool prefill = graph.kind == CALD_GRAPH_PREFILL;
  const uint32_t room = prefill ? graph.chunk : graph.batch;
  const size_t n = call.tokens.size();
  if (n == 0)
    return fail(Status::SHAPE_MISMATCH, "tokens: empty; graph %s takes 1 to %u", graph.name, room);
  if (n > room)
    return fail(Status::SHAPE_MISMATCH, "tokens: %zu given, but graph %s takes at most %u", n,
                graph.name, room);
  if (call.positions.size() != n)
    return fail(Status::SHAPE_MISMATCH, "positions: %zu given for %zu tokens: give one per token",
                call.positions.size(), n);
  return prefill ? check_prefill_counts(graph, call) : check_decode_counts(graph, call);
}

Result<CheckedCall> fill_and_check(BindingSet& set, const GraphCall& call) {
  const Model& model = *set.model();
  const cald_graph& graph = model.graph(set.graph());
  CheckedCall out;
  out.prefill = graph.kind == CALD_GRAPH_PREFILL;
  out.n_valid = call.n_valid.value_or(static_cast<uint32_t>(call.tokens.size()));
  out.output_rows = out.prefill ? 1 : out.n_valid;

  CALRT_TRY(check_lane_map(graph, call.lanes));
  CALRT_TRY(fill_lanes(set, graph, call.lanes));
  CALRT_TRY_ASSIGN(const Ints tokens, fill(set, graph, CALD_ROLE_TOKENS, call.tokens, 0));
  CALRT_TRY(check_range("tokens", tokens, model.info().vocab, "the vocabulary"));
  CALRT_TRY_ASSIGN(const Ints positions, fill(set, graph, CALD_ROLE_POSITIONS, call.positions, 0));
  CALRT_TRY(check_range("positions", positions, model.info().cells, "the cells of a lane"));
  const auto n_valid = static_cast<int32_t>(out.n_valid);
  CALRT_TRY(fill(set, graph, CALD_ROLE_N_VALID, Ints(&n_valid, 1), 0));
  uint32_t rows = 0;
  if (call.logit_rows) {
    CALRT_TRY_ASSIGN(const Ints wanted,
                     fill(set, graph, CALD_ROLE_LOGIT_ROWS, *call.logit_rows, 0));
    CALRT_TRY(check_range("logit_rows", wanted, out.n_valid, "the valid rows"));
    out.output_rows = rows = static_cast<uint32_t>(wanted.size());
  }
  if (set.rows() != rows) set.bind_rows(rows);

  const auto first = [&](size_t i) { return static_cast<uint32_t>(positions[i]); };
  if (out.prefill) {
    CALRT_TRY(check_chunk(positions.first(out.n_valid)));
    out.writes.push_back({call.lanes[0], first(0), out.n_valid});
  } else {
    out.writes.reserve(call.lanes.size());
    for (size_t i = 0; i < call.lanes.size(); ++i)
      out.writes.push_back({call.lanes[i], first(i), 1});
  }
  return out;
}

}  // namespace calrt::engine
