// SPDX-License-Identifier: Apache-2.0
// The lanes: one fixed block of keys and values, in the panels that the micro-kernel reads.
//
// A lane's keys of one layer and KV head are a matrix of `cells` columns and head_dim depth, its
// values one of head_dim columns and `cells` depth. A cell is written whole and alone: no write
// touches another cell, and no result depends on a cell beyond the position of its row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/cpu/kernels.h"
#include "drivers/cpu/memory.h"
#include "drivers/cpu/weights.h"

namespace calrt::cpu {

struct KvHead {  // of one lane
  uint32_t layer, lane, kv_head;
};

class KvArena {
 public:
  static uint64_t bytes_needed(const Shape& shape, uint32_t lanes, uint32_t cells, bool bf16);
  static Result<KvArena> make(const Shape& shape, uint32_t lanes, uint32_t cells, bool bf16);

  bool bf16() const { return bf16_; }
  uint64_t bytes() const { return memory_.bytes(); }
  // head_dim floats each into cell `position`, rounded to the arena's dtype.
  void write(uint32_t layer, uint32_t lane, uint32_t kv_head, uint32_t position, const float* key,
             const float* value);
  // Cells [cell, cell + n) of one head to or from rows of head_dim elements in the arena's dtype,
  // `stride` bytes apart, at any alignment. No other cell is touched. `stream`: see CellKernels.
  void read_keys(const KvHead& head, uint32_t cell, uint32_t n, unsigned char* rows, size_t stride,
                 const CellKernels& kernels, bool stream) const;
  void read_values(const KvHead& head, uint32_t cell, uint32_t n, unsigned char* rows,
                   size_t stride, const CellKernels& kernels, bool stream) const;
  void write_keys(const KvHead& head, uint32_t cell, uint32_t n, const unsigned char* rows,
                  size_t stride, const CellKernels& kernels, bool stream);
  void write_values(const KvHead& head, uint32_t cell, uint32_t n, const unsigned char* rows,
                    size_t stride, const CellKernels& kernels, bool stream);

  size_t element_bytes() const { return bf16_ ? 2 : 4; }
  uint32_t cells() const { return cells_; }
  unsigned char* keys(const KvHead& h) const {
    return memory_.as() + slot(h.layer, h.lane, h.kv_head) * slot_bytes();
  }
  unsigned char* values(const KvHead& h) const { return keys(h) + key_bytes_; }
  const unsigned char* keys(uint32_t layer, uint32_t lane, uint32_t kv_head) const {
    return keys({layer, lane, kv_head});
  }
  const unsigned char* values(uint32_t layer, uint32_t lane, uint32_t kv_head) const {
    return values({layer, lane, kv_head});
  }
  size_t key_panel_bytes() const { return key_panel_bytes_; }      // 32 cells
  size_t value_panel_bytes() const { return value_panel_bytes_; }  // 32 of head_dim, all cells

 private:
  KvArena(const Shape& shape, uint32_t lanes, uint32_t cells, bool bf16);
  size_t slot(uint32_t layer, uint32_t lane, uint32_t kv_head) const {
    return (size_t{layer} * lanes_ + lane) * kv_heads_ + kv_head;
  }
  size_t slot_bytes() const { return key_bytes_ + value_bytes_; }

  uint32_t lanes_, cells_, kv_heads_, head_dim_;
  bool bf16_;
  size_t key_panel_bytes_, value_panel_bytes_, key_bytes_, value_bytes_;
  Block memory_;
};

}  // namespace calrt::cpu
