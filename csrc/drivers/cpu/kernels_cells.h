// SPDX-License-Identifier: Apache-2.0
// The kernels that move cells between panels and rows, over small tiles; see CellKernels. Same
// rules as kernels_impl.h: internal linkage, no inline library function.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "drivers/cpu/kernels.h"
#include "drivers/cpu/simd_macros.h"

namespace {

// Tiles in plain vectors of 16 bytes, which every 64-bit target has.
struct PortableTiles {
  typedef uint32_t U4 __attribute__((vector_size(16)));
  typedef uint16_t H8 __attribute__((vector_size(16)));
  static constexpr size_t kTile = 4;   // words, each way
  static constexpr size_t kPairs = 8;  // of a step of split and join
  template <class T>
  CALRT_INLINE static T load(const unsigned char* p) {
    T v;
    memcpy(&v, p, sizeof v);
    return v;
  }
  template <class T>
  CALRT_INLINE static void store(unsigned char* p, T v) {
    memcpy(p, &v, sizeof v);
  }

  CALRT_INLINE static void transpose(const unsigned char* src, size_t src_stride,
                                     unsigned char* dst, size_t dst_stride, bool) {
    const U4 a = load<U4>(src), b = load<U4>(src + src_stride);
    const U4 c = load<U4>(src + 2 * src_stride), d = load<U4>(src + 3 * src_stride);
    const U4 ab_lo = {a[0], b[0], a[1], b[1]}, ab_hi = {a[2], b[2], a[3], b[3]};
    const U4 cd_lo = {c[0], d[0], c[1], d[1]}, cd_hi = {c[2], d[2], c[3], d[3]};
    store(dst, U4{ab_lo[0], ab_lo[1], cd_lo[0], cd_lo[1]});
    store(dst + dst_stride, U4{ab_lo[2], ab_lo[3], cd_lo[2], cd_lo[3]});
    store(dst + 2 * dst_stride, U4{ab_hi[0], ab_hi[1], cd_hi[0], cd_hi[1]});
    store(dst + 3 * dst_stride, U4{ab_hi[2], ab_hi[3], cd_hi[2], cd_hi[3]});
  }
  CALRT_INLINE static void split(const unsigned char* pairs, unsigned char* first,
                                 unsigned char* second, bool) {
    const H8 a = load<H8>(pairs), b = load<H8>(pairs + 16);
    store(first, H8{a[0], a[2], a[4], a[6], b[0], b[2], b[4], b[6]});
    store(second, H8{a[1], a[3], a[5], a[7], b[1], b[3], b[5], b[7]});
  }
  CALRT_INLINE static void join(const unsigned char* first, const unsigned char* second,
                                unsigned char* pairs, bool) {
    const H8 a = load<H8>(first), b = load<H8>(second);
    store(pairs, H8{a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]});
    store(pairs + 16, H8{a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]});
  }
  CALRT_INLINE static void fence() {}
};

// Streaming stores pay where they fill whole lines.
CALRT_INLINE bool whole_lines(const void* target, size_t stride) {
  return ((uintptr_t)target | stride) % 64 == 0;
}

template <class Tiles>
void transpose_cells(const void* src, size_t src_stride, size_t rows, size_t columns, void* dst,
                     size_t dst_stride, bool stream) {
  constexpr size_t kTile = Tiles::kTile;
  const auto* from = (const unsigned char*)src;
  auto* to = (unsigned char*)dst;
  stream = stream && whole_lines(dst, dst_stride) && rows % 16 == 0;
  const size_t tiled_rows = rows / kTile * kTile, tiled_columns = columns / kTile * kTile;
  for (size_t c = 0; c < tiled_columns; c += kTile)
    for (size_t r = 0; r < tiled_rows; r += kTile)
      Tiles::transpose(from + r * src_stride + c * 4, src_stride, to + c * dst_stride + r * 4,
                       dst_stride, stream);
  for (size_t c = 0; c < columns; ++c)
    for (size_t r = c < tiled_columns ? tiled_rows : 0; r < rows; ++r)
      memcpy(to + c * dst_stride + r * 4, from + r * src_stride + c * 4, 4);
}

template <class Tiles>
void split_pairs(const void* panel, size_t n_pairs, size_t width, void* rows, size_t stride,
                 bool stream) {
  const size_t tiled = width / Tiles::kPairs * Tiles::kPairs;
  stream = stream && whole_lines(rows, stride) && width % 32 == 0;
  for (size_t p = 0; p < n_pairs; ++p) {
    const unsigned char* pairs = (const unsigned char*)panel + p * calrt::cpu::kPanel * 4;
    unsigned char* first = (unsigned char*)rows + 2 * p * stride;
    unsigned char* second = first + stride;
    for (size_t i = 0; i < tiled; i += Tiles::kPairs)
      Tiles::split(pairs + i * 4, first + i * 2, second + i * 2, stream);
    for (size_t i = tiled; i < width; ++i) {
      memcpy(first + i * 2, pairs + i * 4, 2);
      memcpy(second + i * 2, pairs + i * 4 + 2, 2);
    }
  }
}

template <class Tiles>
void join_pairs(const void* rows, size_t stride, size_t n_pairs, size_t width, void* panel,
                bool stream) {
  const size_t tiled = width / Tiles::kPairs * Tiles::kPairs;
  stream = stream && whole_lines(panel, 0) && width % 32 == 0;
  for (size_t p = 0; p < n_pairs; ++p) {
    const unsigned char* first = (const unsigned char*)rows + 2 * p * stride;
    const unsigned char* second = first + stride;
    unsigned char* pairs = (unsigned char*)panel + p * calrt::cpu::kPanel * 4;
    for (size_t i = 0; i < tiled; i += Tiles::kPairs)
      Tiles::join(first + i * 2, second + i * 2, pairs + i * 4, stream);
    for (size_t i = tiled; i < width; ++i) {
      memcpy(pairs + i * 4, first + i * 2, 2);
      memcpy(pairs + i * 4 + 2, second + i * 2, 2);
    }
  }
}

template <class Tiles>
void fence_cells() {
  Tiles::fence();
}

template <class Tiles>
constexpr calrt::cpu::CellKernels make_cells() {
  return {transpose_cells<Tiles>, split_pairs<Tiles>, join_pairs<Tiles>, fence_cells<Tiles>};
}

}  // namespace
