// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/arena.h"

#include <sys/mman.h>

#include <algorithm>

#include "base/checked.h"

namespace calrt::isolate {

Arena::Arena(unsigned char* base, uint64_t bytes) : base_(base), bytes_(bytes) {
  add_free(0, bytes / kGrain * kGrain);
}

void Arena::add_free(uint64_t at, uint64_t bytes) {
  free_[at] = bytes;
  by_size_.insert({bytes, at});
}

void Arena::remove_free(uint64_t at, uint64_t bytes) {
  free_.erase(at);
  by_size_.erase({bytes, at});
}

void* Arena::take(uint64_t bytes, uint64_t align) {
  uint64_t size = 0;
  if ((align & (align - 1)) != 0 || align > kMostAlign ||
      !checked_round_up(std::max<uint64_t>(bytes, 1), kGrain, &size) || size > bytes_)
    return nullptr;
  align = std::max(align, kGrain);
  const std::scoped_lock lock(mutex_);
  if (size <= kSmall && align == kGrain && !kept_[size / kGrain].empty()) {
    const uint64_t at = kept_[size / kGrain].back();
    kept_[size / kGrain].pop_back();
    taken_.emplace(at, size);
    return base_ + at;
  }
  for (auto free = by_size_.lower_bound({size, 0}); free != by_size_.end(); ++free) {
    const auto [room, at] = *free;
    const uint64_t begin = (at + align - 1) & ~(align - 1), before = begin - at;
    if (before > room || size > room - before) continue;
    taken_.emplace(begin, size);  // first what may throw
    remove_free(at, room);
    if (before != 0) add_free(at, before);
    if (room - before > size) add_free(begin + size, room - before - size);
    return base_ + begin;
  }
  return nullptr;
}

bool Arena::give(void* block) {
  const auto address = reinterpret_cast<uintptr_t>(block),
             base = reinterpret_cast<uintptr_t>(base_);
  const std::scoped_lock lock(mutex_);
  const auto taken = address >= base ? taken_.find(address - base) : taken_.end();
  if (taken == taken_.end()) return false;
  uint64_t at = taken->first, size = taken->second;
  taken_.erase(taken);
  if (size <= kSmall && kept_[size / kGrain].size() < kKept) {
    kept_[size / kGrain].push_back(at);
    return true;
  }
  if (size >= kLarge) {
    constexpr uint64_t kPage = 64 << 10;  // no machine's pages are larger
    const uint64_t from = (at + kPage - 1) / kPage * kPage, to = (at + size) / kPage * kPage;
    if (to > from) (void)madvise(base_ + from, to - from, MADV_REMOVE);
  }
  const auto after = free_.lower_bound(at);
  if (after != free_.end() && after->first == at + size) {
    size += after->second;
    remove_free(after->first, after->second);
  }
  auto before = free_.lower_bound(at);
  if (before != free_.begin() && (--before)->first + before->second == at) {
    at = before->first;
    size += before->second;
    remove_free(before->first, before->second);
  }
  add_free(at, size);
  return true;
}

uint64_t Arena::live() const {
  const std::scoped_lock lock(mutex_);
  return taken_.size();
}

}  // namespace calrt::isolate
