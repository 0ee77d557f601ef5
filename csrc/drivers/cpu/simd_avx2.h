// SPDX-License-Identifier: Apache-2.0
// Sixteen F32 lanes as two AVX registers, with FMA. See simd_portable.h for the meaning of each.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/cpu/simd_macros.h"

namespace {

struct Avx2Simd {
  struct V {
    __m256 lo, hi;
  };
  static constexpr int kMaxRows = 6;
  // Accumulators are two registers each, and of 16 registers the weights, a mask and an activation
  // need five: three rows by two columns would spill.
  static constexpr int columns(int rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }

  CALRT_INLINE static V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  CALRT_INLINE static V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  CALRT_INLINE static V load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
  }
  CALRT_INLINE static void store(float* p, V v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  CALRT_INLINE static V add(V a, V b) {
    return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
  }
  CALRT_INLINE static V sub(V a, V b) {
    return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
  }
  CALRT_INLINE static V mul(V a, V b) {
    return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
  }
  CALRT_INLINE static V div(V a, V b) {
    return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
  }
  CALRT_INLINE static V fma(V a, V b, V c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  CALRT_INLINE static V max(V a, V b) {
    return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
  }
  CALRT_INLINE static V min(V a, V b) {
    return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
  }
  CALRT_INLINE static V first(uint32_t n, V a, V b) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i limit = _mm256_set1_epi32((int)(n < 16 ? n : 16));
    const __m256i lo = _mm256_cmpgt_epi32(limit, lane);
    const __m256i hi = _mm256_cmpgt_epi32(limit, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
    return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(lo)),
            _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(hi))};
  }
  CALRT_INLINE static V pow2(V x) { return {pow2_half(x.lo), pow2_half(x.hi)}; }
  CALRT_INLINE static V round_bf16(V x) { return {round_half(x.lo), round_half(x.hi)}; }
  CALRT_INLINE static V even(const void* block) {
    const __m256i* p = (const __m256i*)block;
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(p + 1), 16))};
  }
  CALRT_INLINE static V odd(const void* block) {
    const __m256i* p = (const __m256i*)block;
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p), high)),
            _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(p + 1), high))};
  }

 private:
  CALRT_INLINE static __m256 pow2_half(__m256 x) {
    const __m256i biased = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
  }
  CALRT_INLINE static __m256 round_half(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_and_si256(_mm256_add_epi32(bits, bias), high);
    const __m256i quiet =
        _mm256_and_si256(_mm256_or_si256(bits, _mm256_set1_epi32(0x400000)), high);
    const __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), _mm256_castsi256_ps(quiet), nan);
  }
};

}  // namespace
