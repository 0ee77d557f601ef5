// SPDX-License-Identifier: Apache-2.0
// The compute kernels of one instruction set, as a table. All variants come from the templates in
// kernels_*.h over a small vector type, so they differ in speed and rounding, not in logic.
//
// Panels. A matrix W[columns, depth] is stored as panels of 32 columns, padded with zeros:
//   BF16  [columns / 32][depth / 2][32][2]      F32  [columns / 32][depth][32]
// K lanes are such matrices with cells as columns and head_dim as depth; V lanes have head_dim as
// columns and cells as depth. One micro-kernel serves all three.
//
// Exactness. Each output is one chain over depth in order, whatever the rows, threads or panels
// around it; every other reduction runs in 16 fixed lanes. So a row's bits depend on that row only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace calrt {
enum class Isa : int32_t;  // layout/isa.h, which brings more than a kernel file may include
}

namespace calrt::cpu {

inline constexpr uint32_t kPanel = 32;  // columns of a panel
inline constexpr uint32_t kPad = 32;    // rows of activations are padded to this many elements

// How activations and panels meet. "acts" are activations in the form of a format.
enum class Format : int32_t {
  F32 = 0,    // F32 acts, F32 panels
  BF16 = 1,   // acts rounded to BF16, BF16 panels, F32 sums
  MIXED = 2,  // F32 acts, BF16 panels
};

struct FormatKernels {
  uint32_t act_bytes;  // of one element of acts

  // out[r][c] = sum over k < depth of acts[r][k] * panels[c][k] for `panels` panels.
  // act_stride and out_stride in elements, panel_stride in bytes. Reads acts up to an even depth,
  // never a panel element at or beyond `depth`.
  void (*matmul)(const void* acts, size_t act_stride, size_t rows, const void* panels,
                 size_t panel_stride, size_t n_panels, size_t depth, float* out, size_t out_stride);
  // n is a multiple of 16 here and in the three below.
  void (*to_acts)(const float* x, size_t n, void* acts);
  // acts = x * w / rms(x); the mean is over n_real elements, those beyond are zero.
  void (*rms_norm)(const float* x, const float* weight, size_t n, size_t n_real, float eps,
                   void* acts);
  void (*silu_mul)(const float* gate, const float* up, size_t n, void* acts);
  // acts[i] = exp(scale * (scores[i] - max)) for i < n and 0 up to the next multiple of 16; returns
  // their sum. Scores at or beyond n are not looked at.
  float (*softmax)(const float* scores, size_t n, float scale, void* acts);
  // acts[i] = x[i] * scale; any n.
  void (*scale_to_acts)(const float* x, size_t n, float scale, void* acts);
};

// Cells of the lanes between panels and rows: bytes are moved, none is changed. Any alignment.
// `stream`: the target leaves the caches anyway, so stores may go around them; other threads see
// them after fence().
struct CellKernels {
  // dst[c][r] = src[r][c], words of 4 bytes; strides in bytes.
  void (*transpose)(const void* src, size_t src_stride, size_t rows, size_t columns, void* dst,
                    size_t dst_stride, bool stream);
  // A row of a BF16 panel holds `width` pairs: the first of each goes to row 2p, the second to row
  // 2p + 1, which are `stride` bytes apart. Panel rows are 32 pairs apart.
  void (*split_pairs)(const void* panel, size_t n_pairs, size_t width, void* rows, size_t stride,
                      bool stream);
  void (*join_pairs)(const void* rows, size_t stride, size_t n_pairs, size_t width, void* panel,
                     bool stream);
  void (*fence)();
};

struct Kernels {
  const char* isa;
  FormatKernels formats[3];  // by Format
  CellKernels cells;
  const FormatKernels& operator[](Format f) const { return formats[static_cast<int32_t>(f)]; }
};

const Kernels& kernels_of(Isa isa);  // `isa` must be compiled in

}  // namespace calrt::cpu
