// SPDX-License-Identifier: Apache-2.0
// Sixteen F32 lanes as one AVX-512 register, with the BF16 dot product. Each function is one or two
// instructions; everything that decides is in the shared templates. See simd_portable.h.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/cpu/simd_macros.h"

namespace {

struct Avx512Simd {
  using V = __m512;
  static constexpr int kMaxRows = 12;
  static constexpr int columns(int rows) { return rows <= 4 ? 4 : 2; }

  CALRT_INLINE static V zero() { return _mm512_setzero_ps(); }
  CALRT_INLINE static V set1(float x) { return _mm512_set1_ps(x); }
  CALRT_INLINE static V load(const float* p) { return _mm512_loadu_ps(p); }
  CALRT_INLINE static void store(float* p, V v) { _mm512_storeu_ps(p, v); }
  CALRT_INLINE static V add(V a, V b) { return _mm512_add_ps(a, b); }
  CALRT_INLINE static V sub(V a, V b) { return _mm512_sub_ps(a, b); }
  CALRT_INLINE static V mul(V a, V b) { return _mm512_mul_ps(a, b); }
  CALRT_INLINE static V div(V a, V b) { return _mm512_div_ps(a, b); }
  CALRT_INLINE static V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  CALRT_INLINE static V max(V a, V b) { return _mm512_max_ps(a, b); }
  CALRT_INLINE static V min(V a, V b) { return _mm512_min_ps(a, b); }
  CALRT_INLINE static V first(uint32_t n, V a, V b) {
    return _mm512_mask_blend_ps((__mmask16)(n < 16 ? (1u << n) - 1u : 0xffffu), b, a);
  }
  CALRT_INLINE static V pow2(V x) {
    const __m512i biased = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
  }
  CALRT_INLINE static V round_bf16(V x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i kept = _mm512_mask_blend_epi32(nan, _mm512_add_epi32(bits, bias), quiet);
    return _mm512_castsi512_ps(_mm512_and_si512(kept, _mm512_set1_epi32((int)0xffff0000u)));
  }
  CALRT_INLINE static V even(const void* block) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(block), 16));
  }
  CALRT_INLINE static V odd(const void* block) {
    const __m512i high = _mm512_set1_epi32((int)0xffff0000u);
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(block), high));
  }

  // The BF16 dot product. W: 16 columns x 2 elements; a pair of activations for every column.
  using W = __m512i;
  CALRT_INLINE static W load_pairs(const void* block) { return _mm512_loadu_si512(block); }
  CALRT_INLINE static W even_only(W w) { return _mm512_and_si512(w, _mm512_set1_epi32(0xffff)); }
  CALRT_INLINE static W set1_pair(uint32_t pair) { return _mm512_set1_epi32((int)pair); }
  CALRT_INLINE static V dot(V acc, W a, W w) {
    return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)w);
  }
  // The high halves of 16 lanes, in order.
  CALRT_INLINE static void store_high(uint16_t* p, V v) {
    const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(v), 16);
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(high));
  }
};

}  // namespace
