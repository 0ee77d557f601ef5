// SPDX-License-Identifier: Apache-2.0
// Inside LaneTable: its mutex held for a change.
#pragma once

#include "kv/lanes.h"

namespace calrt::kv {

// At its end, what is read without the mutex is what the table says.
class LaneTable::Change {
 public:
  explicit Change(LaneTable& table) : table_(table), lock_(table.mutex_) {}
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
  LaneTable& table_;
  std::lock_guard<std::mutex> lock_;
};

}  // namespace calrt::kv
