// SPDX-License-Identifier: Apache-2.0
// How a tensor lies in memory, in the one form of at most 8 physical axes (cald_layout). Every
// size is checked u64 arithmetic; a layout that is built is in range and injective.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt {

uint32_t dtype_size(int32_t dtype);                // bytes; 0 for an unknown dtype
const char* dtype_name(int32_t dtype);             // "bf16"; "?" for an unknown dtype
int32_t dtype_from_name(const std::string& name);  // 0 for an unknown name

inline constexpr uint64_t kMaxDim = (uint64_t{1} << 31) - 1;
inline constexpr uint64_t kMaxAllocation = uint64_t{1} << 48;

// Row-major; `padded` (empty or one per dimension, each >= the dim) sets the strides.
Result<cald_layout> linear_layout(int32_t dtype, const std::vector<uint64_t>& shape,
                                  const std::vector<uint64_t>& padded = {});
// Strides in bytes, one per dimension; 0 only where the dim is 1. `bytes` 0 = computed.
Result<cald_layout> strided_layout(int32_t dtype, const std::vector<uint64_t>& shape,
                                   const std::vector<uint64_t>& strides, uint64_t bytes = 0);
// `axis` cut into ceil(padded / size) outer blocks and `size` inner elements; `order` lists all
// axes slowest first, the outer part of the tiled one as -1 and the inner one as -2.
Result<cald_layout> tiled_layout(int32_t dtype, const std::vector<uint64_t>& shape, uint32_t axis,
                                 uint64_t size, const std::vector<int32_t>& order,
                                 const std::vector<uint64_t>& padded = {});
cald_layout undetermined_layout(uint64_t bytes);

// Byte offset of a logical index (one entry per dimension, in range).
uint64_t layout_offset(const cald_layout& layout, const uint64_t* index);
// One row of the first dimension: a layout of one rank less that begins `offset` bytes further on.
// `row` is in range.
struct LayoutRow {
  cald_layout layout;
  uint64_t offset;
};
LayoutRow layout_row(const cald_layout& layout, uint64_t row);
// One stride per dimension when plain strides can express the layout.
std::optional<std::vector<uint64_t>> plain_strides(const cald_layout& layout, uint32_t rank);
// The largest value of an axis' (index / divisor) % modulus over a dimension of `size` > 0.
uint64_t largest_part(const cald_axis& axis, uint64_t size);
// Fails with the two axes that overlap; the error's `where` is then "injective".
Result<void> check_injective(const cald_layout& layout, uint64_t element_size);

}  // namespace calrt
