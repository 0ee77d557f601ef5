// SPDX-License-Identifier: Apache-2.0
// The conversion loops over a set of vector operations. Included once by each kernels_<isa>.cpp,
// which is compiled with that set's flags; everything here has internal linkage and uses no inline
// library function, so that the linker cannot pick code for one instruction set into another.
//
// A set V has
//   kLanes                     elements of one step of narrow() and widen()
//   kStreams                   whether *_stream exist, which need dst aligned to a vector
//   narrow, widen(src, dst)    convert kLanes elements, any alignment
//   narrow_stream, widen_stream(src, dst), fence()
//   widen8(src, dst)           converts eight
//   transpose(src, src_step, dst, dst_step)   kBlockRows x kBlockColumns, widened
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "layout/kernels.h"

namespace {

constexpr size_t kBlockRows = 4, kBlockColumns = 8;
// Ahead of a stream's loads; the hardware's own prefetch stops at each page.
constexpr size_t kPrefetchBytes = 1024;
constexpr size_t kLineBytes = 64;
// Arrays from this length on begin with a vector of any alignment, whose rest the next one does
// again, so that no later store lies across two lines.
constexpr size_t kAlignFrom = 256, kStoreBytes = 32;
// Arrays from this length on, which may well lie outside the second-level cache, go in quarters.
constexpr size_t kQuartersFrom = 1 << 14;
// Runs so far apart that a page, where the hardware's prefetch ends, has few of them.
constexpr size_t kFarBytes = 1024, kPrefetchRuns = 16;
// Source of one turn of rows that lie between each other: small, so that it is read as it lies,
// which the hardware's prefetch foresees.
constexpr size_t kTurnBytes = 1024, kLeastTurn = 4;

// Integer arithmetic only: hardware BF16 conversion flushes subnormals, and a NaN whose payload
// lies in the dropped half must not become an infinity.
inline void narrow_one(const float* src, uint16_t* dst) {
  uint32_t bits;
  memcpy(&bits, src, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = ((bits >> 16) & 0x8000u) | 0x7fc0u;
  const uint16_t half = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  memcpy(dst, &half, sizeof half);
}

inline void widen_one(const uint16_t* src, float* dst) {
  uint16_t half;
  memcpy(&half, src, sizeof half);
  const uint32_t bits = (uint32_t)half << 16;
  memcpy(dst, &bits, sizeof bits);
}

// Elements of dst before the first address that is a multiple of `bytes`; 0 if none is.
template <class T>
size_t elements_to(size_t bytes, const T* dst) {
  const size_t rest = (size_t)(-(uintptr_t)dst & (bytes - 1));
  return rest % sizeof(T) != 0 ? 0 : rest / sizeof(T);
}

// Elements before the first one at the start of a cache line; n if there is none.
template <class T>
size_t elements_to_line(const T* dst, size_t n) {
  const size_t head = elements_to(kLineBytes, dst);
  return (uintptr_t)dst % sizeof(T) != 0 || head > n ? n : head;
}

// Converts whole lines of n elements and returns how many elements they hold. The four quarters go
// side by side: one core waits for memory, and four places keep more of it busy than one.
template <size_t Lanes, class From, class To, class Step>
size_t in_quarters(const From* src, To* dst, size_t n, Step step) {
  constexpr size_t kElements = Lanes * sizeof(To) < kLineBytes ? kLineBytes / sizeof(To) : Lanes;
  constexpr size_t kQuarters = 4;
  const size_t quarter = n / (kQuarters * kElements) * kElements;
  for (size_t begin = 0; begin < quarter; begin += kElements) {
    for (size_t q = 0; q < kQuarters; ++q) {
      const size_t at = q * quarter + begin;
      for (size_t byte = 0; byte < kElements * sizeof(From); byte += kLineBytes)
        __builtin_prefetch((const char*)(src + at) + kPrefetchBytes + byte);
      for (size_t i = at; i < at + kElements; i += Lanes) step(src + i, dst + i);
    }
  }
  return kQuarters * quarter;
}

template <class V>
struct Convert {
  static void narrow(const float* src, uint16_t* dst, size_t n, bool stream) {
    size_t i = 0;
    if constexpr (V::kStreams) {
      const size_t head = stream ? elements_to_line(dst, n) : n;
      if (head < n) {
        for (; i < head; ++i) narrow_one(src + i, dst + i);
        i += in_quarters<V::kLanes>(src + i, dst + i, n - i, V::narrow_stream);
        V::fence();
      }
    }
    if constexpr (V::kLanes * sizeof *dst >= kStoreBytes) {
      if (i == 0 && n >= kAlignFrom) {
        V::narrow(src, dst);
        i = elements_to(kStoreBytes, dst);
        if (n >= kQuartersFrom) i += in_quarters<V::kLanes>(src + i, dst + i, n - i, V::narrow);
      }
    }
    for (; i + V::kLanes <= n; i += V::kLanes) V::narrow(src + i, dst + i);
    if (i < n && n >= V::kLanes) {  // the last vector once more, up to the end
      V::narrow(src + n - V::kLanes, dst + n - V::kLanes);
      return;
    }
    for (; i < n; ++i) narrow_one(src + i, dst + i);
  }

  static void widen(const uint16_t* src, float* dst, size_t n, bool stream) {
    size_t i = 0;
    if constexpr (V::kStreams) {
      const size_t head = stream ? elements_to_line(dst, n) : n;
      if (head < n) {
        for (; i < head; ++i) widen_one(src + i, dst + i);
        i += in_quarters<V::kLanes>(src + i, dst + i, n - i, V::widen_stream);
        V::fence();
      }
    }
    if constexpr (V::kLanes * sizeof *dst >= kStoreBytes) {
      if (i == 0 && n >= kAlignFrom) {
        V::widen(src, dst);
        i = elements_to(kStoreBytes, dst);
        if (n >= kQuartersFrom) i += in_quarters<V::kLanes>(src + i, dst + i, n - i, V::widen);
      }
    }
    for (; i + V::kLanes <= n; i += V::kLanes) V::widen(src + i, dst + i);
    if (i < n && n >= V::kLanes) {  // the last vector once more, up to the end
      V::widen(src + n - V::kLanes, dst + n - V::kLanes);
      return;
    }
    for (; i + 8 <= n; i += 8) V::widen8(src + i, dst + i);
    for (; i < n; ++i) widen_one(src + i, dst + i);
  }

  // A run of known length needs no loop.
  template <size_t Run>
  static void widen_tiles(const uint16_t* src, size_t src_step, float* dst, size_t dst_step,
                          size_t count) {
    constexpr size_t kVectors = Run / V::kLanes * V::kLanes;
    const bool far = src_step * sizeof *src >= kFarBytes;
    for (size_t k = 0; k < count; ++k, src += src_step, dst += dst_step) {
      if (far) __builtin_prefetch((const char*)src + kPrefetchRuns * src_step * sizeof *src);
      for (size_t i = 0; i < kVectors; i += V::kLanes) V::widen(src + i, dst + i);
      for (size_t i = kVectors; i < Run; i += 8) V::widen8(src + i, dst + i);
    }
  }

  static void widen_runs(const uint16_t* src, size_t src_step, float* dst, size_t dst_step,
                         size_t run, size_t count) {
    // The tile sizes of known devices; any other runs the general loop.
    if (run == 8) return widen_tiles<8>(src, src_step, dst, dst_step, count);
    if (run == 16) return widen_tiles<16>(src, src_step, dst, dst_step, count);
    if (run == 32) return widen_tiles<32>(src, src_step, dst, dst_step, count);
    for (size_t k = 0; k < count; ++k) widen(src + k * src_step, dst + k * dst_step, run, false);
  }

  // Run: the length of a run where it is one of those above, else 0.
  template <size_t Run>
  static void widen_turns(const uint16_t* src, size_t src_step, size_t src_row, float* dst,
                          size_t dst_step, size_t dst_row, size_t run, size_t count, size_t rows) {
    const size_t most = kTurnBytes / (src_step * sizeof *src);
    const size_t turn = most > kLeastTurn ? most : kLeastTurn;
    for (size_t k = 0; k < count; k += turn) {
      const size_t runs = count - k < turn ? count - k : turn;
      for (size_t r = 0; r < rows; ++r) {
        const uint16_t* from = src + k * src_step + r * src_row;
        float* to = dst + k * dst_step + r * dst_row;
        if constexpr (Run > 0)
          widen_tiles<Run>(from, src_step, to, dst_step, runs);
        else
          widen_runs(from, src_step, to, dst_step, run, runs);
      }
    }
  }

  static void widen_rows(const uint16_t* src, size_t src_step, size_t src_row, float* dst,
                         size_t dst_step, size_t dst_row, size_t run, size_t count, size_t rows) {
    const auto turns = run == 8    ? widen_turns<8>
                       : run == 16 ? widen_turns<16>
                       : run == 32 ? widen_turns<32>
                                   : widen_turns<0>;
    turns(src, src_step, src_row, dst, dst_step, dst_row, run, count, rows);
  }

  static void widen_lines(const uint16_t* src, float* dst, size_t n) {
    size_t i = 0;
    if constexpr (V::kStreams)
      for (; i + V::kLanes <= n; i += V::kLanes) V::widen_stream(src + i, dst + i);
    widen(src + i, dst + i, n - i, false);
  }

  static void fence() {
    if constexpr (V::kStreams) V::fence();
  }

  static void widen_transposed(const uint16_t* src, size_t src_step, float* dst, size_t dst_step,
                               size_t rows, size_t columns) {
    const size_t whole_rows = rows - rows % kBlockRows;
    const size_t whole_columns = columns - columns % kBlockColumns;
    for (size_t c = 0; c < whole_columns; c += kBlockColumns)
      for (size_t r = 0; r < whole_rows; r += kBlockRows)
        V::transpose(src + c * src_step + r, src_step, dst + r * dst_step + c, dst_step);
    for (size_t c = 0; c < columns; ++c)
      for (size_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
        widen_one(src + c * src_step + r, dst + r * dst_step + c);
  }

  static constexpr calrt::ConvertKernels kernels() {
    return {narrow, widen, widen_runs, widen_rows, widen_transposed, widen_lines, fence};
  }
};

}  // namespace
