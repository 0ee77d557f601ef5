// SPDX-License-Identifier: Apache-2.0
// The llama graph: rows of tokens through all layers, their keys and values into the lanes, logits
// out. Decode and prefill are the same function; a row's result depends on its own lane only.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "drivers/cpu/kernels.h"
#include "drivers/cpu/kv.h"
#include "drivers/cpu/memory.h"
#include "drivers/cpu/pool.h"
#include "drivers/cpu/weights.h"

namespace calrt::cpu {

// Everything is in range: checked before a job is accepted.
struct Row {
  uint32_t token, lane, position;
};

// A row whose logits are wanted, and where they go in units of `vocab` elements.
struct LogitRow {
  uint32_t row, slot;
};

struct Compute {
  const Kernels* kernels;
  Format linear;     // of the weights
  Format attention;  // of the lanes
  bool logits_bf16;
};

class Forward {
 public:
  static uint64_t bytes_needed(const Shape& shape, uint32_t max_rows, uint32_t cells,
                               uint32_t threads);
  // All references outlive this. `threads` is the most that a pool given to run() has.
  static Result<Forward> make(const Shape& shape, const Weights& weights, KvArena& kv,
                              const Compute& compute, uint32_t max_rows, uint32_t cells,
                              uint32_t threads);

  // False when `cancel` was seen set; lanes of the rows are then partly written. One call at a
  // time. No two rows may have the same lane and position.
  bool run(Pool& pool, const std::vector<Row>& rows, const std::vector<LogitRow>& wanted,
           void* logits, const std::atomic<bool>& cancel);

 private:
  struct Sizes;
  struct PerThread {
    float* tile;    // [kRowsPerTile][64]
    float* scores;  // [group][padded cells]
    void* probs;    // acts, the same shape
    float* mixed;   // [group][padded head_dim]
  };
  Forward(const Shape& shape, const Weights* weights, KvArena* kv, const Compute& compute)
      : shape_(&shape), weights_(weights), kv_(kv), compute_(compute) {}

  void fill_rope_table();
  void embed(Pool& pool, const std::vector<Row>& rows);
  void norm(Pool& pool, uint32_t rows, const float* weight);
  void store_qkv(Pool& pool, const std::vector<Row>& rows, uint32_t layer);
  void rotate(float* head, uint32_t position) const;
  void attend(Pool& pool, const std::vector<Row>& rows, uint32_t layer);
  void attend_one(const Row& row, uint32_t index, uint32_t layer, uint32_t kv_head,
                  const PerThread& own);
  void feed_forward(Pool& pool, uint32_t rows, const LayerWeights& layer);
  void write_logits(Pool& pool, const std::vector<LogitRow>& wanted, void* logits);

  // out(first_row, rows, column, columns, values): values[r * 64 + c] is the product for row
  // first_row + r and column column + c. Called once for every part of the result.
  template <class Out>
  void linear(Pool& pool, const Matrix& matrix, const void* acts, uint32_t stride, uint32_t rows,
              Out&& out);

  unsigned char* act(void* base, size_t element, Format format) const {
    return static_cast<unsigned char*>(base) + element * (*compute_.kernels)[format].act_bytes;
  }

  const Shape* shape_;
  const Weights* weights_;
  KvArena* kv_;
  Compute compute_;
  uint32_t cells_ = 0, cells_padded_ = 0;
  Block memory_;
  float* cosines_ = nullptr;  // [cells][rope_dim / 2]
  float* sines_ = nullptr;
  float* x_ = nullptr;       // residual [rows][padded embed]
  float* qkv_ = nullptr;     // [rows][padded qkv]
  void* normed_ = nullptr;   // acts [rows][padded embed]
  void* queries_ = nullptr;  // acts [rows][heads][padded head_dim]
  void* heads_ = nullptr;    // acts [rows][padded heads * head_dim]
  void* hidden_ = nullptr;   // acts [rows][padded ffn]
  std::vector<PerThread> per_thread_;
};

}  // namespace calrt::cpu
