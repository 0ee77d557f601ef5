// SPDX-License-Identifier: Apache-2.0
// What a mock device computes of a lane: sums over its cells that depend on every bit of every one
// of them, and on their order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout/isa.h"

namespace calrt::mock {

// (position, mix) -> (h1, h2) is a bijection, and a cell's h1 and h2 enter their sums times an odd
// number: a change of any one cell changes `a` or `b`, always.
struct Sums {
  uint32_t a, b;
  uint32_t displaced;  // cells whose position is not their index: stale, lost or not yet rotated
};

// Cells [0, n). All instruction sets give the same sums.
using Fold = Sums (*)(const int32_t* positions, const uint32_t* mixes, size_t n);
Fold fold_for(Isa isa);

Sums fold_portable(const int32_t* positions, const uint32_t* mixes, size_t n);
#ifdef CALRT_X86
Sums fold_avx2(const int32_t* positions, const uint32_t* mixes, size_t n);
#endif

// A bijection of 32 bits that maps 0, and only 0, to 0.
inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  return x ^ (x >> 15);
}
// What a cell holds of its token; never 0, which is a cell that nothing was written to.
inline uint32_t mix_of(uint32_t token) { return mixed(token + 1); }

}  // namespace calrt::mock
