// SPDX-License-Identifier: Apache-2.0
// How long things take on a mock device. Integer arithmetic, so that virtual time is exact.
#pragma once

#include <cstdint>
#include <span>

namespace calrt::mock {

// t = alpha + n / beta, rounded up to whole ns. One unit of beta is 1 MB/s.
struct Link {
  uint64_t alpha_ns;
  uint64_t bytes_per_us;

  uint64_t ns(uint64_t bytes) const {  // bytes <= 2^48: does not overflow; nothing takes no time
    return bytes == 0 ? 0 : alpha_ns + (bytes * 1000 + bytes_per_us - 1) / bytes_per_us;
  }
};

// A row of a table: a tick of a batch of `size`, or a chunk of `size` tokens, takes `ns`.
struct Pace {
  uint32_t size;
  uint64_t ns;
};

struct Timing {
  Link to_device, to_host, on_device;
  std::span<const Pace> ticks, chunks;  // by rising size, not empty
};

// The first row that is large enough; beyond the last one, the last one in proportion.
inline uint64_t pace_ns(std::span<const Pace> table, uint32_t size) {
  for (const Pace& row : table)
    if (size <= row.size) return row.ns;
  const Pace& last = table.back();
  return (last.ns * size + last.size - 1) / last.size;
}

}  // namespace calrt::mock
