// SPDX-License-Identifier: Apache-2.0
// What the cpu driver's KV operations mean: a lane that was copied, saved and restored or cut goes
// on with the same bits; a shifted one as the arithmetic says, to the precision of its cells.
#include <cmath>

#include "check.h"
#include "cpu_kv_client.h"
#include "cpu_tiny_model.h"

using namespace calrt::testing;

namespace {

// Half a step of the last bit, relative: what rounding to BF16 may change a number by.
constexpr double kHalfStep = 1.0 / 256;
// Logits of an F32 lane, and of any that was mishandled: of these random models 0.8 and more.
constexpr double kF32Gate = 1e-4, kOther = 0.5;

struct Mode {
  int32_t compute, kv, rope_style;
  bool bf16() const { return kv == CALD_BF16; }
};
constexpr Mode kModes[] = {{CALD_COMPUTE_F32, CALD_F32, CALD_ROPE_INTERLEAVED},
                           {CALD_COMPUTE_F32, CALD_F32, CALD_ROPE_HALF},
                           {CALD_COMPUTE_F32, CALD_BF16, CALD_ROPE_HALF},
                           {CALD_COMPUTE_BF16, CALD_BF16, CALD_ROPE_INTERLEAVED},
                           {CALD_COMPUTE_BF16, CALD_BF16, CALD_ROPE_HALF}};

struct World {
  World(const Mode& mode, uint32_t layers)
      : tiny(shape(mode, layers)), device(2), model(device, tiny.package(), args(mode)) {}
  static TinyShape shape(const Mode& mode, uint32_t layers) {
    TinyShape shape;
    shape.layers = layers;
    shape.head_dim = 16;
    shape.embed = 32;
    shape.ffn = 48;
    shape.rope_style = mode.rope_style;
    return shape;
  }
  static LoadArgs args(const Mode& mode) {
    LoadArgs args;
    args.compute = mode.compute;
    args.kv = mode.kv;
    return args;
  }

  std::vector<int32_t> tokens(size_t n) {
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = static_cast<int32_t>(random() % tiny.shape().vocab);
    return tokens;
  }
  // The logits of each token, fed one by one from position `first` on.
  std::vector<std::string> feed(int32_t lane, int32_t first, const std::vector<int32_t>& tokens) {
    std::vector<std::string> all;
    for (size_t i = 0; i < tokens.size(); ++i)
      all.push_back(model.decode(1, {{tokens[i], first + static_cast<int32_t>(i), lane}}).at(0));
    return all;
  }

  std::mt19937 random{9};
  TinyModel tiny;
  Device device;
  Model model;
  KvClient kv{device, model};
};

std::vector<double> numbers(const std::string& bytes, bool bf16) {
  std::vector<float> values(bytes.size() / (bf16 ? 2 : 4));
  std::vector<uint16_t> halves(values.size());
  std::memcpy(bf16 ? static_cast<void*>(halves.data()) : values.data(), bytes.data(), bytes.size());
  if (bf16) calrt::f32_from_bf16(halves.data(), values.data(), values.size());
  return {values.begin(), values.end()};
}

double relative_rms(const std::vector<double>& got, const std::vector<double>& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    power += want[i] * want[i];
  }
  return std::sqrt(error / power);
}

using Rows = std::vector<std::vector<double>>;

double relative_rms(const std::vector<std::string>& got, const Rows& want) {
  std::vector<double> all_got, all_want;
  for (size_t i = 0; i < want.size(); ++i) {
    const auto row = numbers(got[i], false);
    all_got.insert(all_got.end(), row.begin(), row.end());
    all_want.insert(all_want.end(), want[i].begin(), want[i].end());
  }
  return relative_rms(all_got, all_want);
}

Rows all_numbers(const std::vector<std::string>& logits) {
  Rows all;
  for (const std::string& row : logits) all.push_back(numbers(row, false));
  return all;
}

// Does each number of a cell of keys differ by at most `of_radius` times the length of its RoPE
// pair plus `of_value` times itself?
bool keys_within(const World& world, const Mode& mode, const std::string& got,
                 const std::string& want, double of_radius, double of_value) {
  const auto a = numbers(got, mode.bf16()), b = numbers(want, mode.bf16());
  const uint32_t dim = world.tiny.shape().head_dim;
  for (size_t i = 0; i < b.size(); ++i) {
    const size_t head = i / dim * dim, d = i % dim;
    const size_t pair = mode.rope_style == CALD_ROPE_HALF ? (d + dim / 2) % dim : d ^ 1;
    const double radius = std::hypot(b[i], b[head + pair]);
    if (std::fabs(a[i] - b[i]) > of_radius * radius + of_value * std::fabs(b[i])) return false;
  }
  return true;
}

// Discards cells [keep, keep + discard) of a lane of `n`.
void shift(KvClient& kv, uint32_t lane, uint32_t n, uint32_t keep, uint32_t discard, bool turn) {
  const uint32_t rest = n - keep - discard;
  CHECK(kv.run({CALD_KV_RANGE_COPY, lane, keep + discard, rest, lane, keep}) == CALD_OK);
  if (turn)
    CHECK(kv.run({CALD_KV_ROTATE, lane, keep, rest, 0, 0, -static_cast<int32_t>(discard)}) ==
          CALD_OK);
}

std::vector<int32_t> without(const std::vector<int32_t>& tokens, uint32_t keep, uint32_t discard) {
  std::vector<int32_t> kept(tokens.begin(), tokens.begin() + keep);
  kept.insert(kept.end(), tokens.begin() + keep + discard, tokens.end());
  return kept;
}

}  // namespace

TEST(read_gives_keys_and_values_in_order) {
  for (const Mode& mode : kModes) {
    World world(mode, 3);
    const std::vector<int32_t> tokens = world.tokens(37);
    world.feed(1, 0, tokens);
    TinyModel::Lane lane(3);
    for (const int32_t token : tokens) world.tiny.step(lane, token);
    const LaneImage image = world.kv.read(1, 0, 37);
    const double gate = mode.bf16() ? 0.1 : kF32Gate;  // BF16 adds up from layer to layer
    for (uint32_t l = 0; l < 3; ++l)
      for (size_t c = 0; c < tokens.size(); ++c) {
        const auto key = numbers(image[size_t{2} * l][c], mode.bf16());
        const auto value = numbers(image[size_t{2} * l + 1][c], mode.bf16());
        CHECK(relative_rms(key, lane.keys[l][c]) < gate);
        CHECK(relative_rms(value, lane.values[l][c]) < gate);
      }
  }
}

TEST(copies_restores_and_cuts_go_on_with_the_same_bits) {
  for (const Mode& mode : kModes) {
    World world(mode, 2);
    KvClient& kv = world.kv;
    const std::vector<int32_t> tokens = world.tokens(45), next = world.tokens(9);
    world.feed(0, 0, tokens);
    const auto goes_on = world.feed(0, 45, next);
    CHECK(world.feed(0, 45, next) == goes_on);  // the tail is cut by going on before it
    for (int32_t lane = 1; lane < 4; ++lane) world.feed(lane, 0, world.tokens(60));
    CHECK(kv.run({CALD_KV_LANE_COPY, 0, 0, 45, 1}) == CALD_OK);
    CHECK(world.feed(1, 45, next) == goes_on);
    CHECK(kv.write(2, 0, kv.read(0, 0, 45)) == CALD_OK);
    CHECK(world.feed(2, 45, next) == goes_on);
    CHECK(kv.run({CALD_KV_RANGE_COPY, 0, 0, 45, 3, 0}) == CALD_OK);
    CHECK(world.feed(3, 45, next) == goes_on);
    // Moved away and back over each other, then part of it from another lane.
    CHECK(kv.run({CALD_KV_RANGE_COPY, 3, 0, 45, 3, 17}) == CALD_OK);
    CHECK(kv.run({CALD_KV_RANGE_COPY, 3, 17, 45, 3, 0}) == CALD_OK);
    CHECK(kv.run({CALD_KV_CLEAR, 3, 30, 40}) == CALD_OK);
    CHECK(kv.run({CALD_KV_RANGE_COPY, 1, 30, 15, 3, 30}) == CALD_OK);
    CHECK(world.feed(3, 45, next) == goes_on);
  }
}

// There and back: the first turn rounds each number of a pair, an error of at most h times the
// pair's length (h = half a step); the second turns that error and rounds once more, h times the
// number itself.
TEST(turned_there_and_back) {
  for (const Mode& mode : kModes) {
    World world(mode, 2);
    world.feed(0, 0, world.tokens(50));
    const LaneImage before = world.kv.read(0, 0, 50);
    const double h = mode.bf16() ? kHalfStep : 1.0 / (1 << 21);  // of F32: a few roundings
    for (const int32_t delta : {1, -63, 100, 4095, INT32_MAX}) {
      CHECK(world.kv.write(0, 0, before) == CALD_OK);
      CHECK(world.kv.run({CALD_KV_ROTATE, 0, 3, 44, 0, 0, delta}) == CALD_OK);
      const LaneImage turned = world.kv.read(0, 0, 50);
      CHECK(world.kv.run({CALD_KV_ROTATE, 0, 3, 44, 0, 0, -delta}) == CALD_OK);
      const LaneImage after = world.kv.read(0, 0, 50);
      for (size_t part = 0; part < before.size(); ++part)
        for (size_t c = 0; c < 50; ++c) {
          const bool moves = part % 2 == 0 && c >= 3 && c < 47;
          CHECK((turned[part][c] != before[part][c]) == moves);
          if (moves)
            CHECK(keys_within(world, mode, after[part][c], before[part][c], h * (1 + h), h));
          else
            CHECK(after[part][c] == before[part][c]);
        }
    }
  }
}

// With one layer a cell depends on its token and position alone, so that a shifted lane is a fresh
// one of the kept tokens. Keys: the cell was rounded (h of the pair's length, turned along), and
// rounded again, as the fresh one was (h of the number, twice). Values: the same bits.
TEST(a_shifted_layer_is_a_fresh_one) {
  constexpr uint32_t kTokens = 70, kKeep = 5, kDiscard = 21;
  for (const Mode& mode : kModes) {
    World world(mode, 1);
    KvClient& kv = world.kv;
    const std::vector<int32_t> tokens = world.tokens(kTokens), next = world.tokens(8);
    const std::vector<int32_t> kept = without(tokens, kKeep, kDiscard);
    const auto n = static_cast<uint32_t>(kept.size());
    for (int32_t lane : {0, 2}) world.feed(lane, 0, tokens);
    shift(kv, 0, kTokens, kKeep, kDiscard, true);
    world.feed(1, 0, kept);
    const LaneImage shifted = kv.read(0, 0, n), fresh = kv.read(1, 0, n);
    const double h = mode.bf16() ? kHalfStep : 1.0 / (1 << 20);
    for (uint32_t c = 0; c < n; ++c) {
      CHECK(keys_within(world, mode, shifted[0][c], fresh[0][c], h * (1 + 4 * h), 2 * h));
      CHECK(shifted[1][c] == fresh[1][c]);
    }
    // Logits: within what BF16 cells and products do to this model without a shift.
    TinyModel::Lane lane(1);
    for (const int32_t token : kept) world.tiny.step(lane, token);
    Rows exact;
    for (const int32_t token : next) exact.push_back(world.tiny.step(lane, token));
    const auto at = static_cast<int32_t>(n);
    const auto fresh_logits = world.feed(1, at, next), logits = world.feed(0, at, next);
    const double gate = mode.bf16() ? 3 * relative_rms(fresh_logits, exact) : kF32Gate;
    CHECK(gate < 0.1 && relative_rms(logits, all_numbers(fresh_logits)) < gate);
    // A lane that was moved and not turned is seen to be wrong.
    shift(kv, 2, kTokens, kKeep, kDiscard, false);
    CHECK(relative_rms(world.feed(2, at, next), exact) > kOther);
  }
}

// With more layers the kept cells have seen what was discarded: the reference keeps its keys and
// values and turns its own keys.
TEST(a_shifted_deep_model_is_its_reference) {
  constexpr uint32_t kTokens = 60, kKeep = 4, kDiscard = 27;
  for (const Mode& mode : kModes) {
    World world(mode, 6);
    const std::vector<int32_t> tokens = world.tokens(kTokens), next = world.tokens(10);
    for (const int32_t lane : {0, 1}) world.feed(lane, 0, tokens);
    shift(world.kv, 0, kTokens, kKeep, kDiscard, true);
    TinyModel::Lane plain(6), fresh(6);
    for (const int32_t token : tokens) world.tiny.step(plain, token);
    for (const int32_t token : without(tokens, kKeep, kDiscard)) world.tiny.step(fresh, token);
    TinyModel::Lane shifted = plain;
    world.tiny.shift(shifted, kKeep, kDiscard);
    const auto go_on = [&](TinyModel::Lane& lane) {
      Rows rows;
      for (const int32_t token : next) rows.push_back(world.tiny.step(lane, token));
      return rows;
    };
    const auto logits = world.feed(0, kTokens - kDiscard, next);
    // As near to it as a lane that was not shifted is to its own.
    const double gate =
        mode.bf16() ? 3 * relative_rms(world.feed(1, kTokens, next), go_on(plain)) : kF32Gate;
    CHECK(gate < 0.3 && relative_rms(logits, go_on(shifted)) < gate);
    CHECK(relative_rms(logits, go_on(fresh)) > kOther);
  }
}
