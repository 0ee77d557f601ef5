// SPDX-License-Identifier: Apache-2.0
// Logits as signed integers that sort as the numbers do, so that the search for the best is integer
// work in vectors. What can never be chosen (NaN and infinities) has the lowest key.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace calrt {

// Bits of one logit: uint16_t is BF16, uint32_t is F32.
template <class T>
struct LogitKey;

template <>
struct LogitKey<uint16_t> {
  using Key = int16_t;
  static constexpr Key kNever = INT16_MIN, kLeast = -0x7f80, kMost = 0x7f7f;
  static constexpr Key of(uint16_t bits) {
    const auto s = static_cast<Key>(bits);
    auto key = static_cast<Key>(s ^ ((s >> 15) & 0x7fff));
    key = static_cast<Key>(key + (key == -1));  // -0 equals +0
    const bool finite = key <= kMost && key >= kLeast;
    return finite ? key : kNever;
  }
  static constexpr float value(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

template <>
struct LogitKey<uint32_t> {
  using Key = int32_t;
  static constexpr Key kNever = INT32_MIN, kLeast = -0x7f800000, kMost = 0x7f7fffff;
  static constexpr Key of(uint32_t bits) {
    const auto s = static_cast<Key>(bits);
    auto key = static_cast<Key>(s ^ ((s >> 31) & 0x7fffffff));
    key += key == -1;
    const bool finite = key <= kMost && key >= kLeast;
    return finite ? key : kNever;
  }
  static constexpr float value(uint32_t bits) { return std::bit_cast<float>(bits); }
};

// The highest key of `n` logits. In vectors of 16 bytes, which every platform has, because
// compilers do not see through the conversions of the plain loop.
template <class T>
typename LogitKey<T>::Key best_key(const T* row, uint32_t n) {
  using K = LogitKey<T>;
  using Key = typename K::Key;
  constexpr uint32_t kWidth = 16 / sizeof(Key);
  using Vector [[gnu::vector_size(16)]] = Key;
  constexpr int kSign = 8 * sizeof(Key) - 1;

  Vector best = Vector{} + K::kNever;
  uint32_t i = 0;
  for (; n - i >= kWidth; i += kWidth) {
    Vector key;
    std::memcpy(&key, row + i, sizeof key);
    key ^= (key >> kSign) & std::numeric_limits<Key>::max();
    key -= key == static_cast<Key>(-1);  // a true lane is -1
    const Vector never = (key > K::kMost) | (key < K::kLeast);
    key = (key & ~never) | (K::kNever & never);
    const Vector more = key > best;
    best = (key & more) | (best & ~more);
  }
  Key highest = K::kNever;
  for (uint32_t lane = 0; lane < kWidth; ++lane) highest = std::max(highest, Key{best[lane]});
  for (; i < n; ++i) highest = std::max(highest, K::of(row[i]));
  return highest;
}

}  // namespace calrt
