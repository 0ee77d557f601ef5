// SPDX-License-Identifier: Apache-2.0
// Blocks of one address range that is mapped and stays so: what of it is in use is known outside of
// it, so nothing that is written there can hurt the allocator. Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace calrt::isolate {

class Arena {
 public:
  // [base, base + bytes) of a shared mapping; base is aligned to kMostAlign.
  Arena(unsigned char* base, uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Null when there is no such block left, or no such alignment. Not zeroed.
  void* take(uint64_t bytes, uint64_t align);
  // False: it is no block of this arena. Large blocks give their pages back at once.
  bool give(void* block);
  uint64_t live() const;  // blocks

  static constexpr uint64_t kMostAlign = uint64_t{1} << 30;

 private:
  static constexpr uint64_t kGrain = 64;         // bytes that every size and place is a multiple of
  static constexpr uint64_t kSmall = 4096;       // up to here a block is kept for its next taker
  static constexpr uint64_t kLarge = 256 << 10;  // from here on its pages go
  static constexpr size_t kKept = 256;           // of one size

  void add_free(uint64_t at, uint64_t bytes);
  void remove_free(uint64_t at, uint64_t bytes);

  unsigned char* const base_;
  const uint64_t bytes_;
  mutable std::mutex mutex_;
  std::map<uint64_t, uint64_t> free_;                // by place
  std::set<std::pair<uint64_t, uint64_t>> by_size_;  // (bytes, place) of the same
  std::unordered_map<uint64_t, uint64_t> taken_;     // place -> bytes
  std::vector<uint64_t> kept_[kSmall / kGrain + 1];  // by size
};

}  // namespace calrt::isolate
