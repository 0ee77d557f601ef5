// SPDX-License-Identifier: Apache-2.0
// Tensors of F32 or BF16 elements between any layout and the dense row-major F32 array.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt {

// dst holds the product of `shape` floats, src holds layout.bytes; they do not overlap. Refuses
// other dtypes (DTYPE_MISMATCH), undetermined layouts (UNSUPPORTED) and malformed ones before a
// byte is read.
Result<void> unpack_f32(const cald_layout& layout, int32_t dtype, const uint64_t* shape,
                        uint32_t rank, const void* src, float* dst);

// The other way; BF16 is rounded as by bf16_from_f32(). Padding is left as it is. Refuses also
// layouts that put two elements over each other.
Result<void> pack_f32(const cald_layout& layout, int32_t dtype, const uint64_t* shape,
                      uint32_t rank, const float* src, void* dst);

}  // namespace calrt
