// SPDX-License-Identifier: Apache-2.0
// The conversion loops. Included once by each kernels_<isa>.cpp, which is compiled with that set's
// flags; everything here has internal linkage and uses no inline library function, so that the
// linker cannot pick code for one instruction set into another.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace {

// Integer arithmetic only: hardware BF16 conversion flushes subnormals, and a NaN whose payload
// lies in the dropped half must not become an infinity.
inline uint16_t round_one(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

void bf16_from_f32_loop(const float* src, uint16_t* dst, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    memcpy(&bits, src + i, sizeof bits);
    dst[i] = round_one(bits);
  }
}

void f32_from_bf16_loop(const uint16_t* src, float* dst, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = (uint32_t)src[i] << 16;
    memcpy(dst + i, &bits, sizeof bits);
  }
}

}  // namespace
