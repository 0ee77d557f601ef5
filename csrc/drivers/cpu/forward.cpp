// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/forward.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "drivers/cpu/parallel.h"
#include "layout/convert.h"

namespace calrt::cpu {
namespace {

// Rows that a task multiplies before it hands them on: a multiple of every tile height, and small
// enough that the products stay in the first-level cache.
constexpr uint32_t kRowsPerTile = 48;
constexpr uint32_t kTileColumns = 64;

struct Carver {
  unsigned char* base;
  uint64_t used = 0;
  template <class T = void>
  T* take(uint64_t elements) {  // of 4 bytes, the largest any act has
    const auto address = reinterpret_cast<uintptr_t>(base) + used;
    used += (elements * 4 + 127) / 64 * 64;
    return reinterpret_cast<T*>(address);
  }
};

}  // namespace

struct Forward::Sizes {
  static uint64_t carve(Forward& f, const Shape& s, uint32_t rows, uint32_t threads,
                        unsigned char* base) {
    Carver carver{base};
    const uint64_t r = rows;
    f.cosines_ = carver.take<float>(uint64_t{f.cells_} * (s.rope_dim / 2));
    f.sines_ = carver.take<float>(uint64_t{f.cells_} * (s.rope_dim / 2));
    f.x_ = carver.take<float>(r * padded(s.embed));
    f.qkv_ = carver.take<float>(r * padded(s.qkv_width()));
    f.normed_ = carver.take(r * padded(s.embed));
    f.queries_ = carver.take(r * s.heads * padded(s.head_dim));
    f.heads_ = carver.take(r * padded(s.q_width()));
    f.hidden_ = carver.take(r * padded(s.ffn));
    f.per_thread_.resize(threads);
    for (PerThread& own : f.per_thread_) {
      own.tile = carver.take<float>(kRowsPerTile * kTileColumns);
      own.scores = carver.take<float>(uint64_t{s.group()} * f.cells_padded_);
      own.probs = carver.take(uint64_t{s.group()} * f.cells_padded_);
      own.mixed = carver.take<float>(uint64_t{s.group()} * padded(s.head_dim));
    }
    return carver.used;
  }
};

uint64_t Forward::bytes_needed(const Shape& shape, uint32_t max_rows, uint32_t cells,
                               uint32_t threads) {
  Forward sized(shape, nullptr, nullptr, {});
  sized.cells_ = cells;
  sized.cells_padded_ = padded(cells);
  return Sizes::carve(sized, shape, max_rows, threads, nullptr);
}

Result<Forward> Forward::make(const Shape& shape, const Weights& weights, KvArena& kv,
                              const Compute& compute, uint32_t max_rows, uint32_t cells,
                              uint32_t threads) {
  Forward f(shape, &weights, &kv, compute);
  f.cells_ = cells;
  f.cells_padded_ = padded(cells);
  const uint64_t bytes = Sizes::carve(f, shape, max_rows, threads, nullptr);
  CALRT_TRY_ASSIGN(f.memory_, Block::make(bytes, "scratch"));
  Sizes::carve(f, shape, max_rows, threads, f.memory_.as());
  f.fill_rope_table();
  return f;
}

void Forward::fill_rope_table() {
  const uint32_t half = shape_->rope_dim / 2;
  for (uint32_t i = 0; i < half; ++i) {
    const double frequency = shape_->rope_frequency(i);
    for (uint32_t p = 0; p < cells_; ++p) {
      cosines_[size_t{p} * half + i] = static_cast<float>(std::cos(p * frequency));
      sines_[size_t{p} * half + i] = static_cast<float>(std::sin(p * frequency));
    }
  }
}

template <class Out>
void Forward::linear(Pool& pool, const Matrix& matrix, const void* acts, uint32_t stride,
                     uint32_t rows, Out&& out) {
  const FormatKernels& k = (*compute_.kernels)[compute_.linear];
  const auto tasks = static_cast<uint32_t>((matrix.panels() + 1) / 2);
  parallel(pool, tasks, [&](uint32_t task, uint32_t thread) {
    const size_t panel = size_t{task} * 2;
    const size_t count = std::min<size_t>(2, matrix.panels() - panel);
    float* tile = per_thread_[thread].tile;
    for (uint32_t r = 0; r < rows; r += kRowsPerTile) {
      const uint32_t n = std::min(kRowsPerTile, rows - r);
      k.matmul(static_cast<const unsigned char*>(acts) + size_t{r} * stride * k.act_bytes, stride,
               n, matrix.panel(panel), matrix.panel_bytes(), count, matrix.depth, tile,
               kTileColumns);
      const auto column = static_cast<uint32_t>(panel * 32);
      const uint32_t columns = std::min(static_cast<uint32_t>(count * 32), matrix.columns - column);
      out(r, n, column, columns, tile);
    }
  });
}

void Forward::embed(Pool& pool, const std::vector<Row>& rows) {
  parallel(pool, static_cast<uint32_t>(rows.size()), [&](uint32_t r, uint32_t) {
    weights_->embedding.read_column(rows[r].token, x_ + size_t{r} * padded(shape_->embed));
  });
}

void Forward::norm(Pool& pool, uint32_t rows, const float* weight) {
  const FormatKernels& k = (*compute_.kernels)[compute_.linear];
  const uint32_t width = padded(shape_->embed);
  parallel(pool, rows, [&](uint32_t r, uint32_t) {
    k.rms_norm(x_ + size_t{r} * width, weight, width, shape_->embed, shape_->norm_eps,
               act(normed_, size_t{r} * width, compute_.linear));
  });
}

void Forward::feed_forward(Pool& pool, uint32_t rows, const LayerWeights& layer) {
  const FormatKernels& k = (*compute_.kernels)[compute_.linear];
  const uint32_t width = padded(shape_->embed), hidden = padded(shape_->ffn);
  linear(pool, layer.gate_up, normed_, width, rows,
         [&](uint32_t first, uint32_t n, uint32_t column, uint32_t, const float* values) {
           // 32 columns of gate, then the same 32 of up.
           for (uint32_t r = 0; r < n; ++r)
             k.silu_mul(values + r * kTileColumns, values + r * kTileColumns + 32, 32,
                        act(hidden_, size_t{first + r} * hidden + column / 2, compute_.linear));
         });
  linear(pool, layer.down, hidden_, hidden, rows,
         [&](uint32_t first, uint32_t n, uint32_t column, uint32_t columns, const float* values) {
           for (uint32_t r = 0; r < n; ++r)
             for (uint32_t c = 0; c < columns; ++c)
               x_[size_t{first + r} * width + column + c] += values[r * kTileColumns + c];
         });
}

void Forward::write_logits(Pool& pool, const std::vector<LogitRow>& wanted, void* logits) {
  if (wanted.empty()) return;
  const FormatKernels& k = (*compute_.kernels)[compute_.linear];
  const uint32_t width = padded(shape_->embed);
  const auto rows = static_cast<uint32_t>(wanted.size());
  parallel(pool, rows, [&](uint32_t r, uint32_t) {
    k.rms_norm(x_ + size_t{wanted[r].row} * width, weights_->output_norm, width, shape_->embed,
               shape_->norm_eps, act(normed_, size_t{r} * width, compute_.linear));
  });
  linear(pool, weights_->head, normed_, width, rows,
         [&](uint32_t first, uint32_t n, uint32_t column, uint32_t columns, const float* values) {
           for (uint32_t r = 0; r < n; ++r) {
             const size_t at = size_t{wanted[first + r].slot} * shape_->vocab + column;
             const float* row = values + r * kTileColumns;
             if (compute_.logits_bf16)
               bf16_from_f32(row, static_cast<uint16_t*>(logits) + at, columns);
             else
               std::memcpy(static_cast<float*>(logits) + at, row, columns * sizeof(float));
           }
         });
}

bool Forward::run(Pool& pool, const std::vector<Row>& rows, const std::vector<LogitRow>& wanted,
                  void* logits, const std::atomic<bool>& cancel) {
  const auto n = static_cast<uint32_t>(rows.size());
  const uint32_t width = padded(shape_->embed), qkv = padded(shape_->qkv_width());
  if (n == 0) return true;
  embed(pool, rows);
  for (uint32_t l = 0; l < shape_->layers; ++l) {
    if (cancel.load(std::memory_order_relaxed)) return false;
    const LayerWeights& layer = weights_->layers[l];
    norm(pool, n, layer.attn_norm);
    linear(pool, layer.qkv, normed_, width, n,
           [&](uint32_t first, uint32_t count, uint32_t column, uint32_t columns,
               const float* values) {
             for (uint32_t r = 0; r < count; ++r)
               std::memcpy(qkv_ + size_t{first + r} * qkv + column, values + r * kTileColumns,
                           columns * sizeof(float));
           });
    store_qkv(pool, rows, l);
    attend(pool, rows, l);
    linear(pool, layer.out, heads_, padded(shape_->q_width()), n,
           [&](uint32_t first, uint32_t count, uint32_t column, uint32_t columns,
               const float* values) {
             for (uint32_t r = 0; r < count; ++r)
               for (uint32_t c = 0; c < columns; ++c)
                 x_[size_t{first + r} * width + column + c] += values[r * kTileColumns + c];
           });
    norm(pool, n, layer.ffn_norm);
    feed_forward(pool, n, layer);
  }
  if (cancel.load(std::memory_order_relaxed)) return false;
  write_logits(pool, wanted, logits);
  return true;
}

}  // namespace calrt::cpu
