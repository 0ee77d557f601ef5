// SPDX-License-Identifier: Apache-2.0
// The fold alone: every bit of every cell counts, on every instruction set.
#include <random>

#include "drivers/mock/fold.h"
#include "tests/check.h"

using namespace calrt;
using namespace calrt::mock;

namespace {

struct Lane {
  std::vector<int32_t> positions;
  std::vector<uint32_t> mixes;

  explicit Lane(uint32_t n) {
    std::mt19937 random(n);
    for (uint32_t i = 0; i < n; ++i) {
      positions.push_back(static_cast<int32_t>(i));
      mixes.push_back(mix_of(static_cast<uint32_t>(random()) % 151'936));
    }
  }
  Sums fold(Fold with) const { return with(positions.data(), mixes.data(), positions.size()); }
};

bool same(const Sums& a, const Sums& b) { return a.a == b.a && a.b == b.b; }

}  // namespace

TEST(a_change_of_any_bit_of_any_cell_changes_the_sums) {
  Lane lane(300);
  const Sums right = lane.fold(fold_portable);
  uint32_t unseen = 0;
  for (size_t cell = 0; cell < 300; ++cell)
    for (uint32_t bit = 0; bit < 32; ++bit) {
      lane.mixes[cell] ^= 1u << bit;
      unseen += same(lane.fold(fold_portable), right) ? 1 : 0;
      lane.mixes[cell] ^= 1u << bit;
      lane.positions[cell] ^= static_cast<int32_t>(1u << bit);
      unseen += same(lane.fold(fold_portable), right) ? 1 : 0;
      lane.positions[cell] ^= static_cast<int32_t>(1u << bit);
    }
  CHECK(unseen == 0 && same(lane.fold(fold_portable), right));
}

// The worst that can be chosen: another position, and a mix with which h2 is the same. It shows in
// h1, since (position, mix) -> (h1, h2) has an inverse.
TEST(no_two_changes_of_a_cell_cancel_out) {
  constexpr uint32_t kPosition = 0x9e3779b1u, kTimes = 0x2c1b3c6du;
  const auto shifted_back = [](uint32_t x, uint32_t by) {
    uint32_t y = x;
    for (uint32_t done = 0; done < 32; done += by) y = x ^ (y >> by);
    return y;
  };
  uint32_t inverse = 1;
  for (uint32_t i = 0; i < 5; ++i) inverse *= 2 - kTimes * inverse;
  std::mt19937 random(3);
  uint32_t unseen = 0;
  for (uint32_t i = 0; i < 100'000; ++i) {
    Lane lane(3);
    const Sums right = lane.fold(fold_portable);
    const size_t cell = i % 3;
    const auto position = static_cast<uint32_t>(lane.positions[cell]);
    uint32_t h1 = lane.mixes[cell] + position * kPosition;
    h1 = (h1 ^ (h1 >> 15)) * kTimes;
    h1 ^= h1 >> 13;
    const auto other = static_cast<uint32_t>(random());
    const uint32_t before_times = shifted_back(position + h1 - other, 13) * inverse;
    lane.positions[cell] = static_cast<int32_t>(other);
    lane.mixes[cell] = shifted_back(before_times, 15) - other * kPosition;
    const Sums sums = lane.fold(fold_portable);
    CHECK(sums.b == right.b);
    unseen += other != position && same(sums, right) ? 1 : 0;
  }
  CHECK(unseen == 0);
}

TEST(a_cell_replaced_by_any_other_changes_the_sums) {
  std::mt19937 random(3);
  uint32_t unseen = 0;
  for (uint32_t i = 0; i < 100'000; ++i) {
    Lane lane(3);
    const Sums right = lane.fold(fold_portable);
    const auto position = static_cast<int32_t>(random());
    const auto mix = static_cast<uint32_t>(random());
    if (position == lane.positions[1] && mix == lane.mixes[1]) continue;
    lane.positions[1] = position;
    lane.mixes[1] = mix;
    unseen += same(lane.fold(fold_portable), right) ? 1 : 0;
  }
  CHECK(unseen == 0);
}

TEST(all_instruction_sets_agree) {
  for (const Isa isa : usable_isa_list())
    for (uint32_t n = 0; n <= 300; ++n) {
      Lane lane(n);
      if (n > 7) lane.positions[7] = -3;
      const Sums portable = lane.fold(fold_portable), sums = lane.fold(fold_for(isa));
      CHECK(same(portable, sums) && portable.displaced == sums.displaced);
      CHECK(sums.displaced == (n > 7 ? 1u : 0u));
    }
}

TEST(no_token_mixes_to_nothing) {
  CHECK(mixed(0) == 0);
  for (uint32_t token = 0; token < 200'000; ++token) CHECK(mix_of(token) != 0);
}
