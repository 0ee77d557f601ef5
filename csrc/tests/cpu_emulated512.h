// SPDX-License-Identifier: Apache-2.0
// The AVX-512 vector type in plain arrays: what each intrinsic of simd_avx512.h is documented to
// do, so that the shared templates run at that width on any machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// The templates unroll a tile into hundreds of operations; as calls they stay quick to compile.
#define CALRT_OUT_OF_LINE __attribute__((noinline))

namespace calrt::testing {

struct Emulated512Simd {
  struct V {
    float x[16];
  };
  struct W {
    uint32_t x[16];
  };
  static constexpr int kMaxRows = 12;
  static constexpr int columns(int rows) { return rows <= 4 ? 4 : 2; }

  template <class F>
  static V each(F&& f) {
    V v;
    for (int i = 0; i < 16; ++i) v.x[i] = f(i);
    return v;
  }
  static uint32_t bits(float f) {
    uint32_t u;
    std::memcpy(&u, &f, 4);
    return u;
  }
  static float value(uint32_t u) {
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }

  CALRT_OUT_OF_LINE static V zero() { return set1(0.0f); }
  CALRT_OUT_OF_LINE static V set1(float f) {
    return each([&](int) { return f; });
  }
  CALRT_OUT_OF_LINE static V load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  CALRT_OUT_OF_LINE static void store(float* p, V v) { std::memcpy(p, v.x, sizeof v.x); }
  CALRT_OUT_OF_LINE static V add(V a, V b) {
    return each([&](int i) { return a.x[i] + b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V sub(V a, V b) {
    return each([&](int i) { return a.x[i] - b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V mul(V a, V b) {
    return each([&](int i) { return a.x[i] * b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V div(V a, V b) {
    return each([&](int i) { return a.x[i] / b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V fma(V a, V b, V c) {
    return each([&](int i) { return std::fmaf(a.x[i], b.x[i], c.x[i]); });
  }
  CALRT_OUT_OF_LINE static V max(V a, V b) {
    return each([&](int i) { return a.x[i] > b.x[i] ? a.x[i] : b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V min(V a, V b) {
    return each([&](int i) { return a.x[i] < b.x[i] ? a.x[i] : b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V first(uint32_t n, V a, V b) {
    const uint32_t mask = n < 16 ? (1u << n) - 1u : 0xffffu;
    return each([&](int i) { return (mask >> i & 1u) != 0 ? a.x[i] : b.x[i]; });
  }
  CALRT_OUT_OF_LINE static V pow2(V v) {
    return each([&](int i) { return value((bits(v.x[i]) + 127u) << 23); });
  }
  CALRT_OUT_OF_LINE static V round_bf16(V v) {
    return each([&](int i) {
      const uint32_t u = bits(v.x[i]);
      const uint32_t kept = std::isnan(v.x[i]) ? u | 0x400000u : u + 0x7fffu + ((u >> 16) & 1u);
      return value(kept & 0xffff0000u);
    });
  }
  CALRT_OUT_OF_LINE static V even(const void* block) {
    const W w = load_pairs(block);
    return each([&](int i) { return value(w.x[i] << 16); });
  }
  CALRT_OUT_OF_LINE static V odd(const void* block) {
    const W w = load_pairs(block);
    return each([&](int i) { return value(w.x[i] & 0xffff0000u); });
  }

  CALRT_OUT_OF_LINE static W load_pairs(const void* block) {
    W w;
    std::memcpy(w.x, block, sizeof w.x);
    return w;
  }
  CALRT_OUT_OF_LINE static W even_only(W w) {
    for (uint32_t& u : w.x) u &= 0xffffu;
    return w;
  }
  CALRT_OUT_OF_LINE static W set1_pair(uint32_t pair) {
    W w;
    for (uint32_t& u : w.x) u = pair;
    return w;
  }
  // VDPBF16PS: odd element first; subnormal inputs and results count as zero.
  static float flushed(float f) {
    return (bits(f) & 0x7f800000u) == 0 ? value(bits(f) & 0x80000000u) : f;
  }
  CALRT_OUT_OF_LINE static V dot(V acc, W a, W w) {
    return each([&](int i) {
      const float odd = std::fmaf(flushed(value(a.x[i] & 0xffff0000u)),
                                  flushed(value(w.x[i] & 0xffff0000u)), flushed(acc.x[i]));
      return flushed(
          std::fmaf(flushed(value(a.x[i] << 16)), flushed(value(w.x[i] << 16)), flushed(odd)));
    });
  }
  // VPSRLD by 16, then VPMOVDW.
  CALRT_OUT_OF_LINE static void store_high(uint16_t* p, V v) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<uint16_t>(bits(v.x[i]) >> 16);
  }
};

}  // namespace calrt::testing
