// SPDX-License-Identifier: Apache-2.0
#include "engine/graph_call.h"

#include <algorithm>

namespace calrt::engine {
namespace {

Result<void> check_tokens(const Model& model, const cald_graph& graph, const GraphCall& call) {
  const uint32_t room = graph.kind == CALD_GRAPH_PREFILL ? graph.chunk : graph.batch;
  const size_t n = call.tokens.size();
  if (n == 0)
    return fail(Status::SHAPE_MISMATCH, "tokens: empty; graph %s takes 1 to %u", graph.name, room);
  if (n > room)
    return fail(Status::SHAPE_MISMATCH, "tokens: %zu given, but graph %s takes at most %u", n,
                graph.name, room);
  if (call.positions.size() != n)
    return fail(Status::SHAPE_MISMATCH, "positions: %zu given for %zu tokens: give one per token",
                call.positions.size(), n);
  const auto vocab = static_cast<int64_t>(model.info().vocab);
  const auto cells = static_cast<int64_t>(model.info().cells);
  for (size_t i = 0; i < n; ++i) {
    if (call.tokens[i] < 0 || call.tokens[i] >= vocab)
      return fail(Status::OUT_OF_RANGE, "tokens[%zu]=%d is outside 0..%lld (the vocabulary)", i,
                  call.tokens[i], static_cast<long long>(vocab - 1));
    if (call.positions[i] < 0 || call.positions[i] >= cells)
      return fail(Status::OUT_OF_RANGE,
                  "positions[%zu]=%d is outside 0..%lld (the cells of a lane)", i,
                  call.positions[i], static_cast<long long>(cells - 1));
  }
  return {};
}

Result<void> check_lane_map(const cald_graph& graph, const GraphCall& call) {
  for (size_t i = 0; i < call.lanes.size(); ++i) {
    const uint32_t lane = call.lanes[i].lane;
    for (size_t j = 0; j < i; ++j)
      if (call.lanes[j].lane == lane)
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

Result<void> check_prefill(const cald_graph& graph, const GraphCall& call, CheckedCall* out) {
  if (call.lanes.size() != 1)
    return fail(Status::SHAPE_MISMATCH, "lanes: %zu given, but prefill graph %s writes one lane",
                call.lanes.size(), graph.name);
  const auto n = static_cast<uint32_t>(call.tokens.size());
  out->n_valid = call.n_valid.value_or(n);
  if (out->n_valid == 0 || out->n_valid > n)
    return fail(Status::OUT_OF_RANGE, "n_valid=%u is outside 1..%u (the tokens given)",
                out->n_valid, n);
  for (uint32_t i = 1; i < out->n_valid; ++i)
    if (call.positions[i] != call.positions[0] + static_cast<int32_t>(i))
      return fail(Status::INVALID_ARGUMENT,
                  "positions[%u]=%d, but a chunk fills neighbouring cells: %d is due", i,
                  call.positions[i], call.positions[0] + static_cast<int32_t>(i));
  out->output_rows = 1;
  if (call.logit_rows) {
    const cald_io* io = find_io(graph, CALD_ROLE_LOGIT_ROWS);
    if (io == nullptr)
      return fail(Status::UNSUPPORTED, "logit_rows: graph %s returns the last valid row only",
                  graph.name);
    const size_t rows = call.logit_rows->size();
    if (rows == 0 || rows > io->shape[0])
      return fail(Status::SHAPE_MISMATCH,
                  "logit_rows: %zu given, but graph %s returns 1 to %llu rows", rows, graph.name,
                  static_cast<unsigned long long>(io->shape[0]));
    for (size_t i = 0; i < rows; ++i)
      if ((*call.logit_rows)[i] < 0 || (*call.logit_rows)[i] >= static_cast<int32_t>(out->n_valid))
        return fail(Status::OUT_OF_RANGE, "logit_rows[%zu]=%d is outside 0..%u (the valid rows)", i,
                    (*call.logit_rows)[i], out->n_valid - 1);
    out->output_rows = static_cast<uint32_t>(rows);
  }
  out->writes.push_back({call.lanes[0], static_cast<uint32_t>(call.positions[0]), out->n_valid});
  return {};
}

Result<void> check_decode(const cald_graph& graph, const GraphCall& call, CheckedCall* out) {
  if (call.lanes.size() != call.tokens.size())
    return fail(Status::SHAPE_MISMATCH, "lanes: %zu given for %zu tokens: give one per token",
                call.lanes.size(), call.tokens.size());
  if (call.n_valid)
    return fail(Status::INVALID_ARGUMENT, "n_valid belongs to prefill graphs; %s decodes",
                graph.name);
  if (call.logit_rows)
    return fail(Status::INVALID_ARGUMENT,
                "logit_rows belongs to prefill graphs; %s returns every row", graph.name);
  out->n_valid = out->output_rows = static_cast<uint32_t>(call.tokens.size());
  for (size_t i = 0; i < call.lanes.size(); ++i)
    out->writes.push_back({call.lanes[i], static_cast<uint32_t>(call.positions[i]), 1});
  return {};
}

void fill(BindingSet& set, int32_t role, const cald_io* io, const std::vector<int32_t>& values,
          int32_t padding) {
  int32_t* ints = io == nullptr ? nullptr : set.ints(role);
  if (ints == nullptr) return;
  const auto room = static_cast<size_t>(io->shape[0]);
  const size_t n = std::min(values.size(), room);
  std::copy_n(values.begin(), n, ints);
  std::fill(ints + n, ints + room, padding);
}

}  // namespace

const cald_io* find_io(const cald_graph& graph, int32_t role) {
  for (uint32_t i = 0; i < graph.n_inputs; ++i)
    if (graph.inputs[i]->role == role) return graph.inputs[i];
  for (uint32_t i = 0; i < graph.n_outputs; ++i)
    if (graph.outputs[i]->role == role) return graph.outputs[i];
  return nullptr;
}

Result<CheckedCall> check_call(const Model& model, uint32_t index, const GraphCall& call) {
  const cald_graph& graph = model.graph(index);
  CheckedCall out;
  out.prefill = graph.kind == CALD_GRAPH_PREFILL;
  CALRT_TRY(check_tokens(model, graph, call));
  CALRT_TRY(out.prefill ? check_prefill(graph, call, &out) : check_decode(graph, call, &out));
  CALRT_TRY(check_lane_map(graph, call));
  return out;
}

void fill_call(const Model& model, BindingSet& set, const GraphCall& call,
               const CheckedCall& checked) {
  const cald_graph& graph = model.graph(set.graph());
  std::vector<int32_t> lanes;
  for (const kv::LaneRef& ref : call.lanes) lanes.push_back(static_cast<int32_t>(ref.lane));
  fill(set, CALD_ROLE_TOKENS, find_io(graph, CALD_ROLE_TOKENS), call.tokens, 0);
  fill(set, CALD_ROLE_POSITIONS, find_io(graph, CALD_ROLE_POSITIONS), call.positions, 0);
  fill(set, CALD_ROLE_LANES, find_io(graph, CALD_ROLE_LANES), lanes, -1);
  fill(set, CALD_ROLE_N_VALID, find_io(graph, CALD_ROLE_N_VALID),
       {static_cast<int32_t>(checked.n_valid)}, 0);
  if (call.logit_rows) {
    fill(set, CALD_ROLE_LOGIT_ROWS, find_io(graph, CALD_ROLE_LOGIT_ROWS), *call.logit_rows, 0);
    set.bind_rows(static_cast<uint32_t>(call.logit_rows->size()));
  } else {
    set.bind_rows(0);
  }
}

}  // namespace calrt::engine
