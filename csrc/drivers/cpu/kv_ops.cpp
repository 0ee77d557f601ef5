// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kv_ops.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "drivers/cpu/kv_rotation.h"
#include "drivers/cpu/parallel.h"
#include "layout/convert.h"

namespace calrt::cpu {
namespace {

constexpr uint32_t kBlockCells = 128;  // of a task that moves rows

}  // namespace

// body(layer, kv_head) for each head of the lanes; cells of one head are moved in order.
template <class Body>
bool KvOps::each_head(Body&& body) {
  std::atomic<bool> whole{true};
  parallel(pool_, shape_.layers * shape_.kv_heads, [&](uint32_t task, uint32_t) {
    if (cancel_.load(std::memory_order_relaxed))
      whole = false;
    else
      body(task / shape_.kv_heads, task % shape_.kv_heads);
  });
  return whole;
}

bool KvOps::clear(const CellRange& range) {
  static const unsigned char zeros[kLargestHead * 4] = {};
  return each_head([&](uint32_t layer, uint32_t kv_head) {
    const KvHead head{layer, range.lane, kv_head};
    arena_.write_keys(head, range.cell, range.n, zeros, 0, kernels_, false);
    arena_.write_values(head, range.cell, range.n, zeros, 0, kernels_, false);
  });
}

bool KvOps::copy(const CellRange& from, uint32_t to_lane, uint32_t to_cell) {
  if (from.lane == to_lane && from.cell == to_cell) return true;
  // Whole panels go as they are where both ranges lie alike in them; the rest cell by cell in
  // blocks. Upwards in order, else from the end, so that nothing is overwritten unread.
  const bool alike = from.cell % kPanel == to_cell % kPanel;
  const uint32_t head = std::min(from.n, (kPanel - from.cell % kPanel) % kPanel);
  const uint32_t panels = alike ? (from.n - head) / kPanel * kPanel : 0;
  std::vector<std::pair<uint32_t, uint32_t>> pieces;  // first cell, cells
  if (head != 0) pieces.emplace_back(0, head);
  if (panels != 0) pieces.emplace_back(head, panels);
  for (uint32_t first = head + panels; first < from.n; first += kPanel)
    pieces.emplace_back(first, std::min(kPanel, from.n - first));
  if (to_cell > from.cell) std::reverse(pieces.begin(), pieces.end());
  return each_head([&](uint32_t layer, uint32_t kv_head) {
    const KvHead source{layer, from.lane, kv_head}, target{layer, to_lane, kv_head};
    for (const auto& [first, n] : pieces)
      move(source, from.cell + first, n, target, to_cell + first);
  });
}

void KvOps::move(const KvHead& from, uint32_t cell, uint32_t n, const KvHead& to,
                 uint32_t to_cell) {
  if (n % kPanel == 0 && cell % kPanel == 0 && to_cell % kPanel == 0) {
    const size_t key = arena_.key_panel_bytes() / kPanel;  // bytes a cell
    std::memmove(arena_.keys(to) + to_cell * key, arena_.keys(from) + cell * key, n * key);
    const size_t value = kPanel * arena_.element_bytes();
    for (uint32_t d = 0; d < shape_.head_dim; d += kPanel) {
      const size_t panel = d / kPanel * arena_.value_panel_bytes();
      std::memmove(arena_.values(to) + panel + to_cell * value,
                   arena_.values(from) + panel + cell * value, n * value);
    }
    return;
  }
  alignas(64) unsigned char rows[kPanel * kLargestHead * 4];
  const size_t stride = shape_.head_dim * arena_.element_bytes();
  arena_.read_keys(from, cell, n, rows, stride, kernels_, false);
  arena_.write_keys(to, to_cell, n, rows, stride, kernels_, false);
  arena_.read_values(from, cell, n, rows, stride, kernels_, false);
  arena_.write_values(to, to_cell, n, rows, stride, kernels_, false);
}

bool KvOps::rotate(const CellRange& range, int32_t delta) {
  if (delta == 0) return true;
  const KvRotation rotation(shape_, delta);
  return each_head([&](uint32_t layer, uint32_t kv_head) {
    rotation.turn(arena_, {layer, range.lane, kv_head}, range.cell, range.n);
  });
}

// Rows of some cells of one head, keys or values: where they lie, and how far apart.
struct KvOps::Rows {
  KvHead head;
  uint32_t cell, n;
  bool values;
  size_t offset, stride;  // bytes
};

// body(rows) for all rows of a range, in blocks of cells that end where panels do.
template <class Body>
bool KvOps::each_rows(const CellRange& range, Body&& body) {
  const size_t head_bytes = shape_.head_dim * arena_.element_bytes();
  const size_t stride = shape_.kv_heads * head_bytes;
  const uint32_t lead = range.cell % kBlockCells;
  const uint32_t blocks = (lead + range.n + kBlockCells - 1) / kBlockCells;
  const bool stream = outgrows_caches(uint64_t{2} * shape_.layers * stride * range.n);
  std::atomic<bool> whole{true};
  parallel(pool_, 2 * shape_.layers * blocks, [&](uint32_t task, uint32_t) {
    if (cancel_.load(std::memory_order_relaxed)) {
      whole = false;
      return;
    }
    const uint32_t part = task / blocks, block = task % blocks;
    const uint32_t first = block == 0 ? 0 : block * kBlockCells - lead;
    const uint32_t n = std::min(range.n, (block + 1) * kBlockCells - lead) - first;
    // All heads of a block: then its rows are written from end to end.
    for (uint32_t h = 0; h < shape_.kv_heads; ++h)
      body(Rows{{part / 2, range.lane, h},
                range.cell + first,
                n,
                part % 2 != 0,
                (size_t{part} * range.n + first) * stride + h * head_bytes,
                stride},
           stream);
    kernels_.fence();
  });
  return whole;
}

bool KvOps::read(const CellRange& range, unsigned char* rows) {
  return each_rows(range, [&](const Rows& r, bool stream) {
    if (r.values)
      arena_.read_values(r.head, r.cell, r.n, rows + r.offset, r.stride, kernels_, stream);
    else
      arena_.read_keys(r.head, r.cell, r.n, rows + r.offset, r.stride, kernels_, stream);
  });
}

bool KvOps::write(const CellRange& range, const unsigned char* rows) {
  return each_rows(range, [&](const Rows& r, bool stream) {
    if (r.values)
      arena_.write_values(r.head, r.cell, r.n, rows + r.offset, r.stride, kernels_, stream);
    else
      arena_.write_keys(r.head, r.cell, r.n, rows + r.offset, r.stride, kernels_, stream);
  });
}

}  // namespace calrt::cpu
