// SPDX-License-Identifier: Apache-2.0
// How many bytes cells, lanes and arenas have, and which pieces of memory lie over each other.
// Every step is checked: sizes come from packages and drivers. Plain data; all bytes, addresses and
// counts are u64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace calrt::kv {

// K and V of every layer lie in a cell; cells make a lane, lanes an arena.
struct Geometry {
  uint64_t layers = 0, kv_heads = 0, head_dim = 0;
  uint64_t element_bytes = 0;  // of the dtype that K and V are kept in
  uint64_t cells = 0;          // of a lane
  uint64_t lanes = 0;

  // INVALID_ARGUMENT names a factor that is 0, OUT_OF_RANGE the one with which the product does not
  // fit 64 bits any more.
  Result<uint64_t> cell_bytes() const;
  Result<uint64_t> lane_bytes() const;
  Result<uint64_t> arena_bytes() const;
};

// Bytes [begin, begin + bytes) of one address space: a chip, a buffer.
struct Extent {
  uint64_t space = 0, begin = 0, bytes = 0;
};

// Numbers of two extents that share a byte, the one with the lower address first.
struct Overlap {
  size_t first = 0, second = 0;
  bool operator==(const Overlap&) const = default;
};

// By address, each extent that begins inside of earlier ones, with the one of those that reaches
// furthest: nothing if all lie apart. Those without bytes lie nowhere. OUT_OF_RANGE for one that
// goes past the end of its space. O(n log n).
Result<std::vector<Overlap>> find_overlaps(std::span<const Extent> extents);

}  // namespace calrt::kv
