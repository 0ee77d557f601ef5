// SPDX-License-Identifier: Apache-2.0
// DATA-01 to DATA-05 and DATA-14: what a job writes, and what it does not. Nothing here knows what
// a device computes: a result is compared with another result of the same device.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "conformance/player.h"

namespace calrt::conformance {
namespace {

// Rows of logits that a right call of this graph returns.
std::vector<Bytes> rows_of(GraphCall& call, Player& player) {
  std::vector<Bytes> rows;
  const cald_graph& graph = call.graph();
  if (graph.kind == CALD_GRAPH_DECODE && graph.lane_map == CALD_LANE_MAP_ANY)
    return {call.row(0)};  // the others are padding
  if (graph.kind == CALD_GRAPH_DECODE)
    for (uint32_t i = 0; i < graph.batch; ++i) rows.push_back(call.row(i));
  else
    rows.push_back(
        call.last_row(static_cast<uint32_t>(std::min<uint64_t>(graph.chunk, player.info().cells))));
  return rows;
}

CONFORMANCE_CHECK("DATA-01", "") {
  kit.known("null", "", "null computes nothing and leaves its outputs as they were");
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    std::vector<std::vector<Bytes>> results;
    for (const uint8_t stale : {0x5A, 0xA5, 0x00}) {
      player.fill(call);
      call.buffer(CALD_ROLE_LOGITS).fill(stale);
      call.run();
      results.push_back(rows_of(call, player));
    }
    REQUIRE(results[0] == results[1] && results[0] == results[2],
            "%s: part of its logits is what was in the buffer before", call.graph().name);
  }
}

CONFORMANCE_CHECK("DATA-02", "") {
  Player player(kit);
  for (uint32_t g = 0; g < kit.model_info().n_graphs; ++g) {
    GraphCall& call = player.call(g);
    player.fill(call);
    call.run();  // looks at the guards
    if (call.io(CALD_ROLE_LOGIT_ROWS) == nullptr) continue;
    // Of an output of many rows, one is bound: the rest of the buffer is not the job's.
    call.buffer(CALD_ROLE_LOGITS).fill(0x5A);
    call.run();
    const cald_binding& bound = call.binding(CALD_ROLE_LOGITS);
    const Bytes out = call.buffer(CALD_ROLE_LOGITS).read();
    REQUIRE(std::all_of(out.begin() + static_cast<ptrdiff_t>(bound.bytes), out.end(),
                        [](uint8_t byte) { return byte == 0x5A; }),
            "%s wrote behind the %llu bytes of logits that were bound", call.graph().name,
            static_cast<unsigned long long>(bound.bytes));
  }
}

CONFORMANCE_CHECK("DATA-03", "") {
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    player.fill(call);
    call.buffer(CALD_ROLE_LOGITS).fill(0x5A);
    call.run();
    const Bytes at_the_end = call.buffer(CALD_ROLE_LOGITS).read();
    // The buffer is the caller's again: what he writes stays.
    call.buffer(CALD_ROLE_LOGITS).fill(0x77);
    for (int look = 0; look < 6; ++look) {
      if (kit.polled())
        for (int i = 0; i < 20; ++i) kit.turn();
      else
        usleep(2000);
      const Bytes now = call.buffer(CALD_ROLE_LOGITS).read();
      const auto changed =
          std::find_if(now.begin(), now.end(), [](uint8_t byte) { return byte != 0x77; });
      REQUIRE(changed == now.end(),
              "%s: byte %lld of the logits was written after the job had ended", call.graph().name,
              static_cast<long long>(changed - now.begin()));
      call.check_guards();
    }
  }
}

CONFORMANCE_CHECK("DATA-04", "") {
  Player player(kit);
  needs_results(kit, player);
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    std::vector<Bytes> first;
    for (int round = 0; round < 4; ++round) {
      player.fill(call);
      call.run();
      const std::vector<Bytes> now = rows_of(call, player);
      if (round == 0) first = now;
      REQUIRE(now == first, "%s: the same job gave other logits", call.graph().name);
    }
  }
}

CONFORMANCE_CHECK("DATA-05", "tokens") {
  Player player(kit);
  needs_results(kit, player);
  for (const uint32_t graph : {player.all().front(), player.all().back()}) {
    const bool prefill = player.graph(graph).kind == CALD_GRAPH_PREFILL;
    const Tokens prompt = player.prompt(11, prefill ? player.long_length() : 20);
    const Bytes whole = player.feed(graph, 0, prompt);
    for (const float value : floats(whole, player.info().logits_dtype))
      REQUIRE(std::isfinite(value), "%s gives logits that are not finite",
              player.graph(graph).name);
    std::set<size_t> places = {0, prompt.size() / 3, prompt.size() - 2, prompt.size() - 1};
    if (prefill)  // few jobs each: look at more of a chunk
      for (const size_t at : {1u, 2u, 3u, 7u, 8u, player.graph(graph).chunk / 2,
                              player.graph(graph).chunk - 1, player.graph(graph).chunk})
        if (at < prompt.size()) places.insert(at);
    for (const size_t at : places) {
      Tokens other = prompt;
      other[at] = (other[at] + 1) % static_cast<int32_t>(player.info().vocab);
      REQUIRE(player.feed(graph, 0, other) != whole,
              "%s: token %zu of %zu makes no difference to the logits", player.graph(graph).name,
              at, prompt.size());
    }
  }
}

CONFORMANCE_CHECK("DATA-05", "order") {
  Player player(kit);
  needs_results(kit, player);
  const Tokens prompt = player.prompt(12, 12);
  Tokens turned = prompt;
  std::swap(turned[2], turned[7]);
  const uint32_t graph = player.all().front();
  REQUIRE(turned == prompt || player.feed(graph, 0, prompt) != player.feed(graph, 0, turned),
          "the order of tokens makes no difference to the logits");
}

CONFORMANCE_CHECK("DATA-14", "") {
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    player.fill(call);
    std::vector<Bytes> before;
    for (const cald_binding& binding : call.bindings())
      before.push_back(call.buffer(binding.role).read());
    call.run();
    for (size_t i = 0; i < before.size(); ++i) {
      const int32_t role = call.bindings()[i].role;
      REQUIRE(role == CALD_ROLE_LOGITS || call.buffer(role).read() == before[i],
              "%s has changed its input of role %d", call.graph().name, role);
    }
  }
}

}  // namespace
}  // namespace calrt::conformance
