// SPDX-License-Identifier: Apache-2.0
#include "layout/kernels.h"
#include "layout/kernels_impl.h"
#include "layout/kernels_x86.h"

namespace calrt {
namespace {

struct Avx512 {
  static constexpr size_t kLanes = 32;
  static constexpr bool kStreams = true;

  static __m256i round(const float* src) {
    const __m512i bits = _mm512_loadu_si512(src);
    const __m512i high = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, bias), 16);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __m512i sign = _mm512_and_si512(high, _mm512_set1_epi32(0x8000));
    const __m512i quiet = _mm512_or_si512(sign, _mm512_set1_epi32(0x7fc0));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, quiet));
  }
  static __m512i narrowed(const float* src) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(round(src)), round(src + 16), 1);
  }
  static __m512i widened(const uint16_t* src) {
    const __m256i halves = _mm256_loadu_si256((const __m256i*)src);
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
  }

  static void narrow(const float* src, uint16_t* dst) { _mm512_storeu_si512(dst, narrowed(src)); }
  static void narrow_stream(const float* src, uint16_t* dst) {
    _mm512_stream_si512((__m512i*)dst, narrowed(src));
  }
  static void widen(const uint16_t* src, float* dst) {
    _mm512_storeu_si512(dst, widened(src));
    _mm512_storeu_si512(dst + 16, widened(src + 16));
  }
  static void widen_stream(const uint16_t* src, float* dst) {
    _mm512_stream_si512((__m512i*)dst, widened(src));
    _mm512_stream_si512((__m512i*)(dst + 16), widened(src + 16));
  }
  static void widen8(const uint16_t* src, float* dst) {
    widen_eight(_mm_loadu_si128((const __m128i*)src), dst);
  }
  static void fence() { _mm_sfence(); }
  static void transpose(const uint16_t* src, size_t src_step, float* dst, size_t dst_step) {
    transpose_block(src, src_step, dst, dst_step);
  }
};

}  // namespace

const ConvertKernels kConvertAvx512 = Convert<Avx512>::kernels();

}  // namespace calrt
