// SPDX-License-Identifier: Apache-2.0
// The fold's loop, for the compiler to vectorise. Included once by each fold_<isa>.cpp, which is
// compiled with that set's flags; internal linkage, and no library function.
#pragma once

#include "drivers/mock/fold.h"

namespace {

inline calrt::mock::Sums fold_cells(const int32_t* positions, const uint32_t* mixes, size_t n) {
  uint32_t a = 0, b = 0, displaced = 0;
  const auto cells = (uint32_t)n;
  for (uint32_t i = 0; i < cells; ++i) {
    const auto position = (uint32_t)positions[i];
    uint32_t h1 = mixes[i] + position * 0x9e3779b1u;
    h1 = (h1 ^ (h1 >> 15)) * 0x2c1b3c6du;
    h1 ^= h1 >> 13;
    uint32_t h2 = position + h1;
    h2 = (h2 ^ (h2 >> 16)) * 0x85ebca6bu;
    h2 ^= h2 >> 15;
    const uint32_t weight = 2 * i + 1;
    a += h1 * weight;
    b += h2 * weight;
    displaced += position != i ? 1u : 0u;
  }
  return {a, b, displaced};
}

}  // namespace
