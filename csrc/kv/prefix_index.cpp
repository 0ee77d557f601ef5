// SPDX-License-Identifier: Apache-2.0
// The index: entries in two tables by holder, and one list of all of them sorted by their keys. In
// that order those that share most keys with a prompt stand next to where the prompt would stand.
#include <algorithm>

#include "base/out_of_memory.h"
#include "kv/prefix.h"

namespace calrt::kv {
namespace {

size_t shared_keys(const Prefix& a, const Prefix& b) {
  const size_t n = std::min(a.keys.size(), b.keys.size());
  size_t same = 0;
  while (same < n && a.keys[same] == b.keys[same]) ++same;
  return same;
}

// Equal tokens from `begin` on.
size_t equal_from(const Prefix& a, const Prefix& b, size_t begin) {
  const size_t n = std::min(a.tokens.size(), b.tokens.size());
  const auto first = a.tokens.begin();
  const auto end = first + static_cast<ptrdiff_t>(n), from = first + static_cast<ptrdiff_t>(begin);
  const auto other = b.tokens.begin() + static_cast<ptrdiff_t>(begin);
  return static_cast<size_t>(std::mismatch(from, end, other).first - from);
}

// The order in which entries make room.
bool goes_before(const PrefixEntry& a, const PrefixEntry& b) {
  return a.priority != b.priority ? a.priority < b.priority : a.used < b.used;
}

Error no_entry(PrefixHolder holder) {
  return fail(Status::INVALID_HANDLE, "%s %llu holds no prefix", prefix_place_name(holder.place),
              static_cast<unsigned long long>(holder.id));
}

}  // namespace

Result<PrefixIndex> PrefixIndex::make(uint32_t lanes, uint32_t every, HostLimits limits) {
  return or_out_of_memory([&]() -> Result<PrefixIndex> {
    if (every == 0)
      return fail(Status::INVALID_ARGUMENT, "every=0: a prefix needs a key every 1 token or more");
    PrefixIndex index;
    if (limits.bytes == 0) limits.blobs = 0;
    // One blob more: the new one is added before those leave that make room for it.
    const size_t blobs = size_t{limits.blobs} + 1;
    index.lanes_.reserve(lanes);
    index.blobs_.reserve(blobs);
    index.sorted_.reserve(lanes + blobs);
    index.events_.resize(kEvents);
    index.limits_ = limits;
    index.lane_count_ = lanes;
    index.every_ = every;
    return index;
  });
}

PrefixMatch PrefixIndex::find(const Prefix& wanted, PrefixFilter filter) const {
  PrefixMatch best;
  size_t best_keys = 1;
  uint64_t best_used = 0;
  // False: nothing further out in this direction can be better.
  const auto consider = [&](const Row& row) {
    const PrefixEntry& entry = *row.entry;
    const size_t keys = shared_keys(entry.prefix, wanted);
    if (keys < best_keys) return false;
    const bool lane = row.holder.place == PrefixPlace::LANE;
    if (!entry.ready || !(lane ? entry.pins == 0 ? filter.lanes : filter.pinned : filter.hosted))
      return true;
    const size_t head = keys * every_;
    const auto tokens = static_cast<uint32_t>(head + equal_from(entry.prefix, wanted, head));
    const auto held = static_cast<uint32_t>(entry.prefix.tokens.size());
    const auto rank = [](PrefixPlace place, uint32_t pins) {
      return place == PrefixPlace::HOST ? 2 : pins > 0;
    };
    const int now = rank(row.holder.place, entry.pins), was = rank(best.holder.place, best.pins);
    if (best) {
      if (tokens != best.tokens ? tokens < best.tokens
          : now != was          ? now > was
          : held != best.held   ? held > best.held
                                : entry.used < best_used)
        return true;
    }
    // Keys only tell where to look.
    if (entry.prefix.scope != wanted.scope ||
        !std::equal(wanted.tokens.begin(), wanted.tokens.begin() + static_cast<ptrdiff_t>(head),
                    entry.prefix.tokens.begin()))
      return true;
    best = {row.holder, tokens, held, entry.pins};
    best_keys = keys;
    best_used = entry.used;
    return true;
  };
  if (wanted.every != every_ || wanted.keys.empty() ||
      wanted.keys.size() != wanted.tokens.size() / every_)
    return best;
  const auto middle = std::lower_bound(
      sorted_.begin(), sorted_.end(), wanted,
      [](const Row& row, const Prefix& p) { return compare_keys(row.entry->prefix, p) < 0; });
  for (auto right = middle; right != sorted_.end() && consider(*right);) ++right;
  for (auto left = middle; left != sorted_.begin() && consider(*std::prev(left));) --left;
  return best;
}

void PrefixIndex::hit(PrefixHolder holder, uint32_t tokens) {
  if (PrefixEntry* entry = look(holder)) entry->used = ++uses_;
  ++counters_.hits;
  counters_.hit_tokens += tokens;
}

Result<void> PrefixIndex::check_new(const Prefix& prefix) const {
  if (prefix.every != every_)
    return fail(Status::INVALID_ARGUMENT, "every=%u: this index has keys every %u tokens",
                prefix.every, every_);
  if (prefix.tokens.size() < every_ || prefix.tokens.size() > UINT32_MAX)
    return fail(Status::INVALID_ARGUMENT, "%zu tokens: a prefix is kept from %u tokens on",
                prefix.tokens.size(), every_);
  if (prefix.keys.size() != prefix.tokens.size() / every_)
    return fail(Status::INVALID_ARGUMENT, "%zu keys for %zu tokens: make_prefix gives %zu",
                prefix.keys.size(), prefix.tokens.size(), prefix.tokens.size() / every_);
  return {};
}

// Changes nothing if it throws: all but the table's node is reserved.
void PrefixIndex::add(PrefixHolder holder, Prefix&& prefix, PrefixEntry&& rest) {
  PrefixEntry& entry = of(holder.place).try_emplace(holder.id).first->second;
  entry = std::move(rest);
  entry.prefix = std::move(prefix);
  entry.used = ++uses_;
  const auto at = std::upper_bound(
      sorted_.begin(), sorted_.end(), entry.prefix,
      [](const Prefix& p, const Row& row) { return compare_keys(p, row.entry->prefix) < 0; });
  sorted_.insert(at, Row{holder, &entry});
}

std::vector<PrefixIndex::Row>::const_iterator PrefixIndex::row_of(const PrefixEntry& entry) const {
  auto row = std::lower_bound(
      sorted_.begin(), sorted_.end(), entry.prefix,
      [](const Row& at, const Prefix& p) { return compare_keys(at.entry->prefix, p) < 0; });
  while (row != sorted_.end() && row->entry != &entry) ++row;
  return row;
}

// Of an entry that is there and unpinned.
PrefixEntry PrefixIndex::extract(PrefixHolder holder) {
  Entries& table = of(holder.place);
  const auto found = table.find(holder.id);
  sorted_.erase(row_of(found->second));
  if (holder.place == PrefixPlace::LANE)
    --evictable_lanes_;
  else
    hosted_bytes_ -= found->second.bytes;
  PrefixEntry out = std::move(found->second);
  table.erase(found);
  return out;
}

Result<void> PrefixIndex::insert(uint32_t lane, Prefix&& prefix, int32_t priority) {
  return or_out_of_memory([&]() -> Result<void> {
    if (lane >= lane_count_)
      return fail(Status::INVALID_ARGUMENT, "lane=%u: there are %u lanes", lane, lane_count_);
    CALRT_TRY(check_new(prefix));
    if (lanes_.contains(lane))
      return fail(Status::INVALID_STATE, "lane %u holds a prefix already", lane);
    const PrefixHolder holder{PrefixPlace::LANE, lane};
    PrefixEntry entry;
    entry.priority = priority;
    add(holder, std::move(prefix), std::move(entry));
    ++evictable_lanes_;
    ++counters_.stored;
    note(PrefixEventKind::STORED, holder, &look(holder)->prefix);
    return {};
  });
}

const PrefixEntry* PrefixIndex::get(PrefixHolder holder) const {
  return const_cast<PrefixIndex*>(this)->look(holder);
}

PrefixEntry* PrefixIndex::look(PrefixHolder holder) {
  Entries& table = of(holder.place);
  const auto found = table.find(holder.id);
  return found == table.end() ? nullptr : &found->second;
}

Result<void> PrefixIndex::pin(PrefixHolder holder) {
  PrefixEntry* const entry = look(holder);
  if (entry == nullptr || !entry->ready) return no_entry(holder);
  if (entry->pins == UINT32_MAX) return fail(Status::INVALID_STATE, "too many pins");
  if (entry->pins++ == 0 && holder.place == PrefixPlace::LANE) --evictable_lanes_;
  return {};
}

Result<void> PrefixIndex::unpin(PrefixHolder holder) {
  PrefixEntry* const entry = look(holder);
  if (entry == nullptr) return no_entry(holder);
  if (entry->pins == 0)
    return fail(Status::INVALID_STATE, "%s %llu is not pinned", prefix_place_name(holder.place),
                static_cast<unsigned long long>(holder.id));
  if (--entry->pins == 0 && holder.place == PrefixPlace::LANE) ++evictable_lanes_;
  return {};
}

std::optional<uint32_t> PrefixIndex::victim_lane() const {
  const Entries::value_type* best = nullptr;
  for (const auto& candidate : lanes_) {
    if (candidate.second.pins > 0) continue;
    if (best == nullptr || goes_before(candidate.second, best->second)) best = &candidate;
  }
  if (best == nullptr) return std::nullopt;
  return static_cast<uint32_t>(best->first);
}

Result<PrefixEntry> PrefixIndex::take(PrefixHolder holder, PrefixEventKind why) {
  const PrefixEntry* const entry = look(holder);
  if (entry == nullptr) return no_entry(holder);
  if (entry->pins > 0 || !entry->ready)
    return fail(Status::INVALID_STATE, "%s %llu cannot go: %u pins%s",
                prefix_place_name(holder.place), static_cast<unsigned long long>(holder.id),
                entry->pins, entry->ready ? "" : ", unfinished");
  PrefixEntry out = extract(holder);
  if (why != PrefixEventKind::EVICTED)
    ++counters_.removed;
  else
    ++(holder.place == PrefixPlace::LANE ? counters_.evicted_lanes : counters_.evicted_blobs);
  note(why == PrefixEventKind::EVICTED ? why : PrefixEventKind::REMOVED, holder, &out.prefix);
  return out;
}

uint32_t PrefixIndex::clear() {
  uint32_t gone = 0;
  const auto sweep = [&](PrefixPlace place) {
    Entries& table = of(place);
    for (auto next = table.begin(); next != table.end();) {
      const auto now = next++;
      if (now->second.pins > 0 || !now->second.ready) continue;
      (void)extract({place, now->first});
      ++gone;
    }
  };
  sweep(PrefixPlace::LANE);
  sweep(PrefixPlace::HOST);
  counters_.cleared += gone;
  note(PrefixEventKind::CLEARED, {}, nullptr, gone);
  return gone;
}

}  // namespace calrt::kv
