// SPDX-License-Identifier: Apache-2.0
// The lanes of a model. A cell is 8 bytes, {position, mix of the token}: its K and its V.
#pragma once

#include <cstdint>
#include <vector>

#include "drivers/mock/fold.h"

namespace calrt::mock {

inline constexpr uint64_t kCellBytes = 8;

// Lanes and cells are in range wherever they are given: the jobs have been checked. Not
// thread-safe: the jobs of a model run one at a time.
class Cells {
 public:
  Cells(uint32_t lanes, uint32_t cells)
      : cells_(cells), words_(size_t{2} * lanes * cells) {}  // zeroed

  void write(uint32_t lane, uint32_t cell, uint32_t token, int32_t position) {
    positions(lane)[cell] = position;
    mixes(lane)[cell] = mix_of(token);
  }
  Sums fold(Fold with, uint32_t lane, uint32_t n) const {
    return with(positions(lane), mixes(lane), n);
  }

  // The KV operations; `n` cells each. The buffer of read and write holds first all K, then all V.
  void clear(uint32_t lane, uint32_t cell, uint32_t n);
  void copy(uint32_t lane, uint32_t cell, uint32_t to_lane, uint32_t to_cell, uint32_t n);
  void rotate(uint32_t lane, uint32_t cell, uint32_t n, int32_t delta);
  void read(uint32_t lane, uint32_t cell, uint32_t n, unsigned char* to) const;
  void write(uint32_t lane, uint32_t cell, uint32_t n, const unsigned char* from);

  uint64_t bytes() const { return words_.size() * sizeof(uint32_t); }

 private:
  int32_t* positions(uint32_t lane) { return reinterpret_cast<int32_t*>(&words_[first(lane)]); }
  const int32_t* positions(uint32_t lane) const {
    return reinterpret_cast<const int32_t*>(&words_[first(lane)]);
  }
  uint32_t* mixes(uint32_t lane) { return &words_[first(lane) + cells_]; }
  const uint32_t* mixes(uint32_t lane) const { return &words_[first(lane) + cells_]; }
  size_t first(uint32_t lane) const { return size_t{2} * lane * cells_; }

  uint32_t cells_;
  std::vector<uint32_t> words_;  // of each lane all positions, then all mixes
};

}  // namespace calrt::mock
