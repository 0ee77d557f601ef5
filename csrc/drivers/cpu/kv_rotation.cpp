// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kv_rotation.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace calrt::cpu {
namespace {

constexpr uint32_t kHigh = 0xffff0000;

// One dimension of the 32 keys of a panel. Plain loops over whole panels, which the compiler turns
// into vectors; what is not to change is left out when it is stored.
struct BF16Dim {
  unsigned char* words;  // [32]: this dimension is the high or the low half of each
  bool high;
  BF16Dim(unsigned char* panel, uint32_t d)
      : words(panel + d / 2 * size_t{kPanel} * 4), high(d % 2 != 0) {}

  void load(float* out) const {
    uint32_t w[kPanel];
    std::memcpy(w, words, sizeof w);
    const uint32_t shift = high ? 0 : 16;
    for (uint32_t& x : w) x = (x << shift) & kHigh;
    std::memcpy(out, w, sizeof w);
  }
  void store(const float* values, uint32_t from, uint32_t n) const {
    uint32_t w[kPanel], x[kPanel];
    std::memcpy(w, words, sizeof w);
    std::memcpy(x, values, sizeof x);
    const uint32_t shift = high ? 0 : 16, kept = high ? ~kHigh : kHigh;
    for (uint32_t i = 0; i < kPanel; ++i) {
      // To the nearest, ties to even; NaN stays NaN.
      const uint32_t nearest = x[i] + 0x7fff + ((x[i] >> 16) & 1);
      const uint32_t rounded = (x[i] & 0x7fffffff) > 0x7f800000 ? x[i] | 0x400000 : nearest;
      w[i] = (w[i] & kept) | ((rounded & kHigh) >> shift);
    }
    std::memcpy(words + from * size_t{4}, w + from, n * size_t{4});
  }
};

struct F32Dim {
  unsigned char* words;
  F32Dim(unsigned char* panel, uint32_t d) : words(panel + d * size_t{kPanel} * 4) {}

  void load(float* out) const { std::memcpy(out, words, kPanel * sizeof *out); }
  void store(const float* values, uint32_t from, uint32_t n) const {
    std::memcpy(words + from * size_t{4}, values + from, n * size_t{4});
  }
};

template <class Dim>
void turn_pair(const Dim& first, const Dim& second, float cosine, float sine, uint32_t from,
               uint32_t n) {
  float a[kPanel], b[kPanel], turned_a[kPanel], turned_b[kPanel];
  first.load(a);
  second.load(b);
  for (uint32_t i = 0; i < kPanel; ++i) {
    turned_a[i] = a[i] * cosine - b[i] * sine;
    turned_b[i] = a[i] * sine + b[i] * cosine;
  }
  first.store(turned_a, from, n);
  second.store(turned_b, from, n);
}

}  // namespace

KvRotation::KvRotation(const Shape& shape, int32_t delta) {
  const uint32_t half = shape.rope_dim / 2;
  for (uint32_t i = 0; i < half; ++i) {
    const double angle = delta * shape.rope_frequency(i);
    pairs_.push_back({shape.rope_half ? i : 2 * i, shape.rope_half ? i + half : 2 * i + 1,
                      static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
  }
}

void KvRotation::turn(KvArena& arena, const KvHead& head, uint32_t cell, uint32_t n) const {
  for (uint32_t first = 0; first < n;) {
    const uint32_t column = (cell + first) % kPanel, count = std::min(n - first, kPanel - column);
    unsigned char* panel = arena.keys(head) + (cell + first) / kPanel * arena.key_panel_bytes();
    for (const Pair& p : pairs_) {
      if (arena.bf16())
        turn_pair(BF16Dim(panel, p.first), BF16Dim(panel, p.second), p.cosine, p.sine, column,
                  count);
      else
        turn_pair(F32Dim(panel, p.first), F32Dim(panel, p.second), p.cosine, p.sine, column, count);
    }
    first += count;
  }
}

}  // namespace calrt::cpu
