// SPDX-License-Identifier: Apache-2.0
// The index's blobs (which ids, how many bytes, under a limit), its events and its invariants.
#include <algorithm>

#include "base/out_of_memory.h"
#include "kv/prefix.h"

namespace calrt::kv {

Result<uint64_t> PrefixIndex::begin_hosted(Prefix&& prefix, uint64_t bytes, int32_t priority,
                                           std::vector<uint64_t>* evicted) {
  return or_out_of_memory([&]() -> Result<uint64_t> {
    CALRT_TRY(check_new(prefix));
    if (bytes > limits_.bytes || limits_.blobs == 0) {
      ++counters_.host_refused;
      return fail(Status::OUT_OF_RANGE, "a blob of %llu bytes: the host keeps %llu in all",
                  static_cast<unsigned long long>(bytes),
                  static_cast<unsigned long long>(limits_.bytes));
    }
    // Who goes: found first, so that nothing has changed if it is not enough.
    using Victim = std::pair<uint64_t, const PrefixEntry*>;
    std::vector<Victim> may;
    uint64_t left = hosted_bytes_;
    size_t count = blobs_.size(), goes = 0;
    const auto fits = [&] { return left <= limits_.bytes - bytes && count < limits_.blobs; };
    if (!fits()) {
      may.reserve(blobs_.size());
      for (const auto& [id, entry] : blobs_) {
        if (entry.pins == 0 && entry.ready && entry.priority <= priority)
          may.emplace_back(id, &entry);
      }
      std::sort(may.begin(), may.end(), [](const Victim& a, const Victim& b) {
        return a.second->priority != b.second->priority ? a.second->priority < b.second->priority
                                                        : a.second->used < b.second->used;
      });
      for (; !fits() && goes < may.size(); ++goes, --count) left -= may[goes].second->bytes;
    }
    if (!fits()) {
      ++counters_.host_refused;
      return fail(Status::KV_NO_CAPACITY,
                  "no room for a blob of %llu bytes: %llu of %llu bytes and %zu of %u blobs are "
                  "pinned, unfinished or of higher priority",
                  static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(left),
                  static_cast<unsigned long long>(limits_.bytes), count, limits_.blobs);
    }
    evicted->reserve(evicted->size() + goes);
    const uint64_t blob = next_blob_;
    PrefixEntry entry;
    entry.priority = priority;
    entry.bytes = bytes;
    entry.ready = false;
    add({PrefixPlace::HOST, blob}, std::move(prefix), std::move(entry));
    ++next_blob_;
    hosted_bytes_ += bytes;
    for (size_t i = 0; i < goes; ++i) {
      const PrefixHolder holder{PrefixPlace::HOST, may[i].first};
      const PrefixEntry gone = extract(holder);
      evicted->push_back(holder.id);
      ++counters_.evicted_blobs;
      note(PrefixEventKind::EVICTED, holder, &gone.prefix);
    }
    return blob;
  });
}

Result<void> PrefixIndex::end_hosted(uint64_t blob, bool ok) {
  const PrefixHolder holder{PrefixPlace::HOST, blob};
  PrefixEntry* const entry = look(holder);
  if (entry == nullptr || entry->ready)
    return fail(Status::INVALID_HANDLE, "blob %llu is not being written",
                static_cast<unsigned long long>(blob));
  if (!ok) {
    (void)extract(holder);
    ++counters_.host_aborted;
    return {};
  }
  entry->ready = true;
  ++counters_.hosted;
  note(PrefixEventKind::HOSTED, holder, &entry->prefix);
  return {};
}

void PrefixIndex::note(PrefixEventKind kind, PrefixHolder holder, const Prefix* prefix,
                       uint32_t entries) {
  if (events_end_ - events_begin_ == kEvents) {
    ++events_begin_;
    ++counters_.events_lost;
  }
  PrefixEvent& event = events_[events_end_ % kEvents];
  event = {events_end_++, kind, holder, entries, {}};
  if (prefix == nullptr) return;
  event.tokens = static_cast<uint32_t>(prefix->tokens.size());
  event.key = prefix->keys.back();
}

size_t PrefixIndex::drain_events(std::span<PrefixEvent> out) {
  const size_t n = std::min<uint64_t>(out.size(), events_end_ - events_begin_);
  for (size_t i = 0; i < n; ++i) out[i] = events_[events_begin_++ % kEvents];
  return n;
}

Result<void> PrefixIndex::check_integrity() const {
  const auto broken = [](const char* what, uint64_t is, uint64_t should) {
    return fail(Status::INTERNAL, "prefix index: %s is %llu, should be %llu", what,
                static_cast<unsigned long long>(is), static_cast<unsigned long long>(should));
  };
  uint64_t bytes = 0, ready = 0, evictable = 0;
  for (const auto& [lane, entry] : lanes_) {
    if (lane >= lane_count_) return broken("a parked lane", lane, lane_count_ - 1);
    if (entry.bytes != 0 || !entry.ready) return broken("bytes of a lane", entry.bytes, 0);
    evictable += entry.pins == 0;
  }
  for (const auto& [id, entry] : blobs_) {
    if (id >= next_blob_) return broken("a blob's id", id, next_blob_ - 1);
    bytes += entry.bytes;
    ready += entry.ready;
  }
  if (bytes != hosted_bytes_) return broken("the sum of hosted bytes (I10)", hosted_bytes_, bytes);
  if (bytes > limits_.bytes) return broken("hosted bytes (I10)", bytes, limits_.bytes);
  if (blobs_.size() > limits_.blobs) return broken("hosted blobs", blobs_.size(), limits_.blobs);
  if (evictable != evictable_lanes_) return broken("evictable lanes", evictable_lanes_, evictable);
  // Each entry stands in the list once: as many rows as entries, and each entry has one.
  if (sorted_.size() != lanes_.size() + blobs_.size())
    return broken("sorted rows", sorted_.size(), lanes_.size() + blobs_.size());
  for (const Entries* table : {&lanes_, &blobs_}) {
    for (const auto& [id, entry] : *table) {
      if (row_of(entry) == sorted_.end()) return broken("rows of a holder", 0, 1);
    }
  }
  for (size_t i = 0; i < sorted_.size(); ++i) {
    const Row& row = sorted_[i];
    if (get(row.holder) != row.entry) return broken("the holder of a row", row.holder.id, 0);
    CALRT_TRY(check_new(row.entry->prefix));
    if (i > 0 && compare_keys(sorted_[i - 1].entry->prefix, row.entry->prefix) > 0)
      return broken("the order of a row", i, i - 1);
  }
  const PrefixCounters& c = counters_;
  const uint64_t came = c.stored + c.hosted;
  const uint64_t went = c.removed + c.cleared + c.evicted_lanes + c.evicted_blobs;
  if (came != went + lanes_.size() + ready)
    return broken("what came", came, went + lanes_.size() + ready);
  return {};
}

}  // namespace calrt::kv
