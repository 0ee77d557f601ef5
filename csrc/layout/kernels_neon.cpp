// SPDX-License-Identifier: Apache-2.0
// AArch64's base instruction set. It has no streaming store that a compiler offers as an operation.
#include <arm_neon.h>

#include "layout/kernels.h"
#include "layout/kernels_impl.h"

namespace calrt {
namespace {

struct Neon {
  static constexpr size_t kLanes = 8;
  static constexpr bool kStreams = false;

  // Loads by bytes, which any alignment allows.
  static uint16x8_t load8(const uint16_t* src) {
    return vreinterpretq_u16_u8(vld1q_u8((const uint8_t*)src));
  }
  static uint16x4_t load4(const uint16_t* src) {
    return vreinterpret_u16_u8(vld1_u8((const uint8_t*)src));
  }
  static uint16x4_t round(const float* src) {
    const uint32x4_t bits = vreinterpretq_u32_u8(vld1q_u8((const uint8_t*)src));
    const uint32x4_t high = vshrq_n_u32(bits, 16);
    const uint32x4_t bias = vaddq_u32(vandq_u32(high, vdupq_n_u32(1)), vdupq_n_u32(0x7fff));
    const uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, bias), 16);
    const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
    const uint32x4_t nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000));
    const uint32x4_t sign = vandq_u32(high, vdupq_n_u32(0x8000));
    const uint32x4_t quiet = vorrq_u32(sign, vdupq_n_u32(0x7fc0));
    return vmovn_u32(vbslq_u32(nan, quiet, rounded));
  }
  static void store8(uint16x8_t halves, float* dst) {
    const uint32x4_t low = vshll_n_u16(vget_low_u16(halves), 16);
    const uint32x4_t high = vshll_n_u16(vget_high_u16(halves), 16);
    vst1q_u8((uint8_t*)dst, vreinterpretq_u8_u32(low));
    vst1q_u8((uint8_t*)(dst + 4), vreinterpretq_u8_u32(high));
  }

  static void narrow(const float* src, uint16_t* dst) {
    const uint16x8_t halves = vcombine_u16(round(src), round(src + 4));
    vst1q_u8((uint8_t*)dst, vreinterpretq_u8_u16(halves));
  }
  static void widen(const uint16_t* src, float* dst) { store8(load8(src), dst); }
  static void widen8(const uint16_t* src, float* dst) { store8(load8(src), dst); }

  // Four elements of each of eight columns become eight elements of each of four rows.
  static void transpose(const uint16_t* src, size_t src_step, float* dst, size_t dst_step) {
    const auto pair = [&](size_t c) {
      const uint16x4_t left = load4(src + c * src_step), right = load4(src + (c + 1) * src_step);
      return vreinterpretq_u32_u16(vcombine_u16(vzip1_u16(left, right), vzip2_u16(left, right)));
    };
    const uint32x4_t a = pair(0), b = pair(2), c = pair(4), d = pair(6);
    const uint64x2_t ab01 = vreinterpretq_u64_u32(vzip1q_u32(a, b));
    const uint64x2_t ab23 = vreinterpretq_u64_u32(vzip2q_u32(a, b));
    const uint64x2_t cd01 = vreinterpretq_u64_u32(vzip1q_u32(c, d));
    const uint64x2_t cd23 = vreinterpretq_u64_u32(vzip2q_u32(c, d));
    store8(vreinterpretq_u16_u64(vzip1q_u64(ab01, cd01)), dst);
    store8(vreinterpretq_u16_u64(vzip2q_u64(ab01, cd01)), dst + dst_step);
    store8(vreinterpretq_u16_u64(vzip1q_u64(ab23, cd23)), dst + 2 * dst_step);
    store8(vreinterpretq_u16_u64(vzip2q_u64(ab23, cd23)), dst + 3 * dst_step);
  }
};

}  // namespace

const ConvertKernels kConvertNeon = Convert<Neon>::kernels();

}  // namespace calrt
