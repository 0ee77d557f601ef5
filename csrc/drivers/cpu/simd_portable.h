// SPDX-License-Identifier: Apache-2.0
// Sixteen F32 lanes in plain C++: the reference for every other instruction set, and the only one
// on machines that are not x86. Lane i of a BF16 block is column i of a panel, its two elements
// neighbours in memory (even k first).
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "drivers/cpu/simd_macros.h"

namespace {

struct PortableSimd {
  // Four vectors of the width that every 64-bit target has.
  typedef float F4 __attribute__((vector_size(16)));
  typedef uint32_t U4 __attribute__((vector_size(16)));
  struct V {
    F4 q[4];
  };
  static constexpr int kMaxRows = 3;
  // Accumulator columns (in 16s) of a tile with this many rows: what fits into 16 registers.
  static constexpr int columns(int rows) { return rows == 1 ? 2 : 1; }

  CALRT_INLINE static V zero() { return set1(0.0f); }
  CALRT_INLINE static V set1(float x) {
    const F4 all = {x, x, x, x};
    return V{{all, all, all, all}};
  }
  CALRT_INLINE static V load(const float* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  CALRT_INLINE static void store(float* p, V v) { memcpy(p, &v, sizeof v); }
  CALRT_INLINE static V add(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = a.q[i] + b.q[i];
    return a;
  }
  CALRT_INLINE static V sub(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = a.q[i] - b.q[i];
    return a;
  }
  CALRT_INLINE static V mul(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = a.q[i] * b.q[i];
    return a;
  }
  CALRT_INLINE static V div(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = a.q[i] / b.q[i];
    return a;
  }
  // Two roundings: a fused one would be a library call here. For BF16 factors both are equal,
  // their product being exact.
  CALRT_INLINE static V fma(V a, V b, V c) {
    for (int i = 0; i < 4; ++i) c.q[i] = c.q[i] + a.q[i] * b.q[i];
    return c;
  }
  CALRT_INLINE static V max(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = a.q[i] > b.q[i] ? a.q[i] : b.q[i];
    return a;
  }
  CALRT_INLINE static V min(V a, V b) {
    for (int i = 0; i < 4; ++i) a.q[i] = a.q[i] < b.q[i] ? a.q[i] : b.q[i];
    return a;
  }
  // Lanes below n from a, the rest from b, whatever bits either holds.
  CALRT_INLINE static V first(uint32_t n, V a, V b) {
    float x[16], y[16];
    store(x, a);
    store(y, b);
    for (uint32_t i = 0; i < 16; ++i) x[i] = i < n ? x[i] : y[i];
    return load(x);
  }
  // 2^n, where x = n + 1.5 * 2^23.
  CALRT_INLINE static V pow2(V x) {
    for (int i = 0; i < 4; ++i) x.q[i] = (F4)(((U4)x.q[i] + 127u) << 23);
    return x;
  }
  // The values rounded to BF16, still as F32; NaN stays NaN.
  CALRT_INLINE static V round_bf16(V x) {
    for (int i = 0; i < 4; ++i) {
      const U4 bits = (U4)x.q[i];
      const U4 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
      const U4 nan = (U4)((bits & 0x7fffffffu) > 0x7f800000u);
      x.q[i] = (F4)((nan & (bits | 0x00400000u) & 0xffff0000u) | (~nan & rounded));
    }
    return x;
  }
  CALRT_INLINE static V even(const void* block) {
    V v;
    memcpy(&v, block, sizeof v);
    for (int i = 0; i < 4; ++i) v.q[i] = (F4)((U4)v.q[i] << 16);
    return v;
  }
  CALRT_INLINE static V odd(const void* block) {
    V v;
    memcpy(&v, block, sizeof v);
    for (int i = 0; i < 4; ++i) v.q[i] = (F4)((U4)v.q[i] & 0xffff0000u);
    return v;
  }
};

}  // namespace
