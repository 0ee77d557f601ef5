// SPDX-License-Identifier: Apache-2.0
// The micro-kernel: formats (how an activation meets a panel element) and the register-tiled
// product. Included by kernels_impl.h only; all linkage is internal (see there).
#pragma once

#include "drivers/cpu/simd_macros.h"

namespace {

// kDepth: elements of depth in a 128-byte panel row. A step over one row is kPhases fused
// multiply-adds per column; tail_* is the step for a last row of which only the even element
// counts.

template <class S>
struct F32Core {
  using Simd = S;
  using Act = float;
  using Weight = typename S::V;
  static constexpr size_t kDepth = 1;
  static constexpr int kPhases = 1;
  CALRT_INLINE static Weight weight(const unsigned char* p, int) {
    return S::load((const float*)p);
  }
  CALRT_INLINE static typename S::V act(const Act* a, int) { return S::set1(*a); }
  CALRT_INLINE static typename S::V mac(typename S::V acc, typename S::V a, Weight w) {
    return S::fma(a, w, acc);
  }
  CALRT_INLINE static Weight tail_weight(const unsigned char* p) { return weight(p, 0); }
  CALRT_INLINE static typename S::V tail_act(const Act* a) { return act(a, 0); }
};

// BF16 panels widened to F32 on the way; the odd element first, as the hardware dot product does.
template <class S>
struct WideCore {
  using Simd = S;
  using Act = float;
  using Weight = typename S::V;
  static constexpr size_t kDepth = 2;
  static constexpr int kPhases = 2;
  CALRT_INLINE static Weight weight(const unsigned char* p, int phase) {
    return phase == 0 ? S::odd(p) : S::even(p);
  }
  CALRT_INLINE static typename S::V act(const Act* a, int phase) { return S::set1(a[1 - phase]); }
  CALRT_INLINE static typename S::V mac(typename S::V acc, typename S::V a, Weight w) {
    return S::fma(a, w, acc);
  }
  CALRT_INLINE static Weight tail_weight(const unsigned char* p) { return S::even(p); }
  CALRT_INLINE static typename S::V tail_act(const Act* a) { return S::set1(a[0]); }
};

// BF16 pairs through the dot-product instruction.
template <class S>
struct DotCore {
  using Simd = S;
  using Act = uint16_t;
  using Weight = typename S::W;
  static constexpr size_t kDepth = 2;
  static constexpr int kPhases = 1;
  CALRT_INLINE static uint32_t pair(const Act* a) {
    uint32_t bits;
    __builtin_memcpy(&bits, a, sizeof bits);
    return bits;
  }
  CALRT_INLINE static Weight weight(const unsigned char* p, int) { return S::load_pairs(p); }
  CALRT_INLINE static Weight act(const Act* a, int) { return S::set1_pair(pair(a)); }
  CALRT_INLINE static typename S::V mac(typename S::V acc, Weight a, Weight w) {
    return S::dot(acc, a, w);
  }
  CALRT_INLINE static Weight tail_weight(const unsigned char* p) {
    return S::even_only(S::load_pairs(p));
  }
  CALRT_INLINE static Weight tail_act(const Act* a) { return S::set1_pair(a[0]); }
};

constexpr size_t kBlockBytes = 64;  // 16 columns of a panel row
constexpr size_t kRowBytes = 128;
// Panels come from memory: a tile asks for both halves of the rows it will reach soon.
constexpr size_t kAhead = 2048;

// R rows by C blocks of 16 columns. `panel` points at the first block; a third and fourth block
// lie in the next panel.
template <class Core, int R, int C>
CALRT_INLINE void tile(const typename Core::Act* acts, size_t act_stride,
                       const unsigned char* panel, size_t panel_stride, size_t depth, float* out,
                       size_t out_stride) {
  using S = typename Core::Simd;
  typename S::V acc[R][C];
  CALRT_UNROLL
  for (int r = 0; r < R; ++r) CALRT_UNROLL
  for (int c = 0; c < C; ++c) acc[r][c] = S::zero();

  const size_t whole = depth / Core::kDepth;
  for (size_t k = 0; k < whole; ++k) {
    CALRT_UNROLL
    for (int phase = 0; phase < Core::kPhases; ++phase) {
      typename Core::Weight w[C];
      CALRT_UNROLL
      for (int c = 0; c < C; ++c)
        w[c] = Core::weight(panel + (c / 2) * panel_stride + (c % 2) * kBlockBytes, phase);
      CALRT_UNROLL
      for (int r = 0; r < R; ++r) {
        const auto a = Core::act(acts + r * act_stride + k * Core::kDepth, phase);
        CALRT_UNROLL
        for (int c = 0; c < C; ++c) acc[r][c] = Core::mac(acc[r][c], a, w[c]);
      }
    }
    CALRT_UNROLL
    for (int c = 0; c < (C + 1) / 2; ++c) {
      __builtin_prefetch(panel + c * panel_stride + kAhead);
      __builtin_prefetch(panel + c * panel_stride + kAhead + kBlockBytes);
    }
    panel += kRowBytes;
  }
  if (depth % Core::kDepth != 0) {
    CALRT_UNROLL
    for (int c = 0; c < C; ++c) {
      const auto w = Core::tail_weight(panel + (c / 2) * panel_stride + (c % 2) * kBlockBytes);
      CALRT_UNROLL
      for (int r = 0; r < R; ++r)
        acc[r][c] = Core::mac(acc[r][c], Core::tail_act(acts + r * act_stride + depth - 1), w);
    }
  }
  CALRT_UNROLL
  for (int r = 0; r < R; ++r) CALRT_UNROLL
  for (int c = 0; c < C; ++c) S::store(out + r * out_stride + c * 16, acc[r][c]);
}

// R rows by one or two neighbouring panels.
template <class Core, int R>
__attribute__((noinline)) void row_block(const typename Core::Act* acts, size_t act_stride,
                                         const unsigned char* panel, size_t panel_stride,
                                         size_t n_panels, size_t depth, float* out,
                                         size_t out_stride) {
  constexpr int kColumns = Core::Simd::columns(R);
  if (kColumns == 4 && n_panels == 2) {
    tile<Core, R, 4>(acts, act_stride, panel, panel_stride, depth, out, out_stride);
    return;
  }
  constexpr int kOne = kColumns == 1 ? 1 : 2;
  for (size_t p = 0; p < n_panels; ++p)
    for (int c = 0; c < 2; c += kOne)
      tile<Core, R, kOne>(acts, act_stride, panel + p * panel_stride + c * kBlockBytes,
                          panel_stride, depth, out + p * 32 + c * 16, out_stride);
}

template <class Core, int R>
CALRT_INLINE void dispatch(size_t rows, const typename Core::Act* acts, size_t act_stride,
                           const unsigned char* panel, size_t panel_stride, size_t n_panels,
                           size_t depth, float* out, size_t out_stride) {
  if (rows == R) {
    row_block<Core, R>(acts, act_stride, panel, panel_stride, n_panels, depth, out, out_stride);
  } else if constexpr (R > 1) {
    dispatch<Core, R - 1>(rows, acts, act_stride, panel, panel_stride, n_panels, depth, out,
                          out_stride);
  }
}

template <class Core>
void matmul(const void* acts, size_t act_stride, size_t rows, const void* panels,
            size_t panel_stride, size_t n_panels, size_t depth, float* out, size_t out_stride) {
  constexpr size_t kMax = Core::Simd::kMaxRows;
  const auto* a = (const typename Core::Act*)acts;
  const auto* w = (const unsigned char*)panels;
  for (size_t p = 0; p < n_panels; p += 2) {
    const size_t together = n_panels - p < 2 ? 1 : 2;
    // Blocks of nearly equal height: 8 rows as 4 + 4, not as 6 + 2.
    size_t blocks = (rows + kMax - 1) / kMax;
    for (size_t r = 0; r < rows; --blocks) {
      const size_t height = (rows - r + blocks - 1) / blocks;
      dispatch<Core, (int)kMax>(height, a + r * act_stride, act_stride, w + p * panel_stride,
                                panel_stride, together, depth, out + r * out_stride + p * 32,
                                out_stride);
      r += height;
    }
  }
}

}  // namespace
