// SPDX-License-Identifier: Apache-2.0
// BF16 <-> F32. Round to nearest, ties to even; NaN stays NaN with its sign; subnormals are kept:
// bit-identical to ml_dtypes. The kernel is chosen once per process; CALRT_ISA pins it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt {

uint16_t bf16_from_f32(float value);
float f32_from_bf16(uint16_t bits);
void bf16_from_f32(const float* src, uint16_t* dst, size_t n);
void f32_from_bf16(const uint16_t* src, float* dst, size_t n);

// Instruction sets compiled in and usable here, fastest first: "avx512bf16", "avx2", "portable".
std::vector<const char*> usable_isas();
// The one in use: the first usable, or CALRT_ISA (an unknown or unusable name is an error).
Result<const char*> selected_isa();

// Any layout of F32 or BF16 elements -> dense row-major F32.
Result<void> unpack_f32(const cald_layout& layout, int32_t dtype, const uint64_t* shape,
                        uint32_t rank, const void* src, float* dst);

}  // namespace calrt
