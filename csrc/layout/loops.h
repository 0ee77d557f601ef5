// SPDX-License-Identifier: Apache-2.0
// A layout as nested loops of constant stride, the form in which memory can be moved in blocks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt {

// All in elements. `packed`: steps of the layout; `dense`: of the row-major array.
struct StridedLoop {
  uint64_t count, packed, dense;
};

// A box of the tensor. Loops go outermost first, none of count 1, neighbours that continue each
// other merged; the last one steps by 1 on the dense side.
struct LoopNest {
  uint64_t packed = 0, dense = 0;  // where it begins
  std::vector<StridedLoop> loops;
};

// The boxes that cover a tensor exactly once: one, and one more for each tile that the shape ends
// within. Refuses what is undetermined, malformed (an axis of no dimension, divisor 0, a stride
// that splits elements), tiles that do not nest, and what reaches beyond layout.bytes. A dimension
// of 0 gives no box.
Result<std::vector<LoopNest>> loop_nests(const cald_layout& layout, uint64_t element_size,
                                         const uint64_t* shape, uint32_t rank);

}  // namespace calrt
