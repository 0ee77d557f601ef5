// SPDX-License-Identifier: Apache-2.0
// Inside LaneTable: its mutex held for a change.
#pragma once

#include "base/pause.h"
#include "kv/lanes.h"

namespace calrt::kv {

// At its end, what is read without the mutex is what the table says.
class LaneTable::Change {
 public:
  explicit Change(LaneTable& table) : table_(table), lock_(table.mutex_, std::try_to_lock) {
    // Whoever holds it is done long before this thread could sleep and be woken. Looks are rare:
    // each takes the mutex's cache line away from the holder.
    for (int pauses = kFirstPauses; pauses <= kMostPauses && !lock_; pauses *= 2) {
      for (int i = 0; i < pauses; ++i) pause_cpu();
      (void)lock_.try_lock();
    }
    if (!lock_) lock_.lock();
  }
  ~Change() {
    const uint32_t parked = table_.prefixes_ ? table_.prefixes_->evictable_lanes() : 0;
    table_.available_.store(table_.counts_[static_cast<size_t>(LaneState::FREE)] + parked,
                            std::memory_order_release);
    table_.poisoned_.store(table_.counts_[static_cast<size_t>(LaneState::POISONED)],
                           std::memory_order_release);
  }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;

 private:
  // About 1 us, then twice as many, 20 us in all.
  static constexpr int kFirstPauses = 32, kMostPauses = 512;
  LaneTable& table_;
  std::unique_lock<std::mutex> lock_;
};

}  // namespace calrt::kv
