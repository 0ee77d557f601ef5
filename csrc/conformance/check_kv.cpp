// SPDX-License-Identifier: Apache-2.0
// KV: operations on the cells of lanes. Where READ is there, cells are compared one by one; where
// not, lanes by how they go on.
#include <algorithm>

#include "conformance/kv_call.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;
constexpr uint32_t kOps[] = {CALD_KV_CLEAR,  CALD_KV_LANE_COPY, CALD_KV_RANGE_COPY,
                             CALD_KV_ROTATE, CALD_KV_READ,      CALD_KV_WRITE};
constexpr uint32_t kAllOps = 63;

void needs_two_lanes(const Player& player) {
  if (player.info().lanes < 2 || player.all(1).empty()) skip("one lane can be reached");
}

CONFORMANCE_CHECK("KV-01", "") {
  NEEDS_ENTRY(kit, kv_info);
  cald_model* model = kit.model();
  cald_kv_info info{};
  info.struct_size = sizeof info;
  kit.ok("kv_info", [&](cald_error* err) { return kit.table().kv_info(model, &info, err); });
  REQUIRE(info.lanes == kit.model_info().lanes && info.cells == kit.model_info().cells,
          "%u lanes of %u cells, the model has %u of %u", info.lanes, info.cells,
          kit.model_info().lanes, kit.model_info().cells);
  REQUIRE((info.ops & ~kAllOps) == 0, "ops %#x: bits 0 to 5 are known", info.ops);
  REQUIRE(info.ops == 0 || CONFORMANCE_HAS(kit, kv_submit), "ops %#x, and there is no kv_submit",
          info.ops);
  REQUIRE(info.n_layers > 0, "n_layers is 0");
  if ((info.ops & (CALD_KV_READ | CALD_KV_WRITE)) == 0) return;
  REQUIRE(info.bytes_per_cell > 0 && info.bytes_per_cell % (2 * info.n_layers) == 0,
          "%llu bytes a cell do not divide into K and V of %u layers",
          static_cast<ull>(info.bytes_per_cell), info.n_layers);
}

// Refused: no handle, nothing told.
void refuse(Kit& kit, KvCall& kv, cald_kv_desc desc, const char* what) {
  Told* told = Told::make();
  if (kit.calls_back()) {
    desc.on_complete = Told::on_complete;
    desc.user = told;
  }
  cald_job* made = nullptr;
  const cald_status status = kv.try_submit(desc, &made);
  if (status == CALD_OK && made != nullptr) Job(kit, made, told, desc.job_seq).wait();
  REQUIRE(status != CALD_OK, "op %#x with %s was accepted", desc.op, what);
  REQUIRE(made == nullptr && told->count() == 0, "op %#x with %s was refused, and %s", desc.op,
          what, made != nullptr ? "a job given" : "on_complete came");
}

CONFORMANCE_CHECK("KV-02", "") {
  KvCall kv(kit);
  for (const uint32_t op : {0u, 3u, 63u, 64u, UINT32_MAX})
    refuse(kit, kv, kv.desc({op, 0, 0, 0, 0, 1}, {}, nullptr), "no one operation");
  for (const uint32_t op : kOps)
    if (!kv.can(op))
      refuse(kit, kv, kv.desc({op, 0, 0, 0, 0, 1}, {}, nullptr), "kv_info not naming it");
}

CONFORMANCE_CHECK("KV-03", "") {
  KvCall kv(kit);
  const uint32_t lanes = kv.info().lanes, cells = kv.info().cells;
  const uint64_t room = uint64_t{cells} * std::max<uint64_t>(kv.info().bytes_per_cell, 1);
  GuardedBuffer buffer(kit, kit.any_domain(), room, 64);
  buffer.fill(0x5A);
  for (const uint32_t op : kOps) {
    if (!kv.can(op)) continue;
    const bool copies = op == CALD_KV_LANE_COPY || op == CALD_KV_RANGE_COPY;
    const bool ranged = op != CALD_KV_LANE_COPY;
    const auto bad = [&](const KvAsk& ask, const char* what) {
      cald_kv_desc desc = kv.desc(ask, {}, nullptr);
      if (op == CALD_KV_READ || op == CALD_KV_WRITE) {
        desc.buffer = buffer.handle();
        desc.offset = buffer.offset();
        desc.bytes = std::min(room, ask.n * kv.info().bytes_per_cell);
      }
      refuse(kit, kv, desc, what);
    };
    bad({op, lanes, 0, 0, 0, 1}, "a lane that there is not");
    bad({op, UINT32_MAX, 0, 0, 0, 1}, "lane 4294967295");
    bad({op, 0, 0, 0, 0, cells + 1}, "one cell too many");
    if (ranged) bad({op, 0, 0, cells, 0, 1}, "a cell behind the lane");
    if (ranged) bad({op, 0, 0, UINT32_MAX, 0, 2}, "cell 4294967295 and one more");
    if (copies) bad({op, 0, lanes, 0, 0, 1}, "a target lane that there is not");
    if (op == CALD_KV_RANGE_COPY) bad({op, 0, 0, 0, cells - 1, 2}, "a target behind the lane");
    if (op == CALD_KV_RANGE_COPY) bad({op, 0, 0, 0, UINT32_MAX, 2}, "target cell 4294967295");
  }
  const Bytes after = buffer.read();
  REQUIRE(after == Bytes(after.size(), 0x5A) && buffer.damage().empty(),
          "a refused operation has written to its buffer");
}

CONFORMANCE_CHECK("KV-04", "") {
  KvCall kv(kit);
  if (!kv.can(CALD_KV_CLEAR) && !kv.can(CALD_KV_LANE_COPY)) skip("no CLEAR and no LANE_COPY");
  const KvAsk ask{kv.can(CALD_KV_CLEAR) ? CALD_KV_CLEAR : CALD_KV_LANE_COPY, 0, 0, 0, 0, 1};
  for (const uint64_t job_seq : {uint64_t{5}, UINT64_MAX, uint64_t{9} << 32 | 5}) {
    Job job = kv.submit(ask, {job_seq});
    job.expect(CALD_JOB_DONE, "a KV operation");
    if (!kit.calls_back()) continue;
    REQUIRE(job.told().count() == 1, "on_complete of a KV operation came %zu times",
            job.told().count());
    REQUIRE(job.told().last().job_seq == job_seq, "job_seq %#llx came back as %#llx",
            static_cast<ull>(job_seq), static_cast<ull>(job.told().last().job_seq));
  }
  if (kit.virtual_clock()) kit.poll(kit.now_ns() + 1000);
  Job late = kv.submit(ask, {77, std::max<uint64_t>(kit.now_ns(), 1)});
  late.expect(CALD_JOB_FAILED, "a KV operation whose deadline had passed");
  REQUIRE(late.failure() == CALD_EXECUTION_FAILED,
          "a KV operation whose deadline had passed failed with %d", late.failure());
}

// Lanes 0 and 1 filled with tokens of their own.
struct Filled {
  Player player;
  KvCall kv;
  Tokens mine, other;
  uint32_t n;

  explicit Filled(Kit& kit, uint32_t ops) : player(kit), kv(kit) {
    kv.needs(ops);
    needs_results(kit, player);
    n = std::min<uint32_t>(24, player.info().cells / 4);
    mine = player.prompt(41, n);
    other = player.prompt(42, n + 8);
    player.feed(player.all(0).back(), 0, mine);
    if (player.info().lanes > 1 && !player.all(1).empty())
      player.feed(player.all(1).back(), 1, other);
  }
};

CONFORMANCE_CHECK("KV-05", "cells") {
  kit.close_model();
  Cells fresh;
  {
    KvCall kv(kit);
    kv.needs(CALD_KV_CLEAR | CALD_KV_READ);
    fresh = kv.read(0);
  }
  Filled at(kit, CALD_KV_CLEAR | CALD_KV_READ);
  Cells expected = at.kv.read(0);
  for (uint32_t i = 0; i < at.n; ++i)
    REQUIRE(expected[i] != fresh[i], "cell %u of a filled lane is as after the load", i);
  const struct {
    uint32_t first, n;
  } ranges[] = {{3, 4}, {at.n - 1, 1}, {0, at.n}};
  for (const auto& range : ranges) {
    at.kv.run({CALD_KV_CLEAR, 0, 0, range.first, 0, range.n});
    for (uint32_t i = range.first; i < range.first + range.n; ++i) expected[i] = fresh[i];
    same_cells(at.kv.read(0), expected, "after CLEAR");
  }
}

CONFORMANCE_CHECK("KV-05", "goes_on") {
  kit.close_model();
  Bytes with_gap;
  const uint32_t keep = 6, gap = 4;
  {
    Player player(kit);
    KvCall kv(kit);
    kv.needs(CALD_KV_CLEAR);
    needs_results(kit, player);
    kit.close_model();
  }
  {
    Player player(kit);
    player.feed(player.stepper(0), 0, player.prompt(43, keep));
    with_gap = player.step(0, 5, keep + gap);
  }
  kit.close_model();
  Filled at(kit, CALD_KV_CLEAR);
  at.player.feed(at.player.stepper(0), 0, at.player.prompt(43, keep + gap));
  at.kv.run({CALD_KV_CLEAR, 0, 0, keep, 0, gap});
  REQUIRE(at.player.step(0, 5, keep + gap) == with_gap,
          "a lane with cleared cells goes on otherwise than one in which they were never written");
}

CONFORMANCE_CHECK("KV-06", "goes_on") {
  Filled at(kit, CALD_KV_LANE_COPY);
  needs_two_lanes(at.player);
  const auto next = static_cast<int32_t>(at.n);
  const Bytes source = at.player.step(0, 5, next);
  at.kv.run({CALD_KV_LANE_COPY, 0, 1, 0, 0, at.n});
  REQUIRE(close(at.player.step(1, 5, next), source, at.player.info().logits_dtype),
          "the copy of a lane goes on otherwise than the lane");
  REQUIRE(at.player.step(0, 5, next) == source, "a lane was copied, and goes on otherwise");
}

CONFORMANCE_CHECK("KV-06", "behind") {
  Filled at(kit, CALD_KV_LANE_COPY);
  needs_two_lanes(at.player);
  // Half of lane 0 onto lane 1; the rest of lane 1 is still its own.
  const uint32_t half = at.n / 2;
  at.kv.run({CALD_KV_LANE_COPY, 0, 1, 0, 0, half});
  const auto end = static_cast<int32_t>(at.other.size());
  const Bytes copied = at.player.step(1, 7, end);
  const uint32_t stepper = at.player.stepper(1);
  at.player.feed(stepper, 1, Tokens(at.mine.begin(), at.mine.begin() + half));
  REQUIRE(close(at.player.step(1, 7, end), copied, at.player.info().logits_dtype),
          "LANE_COPY of %u cells is not as if they had been written", half);
}

CONFORMANCE_CHECK("KV-06", "cells") {
  Filled at(kit, CALD_KV_LANE_COPY | CALD_KV_READ);
  needs_two_lanes(at.player);
  const Cells source = at.kv.read(0);
  Cells expected = at.kv.read(1);
  for (const uint32_t n : {1u, at.n / 2, at.n}) {
    at.kv.run({CALD_KV_LANE_COPY, 0, 1, 0, 0, n});
    std::copy_n(source.begin(), n, expected.begin());
    same_cells(at.kv.read(1), expected, "the target of LANE_COPY");
    same_cells(at.kv.read(0), source, "the source of LANE_COPY");
  }
}

CONFORMANCE_CHECK("KV-07", "") {
  Filled at(kit, CALD_KV_RANGE_COPY | CALD_KV_READ);
  std::vector<Cells> lanes;
  for (uint32_t lane = 0; lane < std::min(at.player.info().lanes, 2u); ++lane)
    lanes.push_back(at.kv.read(lane));
  const uint32_t to_lane = lanes.size() > 1 ? 1 : 0;
  const struct {
    uint32_t lane, to_lane, cell, to_cell, n;
  } moves[] = {{0, to_lane, 2, 5, 4},
               {0, 0, 4, 6, 10},
               {0, 0, 6, 3, 10},
               {0, 0, 1, 1, 5},
               {0, 0, 0, at.n, 7}};
  for (const auto& move : moves) {
    at.kv.run({CALD_KV_RANGE_COPY, move.lane, move.to_lane, move.cell, move.to_cell, move.n});
    const Cells source(lanes[move.lane].begin() + move.cell,
                       lanes[move.lane].begin() + move.cell + move.n);
    std::copy(source.begin(), source.end(), lanes[move.to_lane].begin() + move.to_cell);
    for (uint32_t lane = 0; lane < lanes.size(); ++lane)
      same_cells(at.kv.read(lane), lanes[lane], "after RANGE_COPY");
  }
}

bool close_k(const KvCall& kv, const Bytes& a, const Bytes& b) {
  return a == b || close(a, b, kv.info().dtype);
}

CONFORMANCE_CHECK("KV-08", "cells") {
  Filled at(kit, CALD_KV_ROTATE | CALD_KV_READ);
  const uint64_t piece = at.kv.piece();
  const Cells before = at.kv.read(0);
  const uint32_t first = 3, n = 5;
  const auto rotate = [&](int32_t delta) {
    at.kv.run({CALD_KV_ROTATE, 0, 0, first, 0, n, delta});
    return at.kv.read(0);
  };
  same_cells(rotate(0), before, "after ROTATE by 0");
  const Cells turned = rotate(5);
  for (uint32_t i = 0; i < before.size(); ++i) {
    const bool inside = i >= first && i < first + n;
    for (uint64_t part = 0; part < 2 * at.kv.info().n_layers; ++part) {
      const auto of = [&](const Cells& cells) {
        const auto from = cells[i].begin() + static_cast<ptrdiff_t>(part * piece);
        return Bytes(from, from + static_cast<ptrdiff_t>(piece));
      };
      const bool is_k = part % 2 == 0;
      REQUIRE((of(turned) == of(before)) == !(inside && is_k),
              "ROTATE of cells 3 to 7: %s of cell %u %s", is_k ? "K" : "V", i,
              inside && is_k ? "did not change" : "has changed");
    }
  }
  const Cells back = rotate(-5);
  for (uint32_t i = first; i < first + n; ++i)
    REQUIRE(close_k(at.kv, at.kv.first_k(back[i]), at.kv.first_k(before[i])),
            "cell %u was turned there and back, and is not what it was", i);
}

CONFORMANCE_CHECK("KV-08", "shift") {
  Filled at(kit, CALD_KV_ROTATE | CALD_KV_READ);
  // In layer 0, K depends on the token and its position alone: a cell turned on by d is that of its
  // token d positions further.
  const int32_t delta = 7;
  at.kv.run({CALD_KV_ROTATE, 0, 0, 0, 0, at.n, delta});
  const Cells turned = at.kv.read(0);
  at.player.feed(at.player.stepper(0), 0, at.mine, delta);
  const Cells fresh = at.kv.read(0);
  for (uint32_t i = 0; i < at.n; ++i)
    REQUIRE(close_k(at.kv, at.kv.first_k(turned[i]), at.kv.first_k(fresh[i + delta])),
            "K of cell %u turned on by %d is not K of its token at position %u", i, delta,
            i + delta);
}

CONFORMANCE_CHECK("KV-09", "") {
  Filled at(kit, CALD_KV_READ);
  const Cells whole = at.kv.read(0);
  for (const auto& [first, n] : {std::pair{0u, 1u}, {5u, 7u}, {at.n - 1, 1u}}) {
    const Cells part = at.kv.read(0, first, n);
    for (uint32_t i = 0; i < n; ++i)
      REQUIRE(part[i] == whole[first + i], "cell %u reads otherwise in a READ of %u cells",
              first + i, n);
  }
  if (at.player.info().lanes > 1 && !at.player.all(1).empty())
    REQUIRE(at.kv.read(1) != whole, "lanes 0 and 1 hold other tokens, and read the same");
}

CONFORMANCE_CHECK("KV-10", "") {
  Filled at(kit, CALD_KV_READ | CALD_KV_WRITE);
  const auto next = static_cast<int32_t>(at.n);
  const Cells saved = at.kv.read(0, 0, at.n);
  const Bytes goes_on = at.player.step(0, 5, next);
  std::vector<uint32_t> lanes = {0};
  if (at.player.info().lanes > 1 && !at.player.all(1).empty()) lanes.push_back(1);
  for (const uint32_t lane : lanes) {
    at.player.feed(at.player.stepper(lane), lane, at.player.prompt(44, at.n + 3));
    Cells expected = at.kv.read(lane);
    at.kv.write(lane, 0, saved);
    std::copy(saved.begin(), saved.end(), expected.begin());
    same_cells(at.kv.read(lane), expected, "after WRITE");
    REQUIRE(close(at.player.step(lane, 5, next), goes_on, at.player.info().logits_dtype),
            "a lane that was saved and restored to lane %u goes on otherwise", lane);
  }
  Cells expected = at.kv.read(0);
  at.kv.write(0, 4, Cells(saved.begin(), saved.begin() + 3));
  std::copy_n(saved.begin(), 3, expected.begin() + 4);
  same_cells(at.kv.read(0), expected, "after WRITE of 3 cells");
}

CONFORMANCE_CHECK("KV-11", "") {
  KvCall kv(kit);
  if (!kv.can(CALD_KV_READ) && !kv.can(CALD_KV_WRITE)) skip("no READ and no WRITE");
  const uint64_t need = 4 * kv.info().bytes_per_cell;
  GuardedBuffer buffer(kit, kit.any_domain(), need, 64);
  buffer.fill(0x5A);
  for (const uint32_t op : {CALD_KV_READ, CALD_KV_WRITE}) {
    if (!kv.can(op)) continue;
    cald_kv_desc desc = kv.desc({op, 0, 0, 0, 0, 4}, {}, nullptr);
    desc.buffer = buffer.handle();
    desc.offset = buffer.offset();
    desc.bytes = need - 1;
    refuse(kit, kv, desc, "a byte too few");
    desc.bytes = need;
    desc.offset = buffer.whole_bytes();
    refuse(kit, kv, desc, "an offset behind its buffer");
    desc.offset = UINT64_MAX - 63;
    refuse(kit, kv, desc, "an offset that overflows");
  }
  REQUIRE(buffer.read() == Bytes(need, 0x5A) && buffer.damage().empty(),
          "a refused operation has written to its buffer");
}

CONFORMANCE_CHECK("KV-12", "") {
  Filled at(kit, CALD_KV_LANE_COPY);
  needs_two_lanes(at.player);
  if (kit.info().depth + kit.info().queue < 4) skip("fewer than 4 jobs fit into the queue");
  const uint32_t graph = at.player.stepper(0);
  const Tokens pair = at.player.prompt(45, 2);
  const auto one_by_one = [&](bool at_once) {
    at.player.feed(graph, 0, at.mine);
    at.player.step(0, (pair[0] + 1) % static_cast<int32_t>(at.player.info().vocab),
                   static_cast<int32_t>(at.n));  // what a copy that comes too early would take
    at.player.feed(at.player.stepper(1), 1, at.other);
    GraphCall first(kit, graph), second(kit, at.player.stepper(1));
    const auto fill = [&](GraphCall& call, Row row) {
      if (call.graph().kind != CALD_GRAPH_DECODE) skip("no decode graph reaches both lanes");
      at.player.fill_decode(call, {row});
    };
    fill(first, {pair[0], static_cast<int32_t>(at.n), 0});
    fill(second, {pair[1], static_cast<int32_t>(at.n) + 1, 1});
    std::vector<Job> jobs;
    const auto go = [&](Job job) {
      if (!at_once) job.wait();
      jobs.push_back(std::move(job));
    };
    go(first.submit({1}));
    go(at.kv.submit({CALD_KV_LANE_COPY, 0, 1, 0, 0, at.n + 1}, {2}));
    go(second.submit({3}));
    for (Job& job : jobs) job.expect(CALD_JOB_DONE, "a job");
    const std::vector<Row> rows = {{0, 0, 1}};
    return second.row(at.player.row_of(second, rows, 0));
  };
  const Bytes in_turn = one_by_one(false);
  for (int round = 0; round < 3; ++round)
    REQUIRE(one_by_one(true) == in_turn,
            "decode, LANE_COPY, decode give another result when they are submitted at once");
}

}  // namespace
}  // namespace calrt::conformance
