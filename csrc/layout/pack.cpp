// SPDX-License-Identifier: Apache-2.0
#include "layout/pack.h"

#include <algorithm>
#include <cstring>

#include "base/copied_bytes.h"
#include "layout/convert.h"
#include "layout/kernels.h"
#include "layout/layout.h"
#include "layout/loops.h"

namespace calrt {
namespace {

// The source taken before rows whose tiles lie between each other take turns: such rows share cache
// lines, which are to be still there when the next row comes.
constexpr uint64_t kPanelBytes = 256 << 10;
constexpr StridedLoop kOnce = {1, 0, 0};

// The two loops that a block mover takes at once, and the rest around them.
struct Block {
  StridedLoop outer, inner;
  bool runs;  // the inner loop is contiguous on both sides; else the outer one may be in `packed`
  std::vector<StridedLoop> around;
};

Block block_of(const LoopNest& nest) {
  Block block{kOnce, nest.loops.back(), nest.loops.back().packed == 1, nest.loops};
  auto& around = block.around;
  around.pop_back();
  auto taken = std::find_if(around.begin(), around.end(),
                            [](const StridedLoop& loop) { return loop.packed == 1; });
  if (block.runs && !around.empty()) taken = around.end() - 1;
  if (taken == around.end()) return block;
  block.outer = *taken;
  around.erase(taken);
  return block;
}

// Calls move(block, packed, dense) until all of the nest is done.
template <class Element, class Move>
void for_each_block(const LoopNest& nest, Move&& move) {
  Block block = block_of(nest);
  std::vector<StridedLoop>& around = block.around;
  const StridedLoop whole = block.outer;
  const uint64_t step = std::max<uint64_t>(1, whole.packed) * sizeof(Element);
  const uint64_t panel =
      block.runs && !around.empty() ? std::max<uint64_t>(8, kPanelBytes / step) : whole.count;
  std::vector<uint64_t> index(around.size(), 0);
  for (uint64_t from = 0; from < whole.count; from += panel) {
    block.outer.count = std::min(panel, whole.count - from);
    uint64_t packed = nest.packed + from * whole.packed, dense = nest.dense + from * whole.dense;
    for (;;) {
      move(block, packed, dense);
      size_t l = around.size();
      for (; l > 0; --l) {
        const StridedLoop& loop = around[l - 1];
        packed += loop.packed;
        dense += loop.dense;
        if (++index[l - 1] < loop.count) break;
        index[l - 1] = 0;
        packed -= loop.packed * loop.count;
        dense -= loop.dense * loop.count;
      }
      if (l == 0) break;
    }
  }
}

void unpack_block(const Block& block, const uint16_t* src, float* dst, bool stream) {
  const ConvertKernels& kernels = convert_kernels();
  const auto& [outer, inner, runs, around] = block;
  if (runs)
    kernels.f32_from_bf16_runs(src, outer.packed, dst, outer.dense, inner.count, outer.count,
                               stream);
  else
    kernels.f32_from_bf16_transposed(src, inner.packed, dst, outer.dense, outer.count, inner.count);
}

void unpack_block(const Block& block, const float* src, float* dst, bool) {
  const auto& [outer, inner, runs, around] = block;
  if (runs) {
    for (uint64_t k = 0; k < outer.count; ++k)
      std::memcpy(dst + k * outer.dense, src + k * outer.packed, inner.count * sizeof *dst);
    return;
  }
  for (uint64_t c = 0; c < inner.count; ++c)
    for (uint64_t r = 0; r < outer.count; ++r)
      std::memcpy(dst + r * outer.dense + c, src + c * inner.packed + r * outer.packed,
                  sizeof *dst);
}

void pack_run(const float* src, uint16_t* dst, uint64_t n) {
  convert_kernels().bf16_from_f32(src, dst, n, false);
}
void pack_run(const float* src, float* dst, uint64_t n) { std::memcpy(dst, src, n * sizeof *dst); }

template <class Element>
void pack_block(const Block& block, const float* src, Element* dst) {
  const auto& [outer, inner, runs, around] = block;
  if (runs) {
    for (uint64_t k = 0; k < outer.count; ++k)
      pack_run(src + k * outer.dense, dst + k * outer.packed, inner.count);
    return;
  }
  // Convert as many neighbours as fit here, then put each in its place.
  constexpr uint64_t kPiece = 64;
  Element piece[kPiece];
  for (uint64_t from = 0; from < inner.count; from += kPiece) {
    const uint64_t n = std::min(kPiece, inner.count - from);
    for (uint64_t r = 0; r < outer.count; ++r) {
      pack_run(src + r * outer.dense + from, piece, n);
      Element* place = dst + r * outer.packed + from * inner.packed;
      for (uint64_t i = 0; i < n; ++i)
        std::memcpy(place + i * inner.packed, piece + i, sizeof *piece);
    }
  }
}

uint64_t elements_of(const uint64_t* shape, uint32_t rank) {
  uint64_t elements = 1;  // loop_nests() has checked the product
  for (uint32_t d = 0; d < rank; ++d) elements *= shape[d];
  return elements;
}

Result<void> check_dtype(int32_t dtype) {
  if (dtype == CALD_F32 || dtype == CALD_BF16) return {};
  return fail(Status::DTYPE_MISMATCH, "a layout of %s: f32 and bf16 can be read as f32",
              dtype_name(dtype));
}

template <class Element>
void unpack(const std::vector<LoopNest>& nests, const void* src, float* dst, bool stream) {
  for (const LoopNest& nest : nests)
    for_each_block<Element>(nest, [&](const Block& block, uint64_t packed, uint64_t dense) {
      unpack_block(block, static_cast<const Element*>(src) + packed, dst + dense, stream);
    });
}

template <class Element>
void pack(const std::vector<LoopNest>& nests, const float* src, void* dst) {
  for (const LoopNest& nest : nests)
    for_each_block<Element>(nest, [&](const Block& block, uint64_t packed, uint64_t dense) {
      pack_block(block, src + dense, static_cast<Element*>(dst) + packed);
    });
}

}  // namespace

Result<void> unpack_f32(const cald_layout& layout, int32_t dtype, const uint64_t* shape,
                        uint32_t rank, const void* src, float* dst) {
  CALRT_TRY(check_dtype(dtype));
  CALRT_TRY_ASSIGN(const auto nests, loop_nests(layout, dtype_size(dtype), shape, rank));
  if (nests.empty()) return {};
  count_copied(elements_of(shape, rank) * sizeof *dst);
  const bool stream = outgrows_caches(elements_of(shape, rank) * sizeof *dst);
  if (dtype == CALD_F32)
    unpack<float>(nests, src, dst, stream);
  else
    unpack<uint16_t>(nests, src, dst, stream);
  return {};
}

Result<void> pack_f32(const cald_layout& layout, int32_t dtype, const uint64_t* shape,
                      uint32_t rank, const float* src, void* dst) {
  CALRT_TRY(check_dtype(dtype));
  CALRT_TRY_ASSIGN(const auto nests, loop_nests(layout, dtype_size(dtype), shape, rank));
  if (nests.empty()) return {};
  cald_layout used = layout;  // no matter what extents it names
  for (uint32_t a = 0; a < used.n_axes; ++a)
    used.axes[a].extent = largest_part(used.axes[a], shape[used.axes[a].dim]) + 1;
  CALRT_TRY(check_injective(used, dtype_size(dtype)));
  if (dtype == CALD_F32)
    pack<float>(nests, src, dst);
  else
    pack<uint16_t>(nests, src, dst);
  return {};
}

}  // namespace calrt
