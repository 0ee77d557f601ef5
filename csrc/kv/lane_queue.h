// SPDX-License-Identifier: Apache-2.0
// Lanes in the order in which they came; any of them leaves at once.
#pragma once

#include <cstdint>
#include <vector>

namespace calrt::kv {

// Not thread-safe. All memory is allocated at the beginning; every call is O(1).
class LaneQueue {
 public:
  explicit LaneQueue(uint32_t lanes) : links_(lanes + size_t{1}) { links_.back() = {lanes, lanes}; }

  bool empty() const { return links_.back().after == end(); }
  bool has(uint32_t lane) const { return links_[lane].after != kNone; }
  uint32_t front() const { return links_.back().after; }  // the one that is there longest
  // As the last. Not if it is there.
  void push(uint32_t lane) {
    Link& last = links_[links_.back().before];
    links_[lane] = {links_.back().before, end()};
    last.after = links_.back().before = lane;
  }
  // Not if it is not there.
  void remove(uint32_t lane) {
    const Link link = links_[lane];
    links_[link.before].after = link.after;
    links_[link.after].before = link.before;
    links_[lane] = {};
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Link {
    uint32_t before = kNone, after = kNone;
  };
  uint32_t end() const { return static_cast<uint32_t>(links_.size() - 1); }

  std::vector<Link> links_;  // a ring of those in the queue and, at end(), its begin and end
};

}  // namespace calrt::kv
