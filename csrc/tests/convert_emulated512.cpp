// SPDX-License-Identifier: Apache-2.0
// The AVX-512 kernels as they are written, on vectors in plain arrays: each operation does what its
// instruction is documented to do, so that they run on machines that have AVX2 only.
#include "convert_emulated512.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "layout/kernels.h"

namespace calrt::testing {

int misaligned_streams = 0;

struct V512 {
  uint32_t x[16];
};

template <class F>
V512 each(F&& f) {
  V512 v;
  for (int i = 0; i < 16; ++i) v.x[i] = f(i);
  return v;
}
inline V512 loadu(const void* from) {
  V512 v;
  std::memcpy(v.x, from, sizeof v.x);
  return v;
}
inline void storeu(void* to, V512 v) { std::memcpy(to, v.x, sizeof v.x); }
inline void stream(void* to, V512 v) {
  misaligned_streams += reinterpret_cast<uintptr_t>(to) % 64 != 0;
  storeu(to, v);
}
inline V512 set1(int value) {
  return each([&](int) { return static_cast<uint32_t>(value); });
}
inline V512 srli(V512 a, unsigned n) {
  return each([&](int i) { return n < 32 ? a.x[i] >> n : 0; });
}
inline V512 slli(V512 a, unsigned n) {
  return each([&](int i) { return n < 32 ? a.x[i] << n : 0; });
}
inline V512 and_(V512 a, V512 b) {
  return each([&](int i) { return a.x[i] & b.x[i]; });
}
inline V512 or_(V512 a, V512 b) {
  return each([&](int i) { return a.x[i] | b.x[i]; });
}
inline V512 add(V512 a, V512 b) {
  return each([&](int i) { return a.x[i] + b.x[i]; });
}
inline uint16_t greater(V512 a, V512 b) {  // signed
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i)
    mask |= uint32_t{static_cast<int32_t>(a.x[i]) > static_cast<int32_t>(b.x[i])} << i;
  return static_cast<uint16_t>(mask);
}
inline V512 mask_mov(V512 a, uint16_t mask, V512 b) {
  return each([&](int i) { return (mask >> i & 1) != 0 ? b.x[i] : a.x[i]; });
}
inline __m256i low_halves(V512 a) {
  uint16_t halves[16];
  for (int i = 0; i < 16; ++i) halves[i] = static_cast<uint16_t>(a.x[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves));
}
inline V512 widened(__m256i a) {
  uint16_t halves[16];
  std::memcpy(halves, &a, sizeof halves);
  return each([&](int i) { return halves[i]; });
}
inline V512 with_half(V512 v, __m256i half, int which) {
  std::memcpy(v.x + 8 * which, &half, sizeof half);
  return v;
}
inline V512 cast(__m256i low) { return with_half(set1(0x5eed), low, 0); }  // the rest is undefined

}  // namespace calrt::testing

#define __m512i ::calrt::testing::V512
#define __mmask16 uint16_t
#define _mm512_loadu_si512 ::calrt::testing::loadu
#define _mm512_storeu_si512 ::calrt::testing::storeu
#define _mm512_stream_si512 ::calrt::testing::stream
#define _mm512_set1_epi32 ::calrt::testing::set1
#define _mm512_srli_epi32 ::calrt::testing::srli
#define _mm512_slli_epi32 ::calrt::testing::slli
#define _mm512_and_si512 ::calrt::testing::and_
#define _mm512_or_si512 ::calrt::testing::or_
#define _mm512_add_epi32 ::calrt::testing::add
#define _mm512_cmpgt_epi32_mask ::calrt::testing::greater
#define _mm512_mask_mov_epi32 ::calrt::testing::mask_mov
#define _mm512_cvtepi32_epi16 ::calrt::testing::low_halves
#define _mm512_cvtepu16_epi32 ::calrt::testing::widened
#define _mm512_inserti64x4 ::calrt::testing::with_half
#define _mm512_castsi256_si512 ::calrt::testing::cast
#define kConvertAvx512 kConvertAvx512Emulated
#include "layout/kernels_avx512.cpp"
