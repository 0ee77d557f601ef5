// SPDX-License-Identifier: Apache-2.0
// BF16 <-> F32 over arrays, once per instruction set. All variants give the same bits, accept any
// alignment and touch no byte outside their arrays. Source and destination may not overlap.
#pragma once

#include <cstddef>
#include <cstdint>

namespace calrt {

// Steps are in elements. `stream`: the results are larger than the caches, so store around them.
struct ConvertKernels {
  void (*bf16_from_f32)(const float* src, uint16_t* dst, size_t n, bool stream);
  void (*f32_from_bf16)(const uint16_t* src, float* dst, size_t n, bool stream);
  // dst[k * dst_step + i] = src[k * src_step + i] for i < run, k < count.
  void (*f32_from_bf16_runs)(const uint16_t* src, size_t src_step, float* dst, size_t dst_step,
                             size_t run, size_t count);
  // The same for each r < rows, from src + r * src_row to dst + r * dst_row; src_step is not 0.
  void (*f32_from_bf16_rows)(const uint16_t* src, size_t src_step, size_t src_row, float* dst,
                             size_t dst_step, size_t dst_row, size_t run, size_t count,
                             size_t rows);
  // dst[r * dst_step + c] = src[c * src_step + r] for r < rows, c < columns.
  void (*f32_from_bf16_transposed)(const uint16_t* src, size_t src_step, float* dst,
                                   size_t dst_step, size_t rows, size_t columns);
  // n elements that are whole cache lines of dst, stored around the caches where there is a way to.
  // fence() comes before anything that another thread is told about them.
  void (*f32_from_bf16_lines)(const uint16_t* src, float* dst, size_t n);
  void (*fence)();
};

extern const ConvertKernels kConvertPortable;
#ifdef CALRT_X86
extern const ConvertKernels kConvertAvx2;
extern const ConvertKernels kConvertAvx512;
#endif
#ifdef CALRT_NEON
extern const ConvertKernels kConvertNeon;
#endif

}  // namespace calrt
