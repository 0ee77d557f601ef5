// SPDX-License-Identifier: Apache-2.0
#include "kv/geometry.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>

#include "base/checked.h"
#include "base/out_of_memory.h"

namespace calrt::kv {
namespace {

struct Factor {
  const char* name;
  uint64_t value;
};

unsigned long long number(uint64_t value) { return value; }

Result<uint64_t> product_of(uint64_t bytes, std::initializer_list<Factor> factors) {
  for (const Factor& factor : factors) {
    if (factor.value == 0)
      return fail(Status::INVALID_ARGUMENT, "%s=0: KV has at least one of each", factor.name);
    const uint64_t before = bytes;
    if (!checked_mul(bytes, factor.value, &bytes))
      return fail(Status::OUT_OF_RANGE, "%s=%llu: %llu bytes for each are more than 64 bits count",
                  factor.name, number(factor.value), number(before));
  }
  return bytes;
}

}  // namespace

Result<uint64_t> Geometry::cell_bytes() const {
  return or_out_of_memory([&] {
    return product_of(2, {{"element_bytes", element_bytes},
                          {"head_dim", head_dim},
                          {"kv_heads", kv_heads},
                          {"layers", layers}});
  });
}

Result<uint64_t> Geometry::lane_bytes() const {
  return or_out_of_memory([&]() -> Result<uint64_t> {
    CALRT_TRY_ASSIGN(const uint64_t cell, cell_bytes());
    return product_of(cell, {{"cells", cells}});
  });
}

Result<uint64_t> Geometry::arena_bytes() const {
  return or_out_of_memory([&]() -> Result<uint64_t> {
    CALRT_TRY_ASSIGN(const uint64_t lane, lane_bytes());
    return product_of(lane, {{"lanes", lanes}});
  });
}

Result<std::vector<Overlap>> find_overlaps(std::span<const Extent> extents) {
  return or_out_of_memory([&]() -> Result<std::vector<Overlap>> {
    std::vector<size_t> by_address;
    by_address.reserve(extents.size());
    for (size_t i = 0; i < extents.size(); ++i) {
      uint64_t end = 0;
      if (!checked_add(extents[i].begin, extents[i].bytes, &end))
        return fail(Status::OUT_OF_RANGE,
                    "extent %zu: %llu bytes at 0x%llx go past the end of 64 bits", i,
                    number(extents[i].bytes), number(extents[i].begin));
      if (extents[i].bytes > 0) by_address.push_back(i);
    }
    std::sort(by_address.begin(), by_address.end(), [&](size_t a, size_t b) {
      return std::tie(extents[a].space, extents[a].begin, a) <
             std::tie(extents[b].space, extents[b].begin, b);
    });
    std::vector<Overlap> found;
    size_t furthest = 0;
    for (size_t k = 0; k < by_address.size(); ++k) {
      const size_t i = by_address[k];
      const Extent& before = extents[furthest];
      const Extent& now = extents[i];
      const bool fresh = k == 0 || before.space != now.space;
      const uint64_t end = before.begin + before.bytes;
      if (!fresh && now.begin < end) found.push_back({furthest, i});
      if (fresh || now.begin + now.bytes > end) furthest = i;
    }
    return found;
  });
}

}  // namespace calrt::kv
