// SPDX-License-Identifier: Apache-2.0
// Cells between panels and rows. In words of 4 bytes a panel of keys is the transpose of its rows,
// of BF16 as of F32; values lie in rows already, of BF16 two cells zipped into one.
#include <algorithm>
#include <cstring>

#include "drivers/cpu/kv.h"

namespace calrt::cpu {
namespace {

constexpr size_t kPanelRow = kPanel * 4;  // bytes

// take(first, count, panel, column) for each piece of [cell, cell + n) that lies in one panel.
template <class Take>
void by_panel(uint32_t cell, uint32_t n, Take&& take) {
  for (uint32_t first = 0; first < n;) {
    const uint32_t column = (cell + first) % kPanel;
    const uint32_t count = std::min(n - first, kPanel - column);
    take(first, count, (cell + first) / kPanel, column);
    first += count;
  }
}

// take(bytes into a row, width, panel) for each 32 elements of a head, the last perhaps fewer.
template <class Take>
void by_width(uint32_t head_dim, size_t element, Take&& take) {
  for (uint32_t d = 0; d < head_dim; d += kPanel)
    take(d * element, std::min(kPanel, head_dim - d), d / kPanel);
}

// One cell that shares its words with another: its halves alone are moved.
void read_half(const unsigned char* halves, uint32_t width, unsigned char* row) {
  for (uint32_t i = 0; i < width; ++i) std::memcpy(row + i * 2, halves + i * 4, 2);
}
void write_half(const unsigned char* row, uint32_t width, unsigned char* halves) {
  for (uint32_t i = 0; i < width; ++i) std::memcpy(halves + i * 4, row + i * 2, 2);
}

// The pairs of cells inside [cell, cell + n), and what is left at its ends.
struct Pairs {
  uint32_t head, pairs, tail;
  Pairs(uint32_t cell, uint32_t n)
      : head(std::min(cell % 2, n)), pairs((n - head) / 2), tail((n - head) % 2) {}
};

}  // namespace

void KvArena::read_keys(const KvHead& head, uint32_t cell, uint32_t n, unsigned char* rows,
                        size_t stride, const CellKernels& kernels, bool stream) const {
  const size_t words = head_dim_ * element_bytes() / 4;
  by_panel(cell, n, [&](uint32_t first, uint32_t count, size_t panel, size_t column) {
    kernels.transpose(keys(head) + panel * key_panel_bytes_ + column * 4, kPanelRow, words, count,
                      rows + first * stride, stride, stream);
  });
}

void KvArena::write_keys(const KvHead& head, uint32_t cell, uint32_t n, const unsigned char* rows,
                         size_t stride, const CellKernels& kernels, bool stream) {
  const size_t words = head_dim_ * element_bytes() / 4;
  by_panel(cell, n, [&](uint32_t first, uint32_t count, size_t panel, size_t column) {
    kernels.transpose(rows + first * stride, stride, count, words,
                      keys(head) + panel * key_panel_bytes_ + column * 4, kPanelRow, stream);
  });
}

void KvArena::read_values(const KvHead& head, uint32_t cell, uint32_t n, unsigned char* rows,
                          size_t stride, const CellKernels& kernels, bool stream) const {
  by_width(head_dim_, element_bytes(), [&](size_t at, uint32_t width, size_t panel) {
    const unsigned char* from = values(head) + panel * value_panel_bytes_;
    unsigned char* to = rows + at;
    if (!bf16_) {
      for (uint32_t i = 0; i < n; ++i)
        std::memcpy(to + i * stride, from + size_t{cell + i} * kPanelRow, width * 4);
      return;
    }
    const Pairs part(cell, n);
    from += cell / 2 * kPanelRow;
    if (part.head != 0) {
      read_half(from + 2, width, to);
      from += kPanelRow;
      to += stride;
    }
    kernels.split_pairs(from, part.pairs, width, to, stride, stream);
    if (part.tail != 0)
      read_half(from + part.pairs * kPanelRow, width, to + 2 * part.pairs * stride);
  });
}

void KvArena::write_values(const KvHead& head, uint32_t cell, uint32_t n, const unsigned char* rows,
                           size_t stride, const CellKernels& kernels, bool stream) {
  by_width(head_dim_, element_bytes(), [&](size_t at, uint32_t width, size_t panel) {
    const unsigned char* from = rows + at;
    unsigned char* to = values(head) + panel * value_panel_bytes_;
    if (!bf16_) {
      for (uint32_t i = 0; i < n; ++i)
        std::memcpy(to + size_t{cell + i} * kPanelRow, from + i * stride, width * 4);
      return;
    }
    const Pairs part(cell, n);
    to += cell / 2 * kPanelRow;
    if (part.head != 0) {
      write_half(from, width, to + 2);
      from += stride;
      to += kPanelRow;
    }
    kernels.join_pairs(from, stride, part.pairs, width, to, stream);
    if (part.tail != 0)
      write_half(from + 2 * part.pairs * stride, width, to + part.pairs * kPanelRow);
  });
}

}  // namespace calrt::cpu
