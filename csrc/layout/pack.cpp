// SPDX-License-Identifier: Apache-2.0
#include "layout/pack.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/checked.h"
#include "base/copied_bytes.h"
#include "layout/convert.h"
#include "layout/kernels.h"
#include "layout/layout.h"
#include "layout/loops.h"

namespace calrt {
namespace {

// The source taken before rows whose tiles lie between each other take turns: such rows share cache
// lines, which are to be still there when the next row comes.
constexpr uint64_t kPanelBytes = 8 << 10;
// With streaming stores a turn is also to be long enough for memory to take it as one piece.
constexpr uint64_t kStreamedPanelBytes = 16 << 10, kStreamedTurn = 512;
constexpr uint64_t kLineBytes = 64, kLineFloats = kLineBytes / sizeof(float);
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

// Calls visit(packed, dense) for each combination of the loops.
template <class Visit>
void for_each_offset(const std::vector<StridedLoop>& loops, Visit&& visit) {
  std::vector<uint64_t> index(loops.size(), 0);
  uint64_t packed = 0, dense = 0;
  for (;;) {
    visit(packed, dense);
    size_t l = loops.size();
    for (; l > 0; --l) {
      const StridedLoop& loop = loops[l - 1];
      packed += loop.packed;
      dense += loop.dense;
      if (++index[l - 1] < loop.count) break;
      index[l - 1] = 0;
      packed -= loop.packed * loop.count;
      dense -= loop.dense * loop.count;
    }
    if (l == 0) return;
  }
}

// The next panel, fetched in the order in which it lies, a share at each turn: the turns themselves
// leap too far for the hardware to foresee.
class Ahead {
 public:
  // `blocks` blocks `step` bytes apart, the first `span` bytes of each.
  Ahead(const void* at, uint64_t blocks, uint64_t step, uint64_t span, uint64_t turns)
      : at_(static_cast<const char*>(at)),
        step_(step),
        lines_(ceil_div(span, kLineBytes)),
        left_(blocks * lines_),
        share_(ceil_div(left_, turns)) {}

  void fetch_share() {
    const uint64_t share = std::min(share_, left_);
    left_ -= share;
    for (uint64_t i = 0; i < share; ++i) {
      __builtin_prefetch(at_ + line_ * kLineBytes);
      if (++line_ < lines_) continue;
      line_ = 0;
      at_ += step_;
    }
  }

 private:
  const char* at_;
  uint64_t step_, lines_, left_, share_, line_ = 0;
};

// What the turns of a panel read of each block of the source: `span` bytes of every `step`.
struct Reads {
  uint64_t step, span, turns;
};

template <class Element>
Reads reads_of(const Block& block) {
  Reads reads{block.outer.packed * sizeof(Element), block.inner.count, 1};
  for (const StridedLoop& loop : block.around) {
    reads.turns *= loop.count;
    reads.span += (loop.count - 1) * loop.packed;
  }
  reads.span = std::max<uint64_t>(1, std::min(reads.span, block.outer.packed)) * sizeof(Element);
  return reads;
}

// Calls move(block, packed, dense) until all of the nest is done. `src`: what is read in the order
// of `packed`; null if it is written.
template <class Element, class Move>
void for_each_block(const LoopNest& nest, const Element* src, Move&& move) {
  Block block = block_of(nest);
  const StridedLoop whole = block.outer;
  const Reads reads = reads_of<Element>(block);
  const uint64_t panel = block.runs && !block.around.empty()
                             ? std::max<uint64_t>(8, kPanelBytes / reads.span)
                             : whole.count;
  for (uint64_t from = 0; from < whole.count; from += panel) {
    const uint64_t to = std::min(whole.count, from + panel);
    block.outer.count = to - from;
    // What lies without gaps the hardware foresees by itself.
    const bool foresee = src != nullptr && reads.span < reads.step && to < whole.count;
    Ahead ahead(foresee ? src + nest.packed + to * whole.packed : nullptr,
                foresee ? std::min(panel, whole.count - to) : 0, reads.step, reads.span,
                reads.turns);
    for_each_offset(block.around, [&](uint64_t packed, uint64_t dense) {
      ahead.fetch_share();
      move(block, nest.packed + from * whole.packed + packed,
           nest.dense + from * whole.dense + dense);
    });
  }
}

// Runs of one row, next to each other in the result, in between others in the source.
struct Row {
  const uint16_t* src;
  uint64_t step, run, runs;
  float* dst;

  // The element at the start of the first cache line from `at` on, or the end of the row.
  uint64_t line_from(uint64_t at) const {
    const uint64_t bytes = -reinterpret_cast<uintptr_t>(dst + at) & (kLineBytes - 1);
    return std::min(runs * run, at + bytes / sizeof(float));
  }
};

template <uint64_t Run>
void gather(const Row& row, uint64_t first, uint64_t count, uint16_t* to) {
  for (uint64_t k = 0; k < count; ++k)
    std::memcpy(to + k * Run, row.src + (first + k) * row.step, Run * sizeof *to);
}

// What one turn stores at most, and the length from which a run is a turn of its own.
constexpr uint64_t kLongestTurn = 2048, kLongRun = 512;

// Elements [begin, end) of a row, whole lines around the caches. Gathered first, since lines begin
// within runs.
void stream_elements(const Row& row, uint64_t begin, uint64_t end) {
  alignas(kLineBytes) uint16_t gathered[kLongestTurn + kLineFloats + 2 * kLongRun];
  const uint64_t first = begin / row.run, count = ceil_div(end, row.run) - first;
  if (row.run == 8)
    gather<8>(row, first, count, gathered);
  else if (row.run == 16)
    gather<16>(row, first, count, gathered);
  else if (row.run == 32)
    gather<32>(row, first, count, gathered);
  else
    for (uint64_t k = 0; k < count; ++k)
      std::memcpy(gathered + k * row.run, row.src + (first + k) * row.step,
                  row.run * sizeof *gathered);
  const ConvertKernels& kernels = convert_kernels();
  const auto from = [&](uint64_t at) { return gathered + (at - first * row.run); };
  const uint64_t lines = std::min(end, row.line_from(begin));
  const uint64_t tail = end - (end - lines) % kLineFloats;
  kernels.f32_from_bf16(from(begin), row.dst + begin, lines - begin, false);
  kernels.f32_from_bf16_lines(from(lines), row.dst + lines, tail - lines);
  kernels.f32_from_bf16(from(tail), row.dst + tail, end - tail, false);
}

// Whether rows can be streamed: their runs are short and next to each other in the result, whose
// lines are made of floats.
bool streams(const Block& block, const float* dst) {
  return block.runs && block.outer.dense == block.inner.count && block.inner.count < kLongRun &&
         reinterpret_cast<uintptr_t>(dst) % sizeof *dst == 0;
}

void stream_rows(const LoopNest& nest, const Block& block, const uint16_t* src, float* dst) {
  const StridedLoop &outer = block.outer, &inner = block.inner;
  const std::vector<StridedLoop>& around = block.around;
  const Reads reads = reads_of<uint16_t>(block);
  const uint64_t panel =
      std::clamp(kStreamedPanelBytes / reads.span, ceil_div(kStreamedTurn, inner.count),
                 kLongestTurn / inner.count);
  for (uint64_t from = 0; from < outer.count; from += panel) {
    const uint64_t to = std::min(outer.count, from + panel);
    Ahead ahead(src + nest.packed + to * outer.packed, std::min(panel, outer.count - to),
                reads.step, reads.span, reads.turns);
    for_each_offset(around, [&](uint64_t packed, uint64_t dense) {
      ahead.fetch_share();
      const Row row{src + nest.packed + packed, outer.packed, inner.count, outer.count,
                    dst + nest.dense + dense};
      stream_elements(row, from == 0 ? 0 : row.line_from(from * row.run),
                      to == row.runs ? to * row.run : row.line_from(to * row.run));
    });
  }
  convert_kernels().fence();
}

// Tiles that their rows fill, with short runs; false for all else.
bool unpack_filled_tiles(const LoopNest& nest, const Block& block, const uint16_t* src,
                         float* dst) {
  const auto& [outer, inner, runs, around] = block;
  if (!runs || around.empty() || inner.count >= kLongRun) return false;
  std::vector<StridedLoop> rest = around;
  const auto least = std::min_element(
      rest.begin(), rest.end(),
      [](const StridedLoop& a, const StridedLoop& b) { return a.packed < b.packed; });
  const StridedLoop rows = *least;
  if (rows.packed == 0 || rows.packed * rows.count != outer.packed) return false;
  rest.erase(least);
  const ConvertKernels& kernels = convert_kernels();
  for_each_offset(rest, [&](uint64_t packed, uint64_t dense) {
    kernels.f32_from_bf16_rows(src + nest.packed + packed, block.outer.packed, rows.packed,
                               dst + nest.dense + dense, block.outer.dense, rows.dense,
                               block.inner.count, block.outer.count, rows.count);
  });
  return true;
}

void unpack_block(const Block& block, const uint16_t* src, float* dst, bool stream) {
  const ConvertKernels& kernels = convert_kernels();
  const auto& [outer, inner, runs, around] = block;
  if (runs && inner.count >= kLongRun)
    for (uint64_t k = 0; k < outer.count; ++k)
      kernels.f32_from_bf16(src + k * outer.packed, dst + k * outer.dense, inner.count, stream);
  else if (runs)
    kernels.f32_from_bf16_runs(src, outer.packed, dst, outer.dense, inner.count, outer.count);
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
void unpack(const std::vector<LoopNest>& nests, const void* memory, float* dst, bool stream) {
  const auto* src = static_cast<const Element*>(memory);
  for (const LoopNest& nest : nests) {
    if constexpr (std::is_same_v<Element, uint16_t>) {
      const Block block = block_of(nest);
      if (stream && streams(block, dst)) {
        stream_rows(nest, block, src, dst);
        continue;
      }
      if (unpack_filled_tiles(nest, block, src, dst)) continue;
    }
    for_each_block(nest, src, [&](const Block& block, uint64_t packed, uint64_t dense) {
      unpack_block(block, src + packed, dst + dense, stream);
    });
  }
}

template <class Element>
void pack(const std::vector<LoopNest>& nests, const float* src, void* dst) {
  for (const LoopNest& nest : nests)
    for_each_block<Element>(nest, nullptr,
                            [&](const Block& block, uint64_t packed, uint64_t dense) {
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
