// SPDX-License-Identifier: Apache-2.0
// Keys turned on in place: a key that was turned for position p becomes the one for p + delta.
#pragma once

#include <cstdint>
#include <vector>

#include "drivers/cpu/kv.h"

namespace calrt::cpu {

class KvRotation {
 public:
  KvRotation(const Shape& shape, int32_t delta);
  // Products and sums in F32, each result rounded to the arena's dtype once.
  void turn(KvArena& arena, const KvHead& head, uint32_t cell, uint32_t n) const;

 private:
  struct Pair {
    uint32_t first, second;  // dimensions
    float cosine, sine;      // of delta positions
  };
  std::vector<Pair> pairs_;
};

}  // namespace calrt::cpu
