// SPDX-License-Identifier: Apache-2.0
#include "layout/kernels.h"
#include "layout/kernels_impl.h"
#include "layout/kernels_x86.h"

namespace calrt {
namespace {

struct Avx2 {
  static constexpr size_t kLanes = 32;
  static constexpr bool kStreams = true;

  // Eight values that are no NaN, rounded and sign-extended. The bias is 0x7fff plus the lowest bit
  // that stays, looked up by that bit: the lookup sees no more than it and its neighbour, which
  // does not matter. The last shift is a multiplication, since the ports that shift are the busy
  // ones.
  static __m256i round(__m256i bits) {
    const __m256i biases = _mm256_set1_epi64x(0x0000800000007fff);
    const __m256 bias =
        _mm256_permutevar_ps(_mm256_castsi256_ps(biases), _mm256_srli_epi32(bits, 16));
    const __m256i sum = _mm256_add_epi32(bits, _mm256_castps_si256(bias));
    return _mm256_madd_epi16(sum, _mm256_set1_epi32(0x00010000));  // high half * 1 + low half * 0
  }
  static __m256 unordered(__m256i a, __m256i b) {
    return _mm256_cmp_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _CMP_UNORD_Q);
  }
  static __m256i quieted(__m256i rounded, __m256i bits) {
    const __m256i nan = _mm256_castps_si256(unordered(bits, bits));
    const __m256i sign = _mm256_slli_epi32(_mm256_srai_epi32(bits, 31), 15);
    const __m256i quiet = _mm256_or_si256(sign, _mm256_set1_epi32(0x7fc0));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  // Elements 0-3 and 8-11 of the source: packing works within halves of a register, and so what is
  // packed is in order. Halves of an array as malloc aligns it never lie across cache lines.
  static __m256i load_halves(const float* src) {
    const __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)src));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i*)(src + 8)), 1);
  }
  struct Pair {
    __m256i low, high;
  };
  static Pair narrowed(const float* src) {
    const __m256i bits[] = {load_halves(src), load_halves(src + 4), load_halves(src + 16),
                            load_halves(src + 20)};
    __m256i rounded[4];
    for (int i = 0; i < 4; ++i) rounded[i] = round(bits[i]);
    // One comparison finds a NaN on either side. Rare, so a branch costs less than the blends.
    const __m256 nan = _mm256_or_ps(unordered(bits[0], bits[1]), unordered(bits[2], bits[3]));
    if (__builtin_expect(_mm256_movemask_ps(nan), 0))
      for (int i = 0; i < 4; ++i) rounded[i] = quieted(rounded[i], bits[i]);
    return {_mm256_packs_epi32(rounded[0], rounded[1]), _mm256_packs_epi32(rounded[2], rounded[3])};
  }
  static __m256i widened(const uint16_t* src) {
    const __m128i halves = _mm_loadu_si128((const __m128i*)src);
    return _mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
  }

  static void narrow(const float* src, uint16_t* dst) {
    const Pair halves = narrowed(src);
    _mm256_storeu_si256((__m256i*)dst, halves.low);
    _mm256_storeu_si256((__m256i*)(dst + 16), halves.high);
  }
  static void narrow_stream(const float* src, uint16_t* dst) {
    const Pair halves = narrowed(src);
    _mm256_stream_si256((__m256i*)dst, halves.low);
    _mm256_stream_si256((__m256i*)(dst + 16), halves.high);
  }
  static void widen(const uint16_t* src, float* dst) {
    for (size_t i = 0; i < kLanes; i += 8)
      _mm256_storeu_si256((__m256i*)(dst + i), widened(src + i));
  }
  static void widen_stream(const uint16_t* src, float* dst) {
    for (size_t i = 0; i < kLanes; i += 8)
      _mm256_stream_si256((__m256i*)(dst + i), widened(src + i));
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
