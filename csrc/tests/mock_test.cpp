// SPDX-License-Identifier: Apache-2.0
// The mock's promise: each request has one right answer, whatever the schedule, and every fault in
// the cells shows in it.
#include <algorithm>
#include <random>
#include <set>

#include "tests/mock_client.h"

using namespace calrt;
using namespace calrt::testing;

namespace {

constexpr uint32_t kCells = 512;
const OpenOptions kVirtual = {{"clock", "virtual"}};

Tokens prompt(uint32_t n, uint32_t seed = 1) {
  std::mt19937 random(seed);
  Tokens tokens(n);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 512);
  return tokens;
}

// Writes all of it into a lane; the logits of the last token.
std::vector<float> fill(MockModel& model, const Tokens& tokens, int32_t lane, size_t chunk = 64,
                        size_t from = 0) {
  std::vector<float> last;
  for (size_t at = from; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(at);
    const Tokens part(first, first + static_cast<std::ptrdiff_t>(n));
    const auto position = static_cast<int32_t>(at);
    last = n == 1 ? model.decode(1, {{part[0], position, lane}})[0]
                  : model.prefill(n <= 16 ? 16 : 64, part, position, lane)[0];
  }
  return last;
}

// What a greedy sampler makes of a lane, beginning with `token` at `position`.
Tokens continued(MockModel& model, int32_t lane, int32_t token, uint32_t position, uint32_t n = 8) {
  Tokens out;
  for (uint32_t i = 0; i < n; ++i) {
    token = argmax(model.decode(1, {{token, static_cast<int32_t>(position + i), lane}})[0]);
    out.push_back(token);
  }
  return out;
}

Tokens answer_to(MockModel& model, const Tokens& tokens, int32_t lane = 0) {
  const int32_t first = argmax(fill(model, tokens, lane));
  return continued(model, lane, first, static_cast<uint32_t>(tokens.size()));
}

cald_kv_desc copy_desc(MockModel& model, uint32_t lane, uint32_t cell, uint32_t n, uint32_t to_lane,
                       uint32_t to_cell) {
  cald_kv_desc desc = model.kv_desc(CALD_KV_RANGE_COPY, lane, cell, n);
  desc.to_lane = to_lane;
  desc.to_cell = to_cell;
  return desc;
}

}  // namespace

TEST(a_stray_write_into_any_one_cell_changes_a_later_token) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const Tokens tokens = prompt(kCells - 8);
  const auto n = static_cast<uint32_t>(tokens.size());
  const int32_t first = argmax(fill(model, tokens, 0));
  const std::vector<uint32_t> good = model.read(0, n);
  const Tokens right = continued(model, 0, first, n);
  uint32_t unseen = 0;
  for (uint32_t cell = 0; cell < n; ++cell)
    for (const auto& [position, mix] : std::vector<std::pair<uint32_t, uint32_t>>{
             {good[cell], good[n + cell] ^ 1},                     // another token
             {good[cell] ^ 1, good[n + cell]},                     // another position
             {0, 0},                                               // nothing
             {good[(cell + 1) % n], good[n + (cell + 1) % n]}}) {  // the neighbour's
      model.write(0, cell, {position, mix});
      unseen += continued(model, 0, first, n) == right ? 1 : 0;
      model.write(0, cell, {good[cell], good[n + cell]});
    }
  CHECK(unseen == 0);
  CHECK(continued(model, 0, first, n) == right);
}

TEST(a_lost_middle_chunk_changes_a_later_token) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const Tokens tokens = prompt(192);
  const Tokens right = answer_to(model, tokens);
  // Lane 1 is fresh, lane 2 held another prompt.
  fill(model, prompt(192, 2), 2);
  for (const int32_t lane : {1, 2}) {
    fill(model, Tokens(tokens.begin(), tokens.begin() + 64), lane);
    const int32_t first = argmax(fill(model, tokens, lane, 64, 128));
    CHECK(continued(model, lane, first, 192) != right);
  }
}

TEST(half_a_copy_changes_a_later_token) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const Tokens tokens = prompt(200);
  const int32_t first = argmax(fill(model, tokens, 0));
  const Tokens right = continued(model, 0, first, 200);
  for (const uint32_t n : {199u, 100u, 1u}) {
    cald_kv_desc copy = model.kv_desc(CALD_KV_LANE_COPY, 0, 0, n);
    copy.to_lane = 1;
    CHECK(model.run(copy) == CALD_OK);
    CHECK(continued(model, 1, first, 200) != right);
  }
  cald_kv_desc whole = model.kv_desc(CALD_KV_LANE_COPY, 0, 0, 200);
  whole.to_lane = 1;
  CHECK(model.run(whole) == CALD_OK);
  CHECK(continued(model, 1, first, 200) == right);
}

TEST(a_shifted_lane_equals_a_fresh_prefill) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const Tokens tokens = prompt(300);
  const uint32_t keep = 4, gone = 96, left = 300 - keep - gone;
  Tokens kept(tokens.begin(), tokens.begin() + keep);
  kept.insert(kept.end(), tokens.begin() + keep + gone, tokens.end());
  const int32_t first = argmax(fill(model, kept, 1));
  const Tokens right = continued(model, 1, first, keep + left);

  const auto shifted = [&](int32_t delta, uint32_t from, uint32_t n) {
    fill(model, tokens, 0);
    CHECK(model.run(copy_desc(model, 0, keep + gone, left, 0, keep)) == CALD_OK);
    cald_kv_desc rotate = model.kv_desc(CALD_KV_ROTATE, 0, from, n);
    rotate.delta = delta;
    CHECK(model.run(rotate) == CALD_OK);
    return continued(model, 0, first, keep + left);
  };
  const auto by = -static_cast<int32_t>(gone);
  CHECK(shifted(by, keep, left) == right);
  CHECK(model.read(0, keep + left) == model.read(1, keep + left));
  CHECK(shifted(by + 1, keep, left) != right);
  CHECK(shifted(-by, keep, left) != right);
  CHECK(shifted(by, keep, left - 1) != right);
  CHECK(shifted(by, keep - 1, left) != right);
  const uint64_t displaced = device.counter("cells_displaced");
  CHECK(shifted(0, keep, left) != right);
  CHECK(device.counter("cells_displaced") >= displaced + 8 * left);
}

TEST(order_counts) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  Tokens tokens = prompt(64);
  const Tokens right = answer_to(model, tokens);
  const int32_t first = argmax(fill(model, tokens, 0));
  std::vector<uint32_t> cells = model.read(0, 64);
  for (const uint32_t part : {0, 64}) std::swap(cells[part + 10], cells[part + 50]);
  model.write(0, 0, cells);
  CHECK(continued(model, 0, first, 64) != right);
  std::swap(tokens[10], tokens[50]);
  CHECK(answer_to(model, tokens) != right);
}

// ---- schedules ----------------------------------------------------------------------------------

TEST(every_chunking_gives_the_same_logits) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const Tokens tokens = prompt(150);
  const std::vector<float> solo = fill(model, tokens, 0, 1);
  for (const size_t chunk : {2, 7, 15, 16, 17, 63, 64})
    for (const int32_t lane : {0, 3}) CHECK(fill(model, tokens, lane, chunk) == solo);
  CHECK(device.counter("cells_displaced") == 0);
}

TEST(the_rows_asked_for_are_those_of_the_tokens) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  const Tokens tokens = prompt(16);
  FloatRows solo;
  for (int32_t i = 0; i < 16; ++i)
    solo.push_back(model.decode(1, {{tokens[static_cast<size_t>(i)], i, 0}})[0]);
  const Tokens rows = {15, 0, 7, 7};
  const FloatRows given = model.prefill(16, tokens, 0, 1, rows);
  for (size_t r = 0; r < rows.size(); ++r) CHECK(given[r] == solo[static_cast<size_t>(rows[r])]);
  CHECK(model.prefill(16, tokens, 0, 2)[0] == solo[15]);  // unbound: the last valid row
}

TEST(neighbours_batches_and_lanes_change_nothing) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package, {.lanes = 16, .cells = 256});
  std::vector<Tokens> prompts, right;
  for (uint32_t i = 0; i < 16; ++i) {
    prompts.push_back(prompt(20 + 9 * i, 100 + i));
    right.push_back(answer_to(model, prompts.back()));
  }
  std::mt19937 random(7);
  for (const uint32_t batch : {4u, 8u, 16u}) {
    std::vector<int32_t> lanes(16);
    for (int32_t i = 0; i < 16; ++i) lanes[static_cast<size_t>(i)] = i;
    std::shuffle(lanes.begin(), lanes.end(), random);
    const uint32_t requests = batch - 1;  // one row is padding
    std::vector<Tokens> got(requests);
    std::vector<int32_t> next(requests);
    for (uint32_t i = 0; i < requests; ++i) next[i] = argmax(fill(model, prompts[i], lanes[i], 16));
    for (uint32_t step = 0; step < 8; ++step) {
      std::vector<uint32_t> order(requests);
      for (uint32_t i = 0; i < requests; ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      std::vector<DecodeRow> rows;
      for (const uint32_t i : order)
        rows.push_back({next[i], static_cast<int32_t>(prompts[i].size() + step), lanes[i]});
      const FloatRows given = model.decode(batch, rows);
      for (uint32_t r = 0; r < requests; ++r) {
        next[order[r]] = argmax(given[r]);
        got[order[r]].push_back(next[order[r]]);
      }
    }
    for (uint32_t i = 0; i < requests; ++i) CHECK(got[i] == right[i]);
  }
}

TEST(padding_writes_nothing) {
  const MockPackage package;
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  fill(model, prompt(100), 0);
  const auto before = model.read(0, kCells);
  const uint32_t decode = model.graph("decode_b4"), prefill = model.graph("prefill_t16");
  const cald_binding out = model.bind(decode, CALD_ROLE_LOGITS, {});
  std::memset(MockModel::mapped(out), 0x5a, out.bytes);
  const FloatRows untouched = model.logits(decode);
  const FloatRows given = model.decode(4, {{3, 0, -1}, {4, 5, 1}, {3, 0, -1}});
  CHECK(given[0] == untouched[0] && given[2] == untouched[2] && given[3] == untouched[3]);
  CHECK(given[1] != untouched[1]);
  // Of a chunk only n_valid rows count, and none on lane -1.
  model.prefill(16, prompt(5), 200, 1);
  CHECK(model.run(prefill, model.prefill_bindings(prefill, prompt(16), 0, -1)) == CALD_OK);
  CHECK(model.read(0, kCells) == before);
  const auto other = model.read(1, kCells);
  for (uint32_t cell = 0; cell < kCells; ++cell)
    CHECK((other[kCells + cell] != 0) == (cell == 5 || (cell >= 200 && cell < 205)));
  CHECK(device.counter("cells_written") == 100 + 1 + 5);
}

TEST(layouts_dtypes_and_lane_maps_give_the_same_numbers) {
  MockDevice device("", kVirtual);
  const Tokens tokens = prompt(70);
  std::vector<FloatRows> all;
  for (const int32_t dtype : {CALD_F32, CALD_BF16})
    for (const uint64_t tile : {0, 16, 24})
      for (const int32_t asked : {CALD_F32, CALD_BF16}) {
        const MockPackage package({.dtype = dtype, .tile = tile});
        MockModel model(device, package, {.logits = asked});
        CHECK(model.io(0, CALD_ROLE_LOGITS).dtype == asked);
        fill(model, tokens, 0);
        fill(model, tokens, 2, 16);
        all.push_back(model.decode(4, {{1, 70, 2}, {2, 70, 0}}));
        all.back().resize(2);
      }
  for (const FloatRows& rows : all) CHECK(rows == all[0]);
  CHECK(all[0][0] != all[0][1]);

  const MockPackage package({.profiles = {4}, .decode_map = CALD_LANE_MAP_IDENTITY});
  MockModel model(device, package);
  fill(model, tokens, 0);
  fill(model, tokens, 2);
  const FloatRows rows = model.decode(4, {{2, 70, 0}, {5, 0, 0}, {1, 70, 0}, {5, 0, 0}});
  CHECK(rows[0] == all[0][1] && rows[2] == all[0][0]);
}

// No two elements of a row are tied to each other: all of it turns with the lane.
TEST(a_row_has_one_winner_and_no_constant) {
  const MockPackage package({.vocab = 5000, .profiles = {1}});
  MockDevice device("", kVirtual);
  MockModel model(device, package);
  std::set<int32_t> winners;
  std::vector<float> last;
  for (int32_t i = 0; i < 60; ++i) {
    const auto row = model.decode(1, {{i, i, 0}})[0];
    const float top = *std::max_element(row.begin(), row.end());
    CHECK(top == 12 && std::count(row.begin(), row.end(), top) == 1);
    const auto runners_up =
        std::count_if(row.begin(), row.end(), [](float v) { return v >= 8 && v <= 9; });
    CHECK(runners_up >= 1 && runners_up <= 3);
    CHECK(std::all_of(row.begin(), row.end(), [](float v) { return v >= -12 && v <= 12; }));
    uint32_t same = 0;
    for (size_t j = 0; j < last.size(); ++j) same += row[j] == last[j] ? 1 : 0;
    CHECK(same < row.size() / 20);
    last = row;
    winners.insert(argmax(row));
  }
  CHECK(winners.size() > 50);
}
