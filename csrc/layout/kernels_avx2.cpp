// SPDX-License-Identifier: Apache-2.0
#include "layout/kernels.h"
#include "layout/kernels_impl.h"
#include "layout/kernels_x86.h"

namespace calrt {
namespace {

struct Avx2 {
  static constexpr size_t kLanes = 16;
  static constexpr bool kStreams = true;
  static constexpr size_t kAlign = 32;

  // Eight values that are no NaN, rounded, each in the low half of its 32 bits. The bias is 0x7fff
  // plus the lowest bit that stays, looked up by that bit; the lookup ignores all but two of them.
  static __m256i round(__m256i bits) {
    const __m256i biases = _mm256_set1_epi64x(0x0000800000007fff);
    const __m256 bias =
        _mm256_permutevar_ps(_mm256_castsi256_ps(biases), _mm256_srli_epi32(bits, 16));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_castps_si256(bias)), 16);
  }
  static __m256i quieted(__m256i rounded, __m256i bits) {
    const __m256 value = _mm256_castsi256_ps(bits);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x8000));
    const __m256i quiet = _mm256_or_si256(sign, _mm256_set1_epi32(0x7fc0));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  static __m256i narrowed(const float* src) {
    const __m256i a = _mm256_loadu_si256((const __m256i*)src);
    const __m256i b = _mm256_loadu_si256((const __m256i*)(src + 8));
    __m256i low = round(a), high = round(b);
    // One comparison finds a NaN on either side. Rare, so a branch costs less than the blends.
    const __m256 nan = _mm256_cmp_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _CMP_UNORD_Q);
    if (__builtin_expect(_mm256_movemask_ps(nan), 0)) {
      low = quieted(low, a);
      high = quieted(high, b);
    }
    // Packing works within halves of a register; the permutation puts the quarters in order.
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  }
  static __m256i widened(const uint16_t* src) {
    const __m128i halves = _mm_loadu_si128((const __m128i*)src);
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
  }

  static void narrow(const float* src, uint16_t* dst) {
    _mm256_storeu_si256((__m256i*)dst, narrowed(src));
  }
  static void narrow_stream(const float* src, uint16_t* dst) {
    _mm256_stream_si256((__m256i*)dst, narrowed(src));
  }
  static void widen(const uint16_t* src, float* dst) {
    _mm256_storeu_si256((__m256i*)dst, widened(src));
    _mm256_storeu_si256((__m256i*)(dst + 8), widened(src + 8));
  }
  static void widen_stream(const uint16_t* src, float* dst) {
    _mm256_stream_si256((__m256i*)dst, widened(src));
    _mm256_stream_si256((__m256i*)(dst + 8), widened(src + 8));
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

const ConvertKernels kConvertAvx2 = Convert<Avx2>::kernels();

}  // namespace calrt
