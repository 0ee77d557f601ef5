// SPDX-License-Identifier: Apache-2.0
// BF16 <-> F32 over arrays, once per instruction set. All variants give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace calrt {

struct ConvertKernels {
  void (*bf16_from_f32)(const float* src, uint16_t* dst, size_t n);
  void (*f32_from_bf16)(const uint16_t* src, float* dst, size_t n);
};

extern const ConvertKernels kConvertPortable;
#ifdef CALRT_X86
extern const ConvertKernels kConvertAvx2;
extern const ConvertKernels kConvertAvx512;
#endif

}  // namespace calrt
