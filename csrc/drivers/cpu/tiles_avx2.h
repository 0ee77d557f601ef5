// SPDX-License-Identifier: Apache-2.0
// Tiles of cells as AVX registers; see PortableTiles.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "drivers/cpu/simd_macros.h"

namespace {

struct Avx2Tiles {
  static constexpr size_t kTile = 8;
  static constexpr size_t kPairs = 16;

  CALRT_INLINE static void transpose(const unsigned char* src, size_t src_stride,
                                     unsigned char* dst, size_t dst_stride, bool stream) {
    // Rows r and r + 4 share a register, so that no step crosses its halves.
    transpose_half(src, src_stride, dst, dst_stride, stream);
    transpose_half(src + 16, src_stride, dst + 4 * dst_stride, dst_stride, stream);
  }
  CALRT_INLINE static void split(const unsigned char* pairs, unsigned char* first,
                                 unsigned char* second, bool stream) {
    const __m256i a = load(pairs), b = load(pairs + 32), low = _mm256_set1_epi32(0xffff);
    // Packing goes by halves of both registers: 0 2 1 3.
    const __m256i even = _mm256_packus_epi32(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
    const __m256i odd = _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    store(first, _mm256_permute4x64_epi64(even, 0xd8), stream);
    store(second, _mm256_permute4x64_epi64(odd, 0xd8), stream);
  }
  CALRT_INLINE static void join(const unsigned char* first, const unsigned char* second,
                                unsigned char* pairs, bool stream) {
    const __m256i a = _mm256_permute4x64_epi64(load(first), 0xd8);
    const __m256i b = _mm256_permute4x64_epi64(load(second), 0xd8);
    store(pairs, _mm256_unpacklo_epi16(a, b), stream);
    store(pairs + 32, _mm256_unpackhi_epi16(a, b), stream);
  }
  CALRT_INLINE static void fence() { _mm_sfence(); }

 private:
  CALRT_INLINE static __m256i load(const unsigned char* p) {
    return _mm256_loadu_si256((const __m256i*)p);
  }
  CALRT_INLINE static void store(unsigned char* p, __m256i v, bool stream) {
    if (stream)
      _mm256_stream_si256((__m256i*)p, v);
    else
      _mm256_storeu_si256((__m256i*)p, v);
  }
  CALRT_INLINE static __m256i both(const unsigned char* low, const unsigned char* high) {
    const __m128i half = _mm_loadu_si128((const __m128i*)low);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half),
                                   _mm_loadu_si128((const __m128i*)high), 1);
  }
  // Four columns of eight rows.
  CALRT_INLINE static void transpose_half(const unsigned char* src, size_t stride,
                                          unsigned char* dst, size_t dst_stride, bool stream) {
    const __m256i a = both(src, src + 4 * stride), b = both(src + stride, src + 5 * stride);
    const __m256i c = both(src + 2 * stride, src + 6 * stride);
    const __m256i d = both(src + 3 * stride, src + 7 * stride);
    const __m256i ab_lo = _mm256_unpacklo_epi32(a, b), ab_hi = _mm256_unpackhi_epi32(a, b);
    const __m256i cd_lo = _mm256_unpacklo_epi32(c, d), cd_hi = _mm256_unpackhi_epi32(c, d);
    store(dst, _mm256_unpacklo_epi64(ab_lo, cd_lo), stream);
    store(dst + dst_stride, _mm256_unpackhi_epi64(ab_lo, cd_lo), stream);
    store(dst + 2 * dst_stride, _mm256_unpacklo_epi64(ab_hi, cd_hi), stream);
    store(dst + 3 * dst_stride, _mm256_unpackhi_epi64(ab_hi, cd_hi), stream);
  }
};

}  // namespace
