// SPDX-License-Identifier: Apache-2.0
// DATA-06 to DATA-13 and DATA-15: lanes, batches, chunks and padding. A sequence of tokens has one
// right result, whatever lane, chunk and company it travels in.
#include <algorithm>

#include "conformance/player.h"

namespace calrt::conformance {
namespace {

std::vector<uint32_t> lanes_in_reach(const Player& player) {
  std::vector<uint32_t> lanes;
  for (uint32_t lane = 0; lane < std::min(player.info().lanes, 4u); ++lane)
    if (!player.all(lane).empty()) lanes.push_back(lane);
  return lanes;
}

void needs_lanes(const Player& player, size_t count) {
  const size_t have = lanes_in_reach(player).size();
  if (have < count) skip("%zu of the model's lanes can be reached, %zu are needed", have, count);
}

CONFORMANCE_CHECK("DATA-06", "") {
  Player player(kit);
  needs_results(kit, player);
  needs_lanes(player, 2);
  const Tokens prompt = player.prompt(21, 20);
  for (const uint32_t graph : {player.all().front(), player.all().back()}) {
    Bytes first;
    for (const uint32_t lane : lanes_in_reach(player)) {
      if (!player.reaches(graph, lane)) continue;
      const Bytes here = player.feed(graph, lane, prompt);
      if (first.empty()) first = here;
      REQUIRE(here == first, "%s: lane %u gives other logits than lane 0", player.graph(graph).name,
              lane);
    }
  }
}

CONFORMANCE_CHECK("DATA-07", "") {
  Player player(kit);
  needs_results(kit, player);
  const std::vector<uint32_t> graphs = player.all();
  if (graphs.size() < 2) skip("the model has one graph");
  const Tokens prompt = player.prompt(22, player.long_length());
  const auto next = static_cast<int32_t>(prompt.size());
  const Bytes first = player.feed(graphs.front(), 0, prompt);
  const Bytes first_after = player.step(0, 3, next);
  for (const uint32_t graph : graphs) {
    if (player.graph(graph).kind != CALD_GRAPH_PREFILL) continue;
    REQUIRE(close(player.feed(graph, 0, prompt), first, player.info().logits_dtype),
            "%zu tokens by %s give other logits than by %s", prompt.size(),
            player.graph(graph).name, player.graph(graphs.front()).name);
    // The lane is as after a decode of each token, not only its last logits.
    REQUIRE(close(player.step(0, 3, next), first_after, player.info().logits_dtype),
            "a lane filled by %s goes on otherwise than one filled by %s", player.graph(graph).name,
            player.graph(graphs.front()).name);
  }
}

CONFORMANCE_CHECK("DATA-08", "") {
  Player player(kit);
  needs_results(kit, player);
  const std::vector<uint32_t> graphs = player.decoders();
  if (graphs.size() < 2) skip("the model has decode graphs of one size");
  const Tokens prompt = player.prompt(23, 10);
  const Bytes first = player.feed(graphs.front(), 0, prompt);
  for (const uint32_t graph : graphs)
    REQUIRE(close(player.feed(graph, 0, prompt), first, player.info().logits_dtype),
            "%s gives other logits than %s", player.graph(graph).name,
            player.graph(graphs.front()).name);
}

// The largest decode graph that has a row for two lanes.
uint32_t wide_graph(const Player& player) {
  needs_lanes(player, 2);
  const std::vector<uint32_t> graphs = player.decoders(1);
  if (graphs.empty() || player.graph(graphs.back()).batch < 2)
    skip("no decode graph has rows for two lanes");
  return graphs.back();
}

CONFORMANCE_CHECK("DATA-09", "same_job") {
  Player player(kit);
  needs_results(kit, player);
  GraphCall& call = player.call(wide_graph(player));
  const Tokens mine = player.prompt(24, 12);
  const auto run = [&](bool company) {
    Bytes last;
    for (size_t i = 0; i < mine.size(); ++i) {
      const auto at = static_cast<int32_t>(i);
      std::vector<Row> rows = {{mine[i], at, 0}};
      for (const uint32_t lane : lanes_in_reach(player))
        if (company && lane != 0 && lane < call.graph().batch)
          rows.push_back({player.prompt(500 + lane, mine.size())[i],
                          at + static_cast<int32_t>(lane), static_cast<int32_t>(lane)});
      player.fill_decode(call, rows);
      call.run();
      last = call.row(player.row_of(call, rows, 0));
    }
    return last;
  };
  REQUIRE(run(true) == run(false), "%s: what other rows hold changes a row's logits",
          call.graph().name);
}

CONFORMANCE_CHECK("DATA-09", "other_job") {
  Player player(kit);
  needs_results(kit, player);
  needs_lanes(player, 2);
  const Tokens mine = player.prompt(25, 20);
  const auto next = static_cast<int32_t>(mine.size());
  for (const uint32_t graph : {player.all(1).front(), player.all(1).back()}) {
    player.feed(player.all(0).back(), 0, mine);
    const Bytes alone = player.step(0, 5, next);
    player.feed(player.all(0).back(), 0, mine);
    for (const uint32_t lane : lanes_in_reach(player))
      if (lane != 0 && player.reaches(graph, lane))
        player.feed(graph, lane, player.prompt(600 + lane, player.long_length()));
    REQUIRE(player.step(0, 5, next) == alone, "jobs of other lanes by %s have changed lane 0",
            player.graph(graph).name);
  }
}

CONFORMANCE_CHECK("DATA-10", "lanes") {
  Player player(kit);
  needs_results(kit, player);
  bool any = false;
  const Tokens prompt = player.prompt(26, 16);
  const auto next = static_cast<int32_t>(prompt.size());
  for (const uint32_t graph : player.all()) {
    GraphCall& call = player.call(graph);
    if (call.io(CALD_ROLE_LANES) == nullptr) continue;
    any = true;
    std::vector<Bytes> before, after;
    for (std::vector<Bytes>* goes_on : {&before, &after}) {
      for (const uint32_t lane : lanes_in_reach(player))
        player.feed(player.stepper(lane), lane, prompt);
      if (goes_on == &after) {  // padding alone, with tokens and positions that would do harm
        if (call.graph().kind == CALD_GRAPH_DECODE)
          player.fill_decode(call, {});
        else
          player.fill_prefill(call, player.prompt(77, std::min<size_t>(call.graph().chunk, 12)), 0,
                              -1);
        call.set(CALD_ROLE_TOKENS, player.prompt(77, 12));
        call.run();
      }
      for (const uint32_t lane : lanes_in_reach(player))
        goes_on->push_back(player.step(lane, 3, next));
    }
    REQUIRE(before == after, "%s: a padding row has written to a lane", call.graph().name);
  }
  if (!any) skip("no graph is told its lanes, so none has padding rows");
}

CONFORMANCE_CHECK("DATA-10", "rows") {
  Player player(kit);
  needs_results(kit, player);
  GraphCall& call = player.call(wide_graph(player));
  if (call.io(CALD_ROLE_LANES) == nullptr) skip("no graph is told its lanes");
  const Tokens prompt = player.prompt(27, 8);
  Bytes first;
  // The one true row in the first place, the last, and with other padding around.
  for (const uint32_t place : {0u, call.graph().batch - 1, 1u}) {
    Bytes last;
    for (size_t i = 0; i < prompt.size(); ++i) {
      Tokens tokens(call.graph().batch, static_cast<int32_t>(place)), lanes(call.graph().batch, -1);
      Tokens positions(call.graph().batch, static_cast<int32_t>(i));
      tokens[place] = prompt[i];
      lanes[place] = 0;
      call.set(CALD_ROLE_TOKENS, tokens);
      call.set(CALD_ROLE_POSITIONS, positions);
      call.set(CALD_ROLE_LANES, lanes);
      call.run();
      last = call.row(place);
    }
    if (first.empty()) first = last;
    REQUIRE(last == first, "%s: a row among padding gives other logits in row %u",
            call.graph().name, place);
  }
}

CONFORMANCE_CHECK("DATA-11", "") {
  Player player(kit);
  needs_results(kit, player);
  bool any = false;
  for (const uint32_t graph : player.prefillers()) {
    GraphCall& call = player.call(graph);
    if (call.io(CALD_ROLE_N_VALID) == nullptr || call.graph().chunk < 4) continue;
    any = true;
    const uint32_t n = std::min(call.graph().chunk / 2 + 1, player.info().cells / 2);
    const Tokens prompt = player.prompt(28, n);
    // Behind what is valid: cells that hold something, and tokens and positions that would change
    // them. The lane is to go on as if they had not been there.
    const Tokens behind = player.prompt(29, n + 6);
    const auto go_on = [&](uint32_t seed) {
      player.feed(graph, 0, behind);
      player.fill_prefill(call, prompt, 0, 0);
      Tokens all = player.prompt(seed, call.graph().chunk), positions;
      std::copy(prompt.begin(), prompt.end(), all.begin());
      for (uint32_t i = 0; i < call.graph().chunk; ++i)
        positions.push_back(static_cast<int32_t>(i % player.info().cells));
      call.set(CALD_ROLE_TOKENS, all);
      call.set(CALD_ROLE_POSITIONS, positions);
      call.run();
      const Bytes logits = call.row(0);
      // Cells [n, n + 6) are still those of `behind`.
      return std::pair(logits, player.step(0, 9, static_cast<int32_t>(n + 6)));
    };
    const auto one = go_on(31), other = go_on(32);
    REQUIRE(one.first == other.first, "%s: tokens behind n_valid change the logits",
            call.graph().name);
    REQUIRE(one.second == other.second, "%s: tokens behind n_valid were written to the lane",
            call.graph().name);
    player.feed(graph, 0, behind);
    player.feed(player.stepper(0), 0, prompt);
    REQUIRE(close(player.step(0, 9, static_cast<int32_t>(n + 6)), one.second,
                  player.info().logits_dtype),
            "%s: cells behind n_valid have changed", call.graph().name);
  }
  if (!any) skip("no prefill graph has n_valid");
}

CONFORMANCE_CHECK("DATA-12", "") {
  Player player(kit);
  needs_results(kit, player);
  bool any = false;
  for (const uint32_t graph : player.prefillers()) {
    GraphCall& call = player.call(graph);
    if (call.io(CALD_ROLE_LOGIT_ROWS) == nullptr || call.graph().chunk < 8) continue;
    any = true;
    const Tokens prompt = player.prompt(33, 7);
    std::vector<Bytes> singles;
    for (size_t i = 1; i <= prompt.size(); ++i)
      singles.push_back(player.feed(
          graph, 0, Tokens(prompt.begin(), prompt.begin() + static_cast<ptrdiff_t>(i))));
    REQUIRE(player.feed(graph, 0, prompt) == singles.back(),
            "%s: without logit_rows the last valid row is due", call.graph().name);
    for (const Tokens& rows : {Tokens{0}, Tokens{6}, Tokens{2, 5}, Tokens{5, 2, 0}, Tokens{3, 3},
                               Tokens{0, 1, 2, 3, 4, 5, 6}}) {
      player.fill_prefill(call, prompt, 0, 0);
      call.bind_rows(rows);
      call.run();
      for (uint32_t r = 0; r < rows.size(); ++r)
        REQUIRE(
            close(call.row(r), singles[static_cast<size_t>(rows[r])], player.info().logits_dtype),
            "%s: row %u of %zu, which is to be token %d, is not its logits", call.graph().name, r,
            rows.size(), rows[r]);
    }
    call.bind_rows({});
  }
  if (!any) skip("no prefill graph has logit_rows");
}

CONFORMANCE_CHECK("DATA-13", "") {
  Player player(kit);
  needs_results(kit, player);
  const uint32_t graph = wide_graph(player);
  GraphCall& call = player.call(graph);
  if (call.graph().lane_map != CALD_LANE_MAP_ANY) skip("lane_map is not any");
  std::vector<uint32_t> lanes = lanes_in_reach(player);
  lanes.resize(std::min<size_t>(lanes.size(), call.graph().batch));
  std::map<uint32_t, Bytes> first;
  for (size_t turn = 0; turn < lanes.size(); ++turn) {
    for (const uint32_t lane : lanes)
      player.feed(player.stepper(lane), lane, player.prompt(700 + lane, 6 + lane));
    std::vector<Row> rows;
    for (const uint32_t lane : lanes)
      rows.push_back({static_cast<int32_t>(lane) + 1, static_cast<int32_t>(6 + lane),
                      static_cast<int32_t>(lane)});
    player.fill_decode(call, rows);
    call.run();
    for (uint32_t r = 0; r < lanes.size(); ++r) {
      Bytes& known = first[lanes[r]];
      const Bytes now = call.row(r);
      if (known.empty()) known = now;
      REQUIRE(now == known, "%s: lane %u in row %u gives other logits", call.graph().name, lanes[r],
              r);
    }
    std::rotate(lanes.begin(), lanes.begin() + 1, lanes.end());
  }
  for (const auto& [lane, logits] : first)
    REQUIRE(lane == lanes.front() || logits != first[lanes.front()],
            "lanes %u and %u hold other tokens, and give the same logits", lane, lanes.front());
}

// The same of graphs of one row, whose lanes come one after the other.
CONFORMANCE_CHECK("DATA-13", "in_turn") {
  Player player(kit);
  needs_results(kit, player);
  needs_lanes(player, 2);
  const std::vector<uint32_t> decoders = player.decoders(1);
  if (decoders.empty()) skip("no decode graph");
  GraphCall& call = player.call(decoders.front());
  if (call.graph().lane_map != CALD_LANE_MAP_ANY) skip("lane_map is not any");
  std::vector<uint32_t> lanes = lanes_in_reach(player);
  std::map<uint32_t, Tokens> tokens;
  std::map<uint32_t, Bytes> alone;
  for (const uint32_t lane : lanes) {
    tokens[lane] = player.prompt(720 + lane, 7);
    alone[lane] = player.feed(player.all(lane).back(), lane, tokens[lane]);
  }
  for (size_t turn = 0; turn < lanes.size(); ++turn) {
    for (const uint32_t lane : lanes)
      player.feed(player.all(lane).back(), lane,
                  Tokens(tokens[lane].begin(), tokens[lane].end() - 1));
    for (const uint32_t lane : lanes) {
      player.fill_decode(call, {{tokens[lane].back(), 6, static_cast<int32_t>(lane)}});
      call.run();
      REQUIRE(close(call.row(0), alone[lane], player.info().logits_dtype),
              "%s: lane %u gives other logits when other lanes come between", call.graph().name,
              lane);
    }
    std::rotate(lanes.begin(), lanes.begin() + 1, lanes.end());
  }
}

CONFORMANCE_CHECK("DATA-15", "again") {
  Player player(kit);
  needs_results(kit, player);
  for (const uint32_t graph : {player.all().front(), player.all().back()}) {
    const Tokens prompt = player.prompt(34, 18);
    const Bytes first = player.feed(graph, 0, prompt);
    player.feed(graph, 0, player.prompt(35, 18));
    REQUIRE(player.feed(graph, 0, prompt) == first,
            "%s: a lane that is written again remembers what it held", player.graph(graph).name);
  }
}

CONFORMANCE_CHECK("DATA-15", "behind") {
  uint32_t graphs[2] = {};
  {
    Player player(kit);
    needs_results(kit, player);
    graphs[0] = player.all().front();
    graphs[1] = player.all().back();
  }
  for (const uint32_t graph : graphs) {
    Bytes results[2];
    for (const bool used : {false, true}) {
      kit.close_model();
      Player player(kit);
      if (used) player.feed(graph, 0, player.prompt(37, 30));
      results[used] = player.feed(graph, 0, player.prompt(36, 9));
    }
    REQUIRE(results[0] == results[1], "%s: cells behind a position change its logits",
            kit.model_info().graphs[graph]->name);
  }
}

}  // namespace
}  // namespace calrt::conformance
