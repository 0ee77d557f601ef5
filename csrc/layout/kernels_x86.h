// SPDX-License-Identifier: Apache-2.0
// What the x86 instruction sets share. Internal linkage, as kernels_impl.h.
#pragma once

#include <immintrin.h>

#include "layout/kernels_impl.h"

namespace {

inline void widen_eight(__m128i halves, float* dst) {
  _mm256_storeu_si256((__m256i*)dst, _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

// Four elements of each of eight columns become eight elements of each of four rows.
inline void transpose_block(const uint16_t* src, size_t src_step, float* dst, size_t dst_step) {
  const auto column = [&](size_t c) {
    return _mm_loadl_epi64((const __m128i*)(src + c * src_step));
  };
  const __m128i a = _mm_unpacklo_epi16(column(0), column(1));
  const __m128i b = _mm_unpacklo_epi16(column(2), column(3));
  const __m128i c = _mm_unpacklo_epi16(column(4), column(5));
  const __m128i d = _mm_unpacklo_epi16(column(6), column(7));
  const __m128i ab01 = _mm_unpacklo_epi32(a, b), ab23 = _mm_unpackhi_epi32(a, b);
  const __m128i cd01 = _mm_unpacklo_epi32(c, d), cd23 = _mm_unpackhi_epi32(c, d);
  widen_eight(_mm_unpacklo_epi64(ab01, cd01), dst);
  widen_eight(_mm_unpackhi_epi64(ab01, cd01), dst + dst_step);
  widen_eight(_mm_unpacklo_epi64(ab23, cd23), dst + 2 * dst_step);
  widen_eight(_mm_unpackhi_epi64(ab23, cd23), dst + 3 * dst_step);
}

}  // namespace
