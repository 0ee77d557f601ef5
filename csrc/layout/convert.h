// SPDX-License-Identifier: Apache-2.0
// BF16 <-> F32. Round to nearest, ties to even; NaN stays NaN with its sign; subnormals are kept:
// bit-identical to ml_dtypes. One kernel per process, CALRT_ISA pins it. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"

namespace calrt {

struct ConvertKernels;

uint16_t bf16_from_f32(float value);
float f32_from_bf16(uint16_t bits);
// Arrays of n elements that do not overlap, at any alignment. No allocation, one thread.
void bf16_from_f32(const float* src, uint16_t* dst, size_t n);
void f32_from_bf16(const uint16_t* src, float* dst, size_t n);

// Instruction sets compiled in and usable here, fastest first: "avx512bf16", "avx2", "neon",
// "portable".
std::vector<const char*> usable_isas();
// The one in use: the first usable, or CALRT_ISA (an unknown or unusable name is an error).
Result<const char*> selected_isa();
// Its kernels.
const ConvertKernels& convert_kernels();
// Whether a result of so many bytes leaves the caches anyway, so that stores had better go around.
bool outgrows_caches(uint64_t bytes);

}  // namespace calrt
