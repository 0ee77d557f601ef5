// SPDX-License-Identifier: Apache-2.0
#include "layout/loops.h"

#include <cinttypes>
#include <numeric>

#include "base/checked.h"
#include "layout/layout.h"

namespace calrt {
namespace {

// One dimension cut at its tile boundaries, innermost level first; the last may end early.
struct Level {
  uint64_t count, packed, dense;
};
using Levels = std::vector<Level>;
// The levels walked by one box, and where it begins.
struct Segment {
  uint64_t packed = 0, dense = 0;
  std::vector<StridedLoop> loops;  // innermost first
};

Result<void> check_axes(const cald_layout& layout, uint64_t element_size, const uint64_t* shape,
                        uint32_t rank) {
  if (layout.undetermined != 0)
    return fail(Status::UNSUPPORTED, "the layout is undetermined: its bytes may not be read");
  if (rank > CALD_MAX_RANK || layout.n_axes > CALD_MAX_AXES)
    return fail(Status::SHAPE_MISMATCH, "rank %u or %u axes exceed the largest, %d", rank,
                layout.n_axes, CALD_MAX_RANK);
  uint64_t elements = 1;
  for (uint32_t d = 0; d < rank; ++d) {
    if (!checked_mul(elements, shape[d], &elements) || elements > kMaxAllocation)
      return fail(Status::OUT_OF_RANGE, "the shape has more than 2^48 elements");
  }
  if (elements == 0) return {};
  uint64_t reach = element_size;
  for (uint32_t a = 0; a < layout.n_axes; ++a) {
    const cald_axis& axis = layout.axes[a];
    if (axis.dim >= rank || axis.divisor == 0)
      return fail(Status::SHAPE_MISMATCH,
                  "axis %u has dimension %u of rank %u and divisor %" PRIu64, a, axis.dim, rank,
                  axis.divisor);
    if (axis.stride % element_size != 0)
      return fail(Status::SHAPE_MISMATCH,
                  "axis %u has stride %" PRIu64 ", no multiple of the element's %" PRIu64 " bytes",
                  a, axis.stride, element_size);
    uint64_t step = 0;
    if (!checked_mul(axis.stride, largest_part(axis, shape[axis.dim]), &step) ||
        !checked_add(reach, step, &reach))
      return fail(Status::OUT_OF_RANGE, "the axes reach over more than 2^64 bytes");
  }
  if (reach > layout.bytes)
    return fail(Status::OUT_OF_RANGE,
                "the axes reach over %" PRIu64 " bytes, the layout has %" PRIu64, reach,
                layout.bytes);
  return {};
}

// offset(index) of one dimension is a sum of terms that go up with the index and start anew at
// multiples of their divisor or modulus. Up to the greatest common divisor of those it is a
// straight line; counted in blocks of that size it is such a sum again.
Result<Levels> levels_of(const cald_layout& layout, uint64_t element_size, uint32_t dim,
                         uint64_t size, uint64_t dense) {
  std::vector<cald_axis> axes;
  for (uint32_t a = 0; a < layout.n_axes; ++a) {
    if (layout.axes[a].dim == dim) axes.push_back(layout.axes[a]);
  }
  Levels levels;
  for (;;) {
    std::erase_if(axes, [&](const cald_axis& axis) { return largest_part(axis, size) == 0; });
    uint64_t stride = 0, block = 0;
    for (const cald_axis& axis : axes) {
      if (axis.divisor == 1) stride += axis.stride / element_size;
      if (axis.divisor > 1)
        block = std::gcd(block, axis.divisor);
      else if (axis.modulus != 0 && axis.modulus < size)
        block = std::gcd(block, axis.modulus);
    }
    if (block == 0) {
      levels.push_back({size, stride, dense});
      return levels;
    }
    if (block == 1)
      return fail(Status::UNSUPPORTED, "the tiles of dimension %u do not nest in each other", dim);
    levels.push_back({block, stride, dense});
    size = ceil_div(size, block);
    dense *= block;
    for (cald_axis& axis : axes) {
      if (axis.divisor > 1) {
        axis.divisor /= block;
        continue;
      }
      axis.stride *= block;
      axis.modulus = axis.modulus % block == 0 ? axis.modulus / block : 0;
    }
  }
}

// [0, size) as boxes of whole levels: the digits of `size` in the levels' mixed radix.
std::vector<Segment> segments_of(const Levels& levels, uint64_t size) {
  uint64_t block = 1;  // elements of the dimension below the outermost level
  for (size_t l = 0; l + 1 < levels.size(); ++l) block *= levels[l].count;
  std::vector<Segment> segments;
  Segment at;
  for (size_t l = levels.size(); l-- > 0 && size > 0;) {
    const uint64_t digit = size / block;
    size %= block;
    if (digit > 0) {
      Segment segment = at;
      for (size_t below = 0; below < l; ++below)
        segment.loops.push_back({levels[below].count, levels[below].packed, levels[below].dense});
      segment.loops.push_back({digit, levels[l].packed, levels[l].dense});
      segments.push_back(std::move(segment));
    }
    at.packed += digit * levels[l].packed;
    at.dense += digit * levels[l].dense;
    if (l > 0) block /= levels[l - 1].count;
  }
  return segments;
}

// Appends inside the loops so far; one that the last continues becomes one with it.
void append(std::vector<StridedLoop>* loops, const StridedLoop& loop) {
  if (loop.count == 1) return;
  if (!loops->empty()) {
    StridedLoop& outer = loops->back();
    if (outer.packed == loop.packed * loop.count && outer.dense == loop.dense * loop.count) {
      outer = {outer.count * loop.count, loop.packed, loop.dense};
      return;
    }
  }
  loops->push_back(loop);
}

}  // namespace

Result<std::vector<LoopNest>> loop_nests(const cald_layout& layout, uint64_t element_size,
                                         const uint64_t* shape, uint32_t rank) {
  CALRT_TRY(check_axes(layout, element_size, shape, rank));
  for (uint32_t d = 0; d < rank; ++d) {
    if (shape[d] == 0) return std::vector<LoopNest>{};
  }
  std::vector<LoopNest> nests(1);
  uint64_t dense = 1;
  std::vector<std::vector<Segment>> segments(rank);
  for (uint32_t d = rank; d-- > 0;) {
    CALRT_TRY_ASSIGN(const Levels levels, levels_of(layout, element_size, d, shape[d], dense));
    segments[d] = segments_of(levels, shape[d]);
    dense *= shape[d];
  }
  for (uint32_t d = 0; d < rank; ++d) {
    std::vector<LoopNest> longer;
    for (const LoopNest& nest : nests) {
      for (const Segment& segment : segments[d]) {
        LoopNest next = nest;
        next.packed += segment.packed;
        next.dense += segment.dense;
        for (size_t l = segment.loops.size(); l-- > 0;) append(&next.loops, segment.loops[l]);
        longer.push_back(std::move(next));
      }
    }
    nests = std::move(longer);
  }
  for (LoopNest& nest : nests) {
    if (nest.loops.empty() || nest.loops.back().dense != 1) nest.loops.push_back({1, 1, 1});
  }
  return nests;
}

}  // namespace calrt
