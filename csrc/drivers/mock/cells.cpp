// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/cells.h"

#include <cstring>

namespace calrt::mock {

void Cells::clear(uint32_t lane, uint32_t cell, uint32_t n) {
  std::memset(positions(lane) + cell, 0, n * sizeof(int32_t));
  std::memset(mixes(lane) + cell, 0, n * sizeof(uint32_t));
}

void Cells::copy(uint32_t lane, uint32_t cell, uint32_t to_lane, uint32_t to_cell, uint32_t n) {
  std::memmove(positions(to_lane) + to_cell, positions(lane) + cell, n * sizeof(int32_t));
  std::memmove(mixes(to_lane) + to_cell, mixes(lane) + cell, n * sizeof(uint32_t));
}

void Cells::rotate(uint32_t lane, uint32_t cell, uint32_t n, int32_t delta) {
  int32_t* first = positions(lane) + cell;
  for (uint32_t i = 0; i < n; ++i)  // unsigned: a position may wrap, and turns back the same way
    first[i] = static_cast<int32_t>(static_cast<uint32_t>(first[i]) + static_cast<uint32_t>(delta));
}

void Cells::read(uint32_t lane, uint32_t cell, uint32_t n, unsigned char* to) const {
  std::memcpy(to, positions(lane) + cell, n * sizeof(int32_t));
  std::memcpy(to + n * sizeof(int32_t), mixes(lane) + cell, n * sizeof(uint32_t));
}

void Cells::write(uint32_t lane, uint32_t cell, uint32_t n, const unsigned char* from) {
  std::memcpy(positions(lane) + cell, from, n * sizeof(int32_t));
  std::memcpy(mixes(lane) + cell, from + n * sizeof(int32_t), n * sizeof(uint32_t));
}

}  // namespace calrt::mock
