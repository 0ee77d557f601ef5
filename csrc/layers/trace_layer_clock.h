// SPDX-License-Identifier: Apache-2.0
// Brings times of a device's clock onto the host's, by pairs of readings of both. Between two pairs
// a time lies on the line through them, so that an offset and a drift are followed and the error
// is never above the larger residual of the two.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace calrt::layers {

// Not thread-safe.
class DeviceClock {
 public:
  // A reading of both clocks, `residual_ns` being how far apart the two may truly be. Readings
  // come in order of time; one whose clocks went back is ignored.
  void add(uint64_t device_ns, uint64_t host_ns, uint64_t residual_ns);
  // Needs one pair; before the first and after the last the whole span's drift goes on.
  uint64_t to_host(uint64_t device_ns) const;

  bool known() const { return !pairs_.empty(); }
  bool covers(uint64_t device_ns) const { return known() && device_ns <= pairs_.back().device; }
  uint64_t pairs() const { return seen_; }
  uint64_t residual_ns() const { return residual_ns_; }  // the largest of all pairs
  int64_t offset_ns() const;                             // device minus host, at the last pair
  double drift_ppm() const;                              // how much faster the device's clock runs
  std::string text() const;  // "device = host + 5 ns, drift +1.5 ppm, 12 readings, residual 40 ns"

 private:
  struct Pair {
    uint64_t device, host;
  };
  static uint64_t on_line(const Pair& from, const Pair& to, uint64_t device_ns);

  std::vector<Pair> pairs_;
  uint64_t seen_ = 0, residual_ns_ = 0;
};

}  // namespace calrt::layers
