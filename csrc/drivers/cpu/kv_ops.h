// SPDX-License-Identifier: Apache-2.0
// Operations on the cells of lanes: clear, copy, turn keys on, and move to and from rows in plain
// memory. Each touches its own cells alone.
#pragma once

#include <atomic>
#include <cstdint>

#include "drivers/cpu/kv.h"
#include "drivers/cpu/pool.h"

namespace calrt::cpu {

struct CellRange {
  uint32_t lane, cell, n;
};

// For one operation. Everything is in range: checked before a job is accepted. All references
// outlive this. An operation answers false when it saw `cancel` set and left work undone: its
// target is then partly written.
class KvOps {
 public:
  KvOps(KvArena& arena, const Shape& shape, const CellKernels& kernels, Pool& pool,
        const std::atomic<bool>& cancel)
      : arena_(arena), shape_(shape), kernels_(kernels), pool_(pool), cancel_(cancel) {}

  bool clear(const CellRange& range);
  // The ranges may overlap.
  bool copy(const CellRange& from, uint32_t to_lane, uint32_t to_cell);
  // Keys as if their tokens stood `delta` positions further on: computed in F32, rounded once.
  bool rotate(const CellRange& range, int32_t delta);
  // Rows: layer by layer, keys of n cells, then values; a cell is [kv_heads][head_dim] elements.
  bool read(const CellRange& range, unsigned char* rows);
  bool write(const CellRange& range, const unsigned char* rows);

 private:
  struct Rows;
  template <class Body>
  bool each_head(Body&& body);
  template <class Body>
  bool each_rows(const CellRange& range, Body&& body);
  void move(const KvHead& from, uint32_t cell, uint32_t n, const KvHead& to, uint32_t to_cell);

  KvArena& arena_;
  const Shape& shape_;
  const CellKernels& kernels_;
  Pool& pool_;
  const std::atomic<bool>& cancel_;
};

}  // namespace calrt::cpu
