// SPDX-License-Identifier: Apache-2.0
#include "conformance/player.h"

#include <algorithm>
#include <cmath>

namespace calrt::conformance {
namespace {

std::vector<uint32_t> graphs_of(const Player& player, int32_t kind, uint32_t lane) {
  const cald_model_info& info = player.info();
  std::vector<uint32_t> found;
  for (uint32_t g = 0; g < info.n_graphs; ++g)
    if (info.graphs[g]->kind == kind && player.reaches(g, lane)) found.push_back(g);
  const auto size = [&](uint32_t g) { return info.graphs[g]->batch + info.graphs[g]->chunk; };
  std::sort(found.begin(), found.end(), [&](uint32_t a, uint32_t b) { return size(a) < size(b); });
  return found;
}

}  // namespace

GraphCall& Player::call(uint32_t graph) {
  std::unique_ptr<GraphCall>& call = calls_[graph];
  if (call == nullptr) call = std::make_unique<GraphCall>(*kit_, graph);
  return *call;
}

bool Player::reaches(uint32_t index, uint32_t lane) const {
  const cald_graph& graph = *info_.graphs[index];
  if (lane >= info_.lanes) return false;
  if (graph.lane_map == CALD_LANE_MAP_ANY) return true;
  if (graph.kind == CALD_GRAPH_PREFILL) return lane == 0;
  return lane < graph.batch && graph.batch <= info_.lanes;
}

std::vector<uint32_t> Player::decoders(uint32_t lane) const {
  return graphs_of(*this, CALD_GRAPH_DECODE, lane);
}
std::vector<uint32_t> Player::prefillers(uint32_t lane) const {
  return graphs_of(*this, CALD_GRAPH_PREFILL, lane);
}
std::vector<uint32_t> Player::all(uint32_t lane) const {
  std::vector<uint32_t> both = decoders(lane);
  for (const uint32_t graph : prefillers(lane)) both.push_back(graph);
  return both;
}

uint32_t Player::stepper(uint32_t lane) const {
  const std::vector<uint32_t> any = all(lane);
  if (any.empty()) skip("no graph reaches lane %u", lane);
  return any.front();
}

Tokens Player::prompt(uint32_t seed, size_t length) const {
  Tokens out;
  uint32_t x = seed * 2654435761u + 12345;
  for (size_t i = 0; i < length; ++i) {
    x = x * 1664525u + 1013904223u;
    out.push_back(static_cast<int32_t>((x >> 8) % info_.vocab));
  }
  return out;
}

size_t Player::long_length() const {
  size_t largest = 8;
  for (const uint32_t graph : prefillers())
    largest = std::max<size_t>(largest, this->graph(graph).chunk);
  return std::min<size_t>(largest + 5, info_.cells / 2);
}

void Player::fill_decode(GraphCall& call, const std::vector<Row>& rows) {
  const uint32_t batch = call.graph().batch;
  const bool any = call.graph().lane_map == CALD_LANE_MAP_ANY;
  Tokens tokens(batch, 0), lanes(batch, -1);
  Tokens positions(batch, any ? 0 : static_cast<int32_t>(info_.cells) - 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t at = row_of(call, rows, i);
    tokens[at] = rows[i].token;
    positions[at] = rows[i].position;
    lanes[at] = rows[i].lane;
  }
  call.set(CALD_ROLE_TOKENS, tokens);
  call.set(CALD_ROLE_POSITIONS, positions);
  call.set(CALD_ROLE_LANES, lanes);
}

uint32_t Player::row_of(const GraphCall& call, const std::vector<Row>& rows, size_t index) const {
  return call.graph().lane_map == CALD_LANE_MAP_ANY ? static_cast<uint32_t>(index)
                                                    : static_cast<uint32_t>(rows[index].lane);
}

void Player::fill_prefill(GraphCall& call, const Tokens& tokens, int32_t first, int32_t lane) {
  const uint32_t chunk = call.graph().chunk;
  // What is behind n_valid is made of values that would do harm if they were taken.
  Tokens all(chunk, static_cast<int32_t>(info_.vocab) - 1), positions(chunk, 0);
  std::copy(tokens.begin(), tokens.end(), all.begin());
  for (size_t i = 0; i < tokens.size(); ++i) positions[i] = first + static_cast<int32_t>(i);
  call.set(CALD_ROLE_TOKENS, all);
  call.set(CALD_ROLE_POSITIONS, positions);
  call.set(CALD_ROLE_LANES, {lane});
  call.set(CALD_ROLE_N_VALID, {static_cast<int32_t>(tokens.size())});
  call.bind_rows({});
}

void Player::fill(GraphCall& call, int32_t lane, uint32_t seed) {
  if (call.graph().kind == CALD_GRAPH_DECODE)
    fill_decode(call, {{prompt(seed, 1)[0], 0, lane}});
  else
    fill_prefill(call, prompt(seed, std::min<size_t>(call.graph().chunk, info_.cells)), 0, lane);
}

Bytes Player::feed_chunk(uint32_t graph, uint32_t lane, const Tokens& tokens, int32_t first) {
  GraphCall& call = this->call(graph);
  fill_prefill(call, tokens, first, static_cast<int32_t>(lane));
  call.run();
  return call.last_row(static_cast<uint32_t>(tokens.size()));
}

Bytes Player::feed(uint32_t graph, uint32_t lane, const Tokens& tokens, int32_t first) {
  Bytes last;
  const uint32_t chunk = this->graph(graph).chunk;
  const bool decode = this->graph(graph).kind == CALD_GRAPH_DECODE;
  for (size_t at = 0; at < tokens.size();) {
    const auto position = first + static_cast<int32_t>(at);
    if (decode) {
      GraphCall& call = this->call(graph);
      const std::vector<Row> rows = {{tokens[at], position, static_cast<int32_t>(lane)}};
      fill_decode(call, rows);
      call.run();
      if (++at == tokens.size()) last = call.row(row_of(call, rows, 0));
      continue;
    }
    const size_t n = std::min<size_t>(chunk, tokens.size() - at);
    if (n < chunk && call(graph).io(CALD_ROLE_N_VALID) == nullptr) {
      const uint32_t small = stepper(lane);
      if (this->graph(small).kind != CALD_GRAPH_DECODE)
        skip("a chunk of %u tokens cannot be filled with %zu", chunk, n);
      const Tokens rest(tokens.begin() + static_cast<ptrdiff_t>(at), tokens.end());
      return feed(small, lane, rest, position);
    }
    const Tokens part(tokens.begin() + static_cast<ptrdiff_t>(at),
                      tokens.begin() + static_cast<ptrdiff_t>(at + n));
    last = feed_chunk(graph, lane, part, position);
    at += n;
  }
  return last;
}

Bytes Player::step(uint32_t lane, int32_t token, int32_t position) {
  return feed(stepper(lane), lane, {token}, position);
}

std::vector<float> floats(const Bytes& bytes, int32_t dtype) {
  std::vector<float> out;
  if (dtype == CALD_F32) {
    out.resize(bytes.size() / 4);
    std::memcpy(out.data(), bytes.data(), out.size() * 4);
    return out;
  }
  if (dtype != CALD_BF16) return out;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    const uint32_t bits = static_cast<uint32_t>(bytes[i] | bytes[i + 1] << 8) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof value);
    out.push_back(value);
  }
  return out;
}

bool close(const Bytes& a, const Bytes& b, int32_t dtype) {
  if (a == b) return true;
  const std::vector<float> x = floats(a, dtype), y = floats(b, dtype);
  if (x.empty() || x.size() != y.size()) return false;
  float largest = 0, apart = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(x[i]) || !std::isfinite(y[i])) return false;
    largest = std::max(largest, std::fabs(x[i]));
    apart = std::max(apart, std::fabs(x[i] - y[i]));
  }
  return apart <= 0.05f * largest;
}

void needs_results(Kit&, Player& player) {
  GraphCall& call = player.call(player.stepper(0));
  player.fill(call);
  call.buffer(CALD_ROLE_LOGITS).fill(0x5A);
  call.run();
  const Bytes out = call.buffer(CALD_ROLE_LOGITS).read();
  if (std::all_of(out.begin(), out.end(), [](uint8_t byte) { return byte == 0x5A; }))
    skip("this device writes nothing to its outputs (DATA-01)");
}

}  // namespace calrt::conformance
