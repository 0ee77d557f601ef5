// SPDX-License-Identifier: Apache-2.0
// Lanes that nobody owns but keep the cells of a prefix, and blobs of prefixes that the host keeps.
#include <algorithm>

#include "base/out_of_memory.h"
#include "kv/lane_change.h"

namespace calrt::kv {

Result<void> LaneTable::enable_prefixes(uint32_t every, HostLimits limits) {
  return or_out_of_memory([&]() -> Result<void> {
    if (every > cells_)
      return fail(Status::OUT_OF_RANGE, "every=%u: a lane has %u cells, so nothing could be parked",
                  every, cells_);
    CALRT_TRY_ASSIGN(PrefixIndex index, PrefixIndex::make(lanes(), every, limits));
    Change change(*this);
    if (prefixes_ && (prefixes_->counters().stored > 0 || prefixes_->counters().hosted > 0 ||
                      prefixes_->blobs() > 0))
      return fail(Status::INVALID_STATE,
                  "prefixes are kept already: say how before the first lane is parked");
    prefixes_.emplace(std::move(index));
    return {};
  });
}

Result<PrefixIndex*> LaneTable::prefixes() {
  if (prefixes_) return &*prefixes_;
  return fail(Status::UNSUPPORTED, "this table keeps no prefixes: enable them first");
}

// ---- reuse ------------------------------------------------------------------------------------

Reuse LaneTable::find_reuse(const Need& need) const {
  if (!prefixes_ || need.prompt == nullptr || need.only || need.prompt->tokens.empty()) return {};
  const PrefixFilter filter{
      .lanes = true, .pinned = can(SeqOp::CP_PREFIX), .hosted = can(SeqOp::LOAD)};
  const PrefixMatch match = prefixes_->find(*need.prompt, filter);
  // The last token is computed in any case: its logits are what is asked for.
  const size_t most = std::min<size_t>(need.prompt->tokens.size() - 1, need.tokens);
  const auto tokens = static_cast<uint32_t>(std::min<size_t>(match.tokens, most));
  if (tokens == 0) return {};
  if (match.holder.place == PrefixPlace::HOST)
    return {Reuse::Kind::HOSTED, tokens, match.holder.id};
  // A beginning that others may share stays where it is, if there is a free lane to copy it to; a
  // lane of which all is wanted goes on as it is.
  const bool shared = match.pins > 0 || (match.tokens < match.held && can(SeqOp::CP_PREFIX) &&
                                         counts_[static_cast<size_t>(LaneState::FREE)] > 0);
  return {shared ? Reuse::Kind::COPY : Reuse::Kind::IN_PLACE, tokens, match.holder.id};
}

namespace {

PrefixHolder holder_of(const Reuse& reuse) {
  return {reuse.kind == Reuse::Kind::HOSTED ? PrefixPlace::HOST : PrefixPlace::LANE, reuse.id};
}

bool pinned(const Reuse& reuse) {
  return reuse.kind == Reuse::Kind::COPY || reuse.kind == Reuse::Kind::HOSTED;
}

}  // namespace

Result<void> LaneTable::count_reuse(const Need& need, const Reuse& reuse) {
  if (reuse.kind == Reuse::Kind::NONE) {
    if (prefixes_ && need.prompt != nullptr && !need.only) prefixes_->miss();
    return {};
  }
  if (pinned(reuse)) CALRT_TRY(prefixes_->pin(holder_of(reuse)));
  prefixes_->hit(holder_of(reuse), reuse.tokens);
  return {};
}

void LaneTable::let_go(Slot& slot) {
  if (pinned(slot.reuse)) (void)prefixes_->unpin(holder_of(slot.reuse));
  slot.reuse = {};
}

Result<void> LaneTable::drop_reuse(const LaneRef& ref) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(Slot * slot, find(ref));
    if (slot->job_seq != 0)
      return fail(Status::INVALID_STATE, "lane %u is busy with job %llu: wait until it has ended",
                  ref.lane, static_cast<unsigned long long>(slot->job_seq));
    let_go(*slot);
    return {};
  });
}

// ---- parked lanes -----------------------------------------------------------------------------

Result<void> LaneTable::park(const LaneRef& ref, Prefix&& prefix, int32_t priority) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(PrefixIndex * index, prefixes());
    CALRT_TRY_ASSIGN(Slot * slot, find_idle(ref));
    if (!slot->sequence.canonical())
      return fail(Status::INVALID_STATE, "lane %u: %s", ref.lane, slot->sequence.pending().c_str());
    if (prefix.tokens.size() != slot->sequence.length())
      return fail(Status::INVALID_ARGUMENT, "lane %u holds %u cells, but %zu tokens were given",
                  ref.lane, slot->sequence.length(), prefix.tokens.size());
    CALRT_TRY(index->insert(ref.lane, std::move(prefix), priority));
    let_go(*slot);
    slot->lease = slot->expires_ns = 0;
    slot->committed = false;
    slot->reserved = slot->spillable = 0;
    set_state(*slot, LaneState::PARKED);
    return {};
  });
}

Result<void> LaneTable::unpark(uint32_t lane) {
  return or_out_of_memory([&]() -> Result<void> {
    std::optional<PrefixEntry> gone;  // destroyed after the mutex
    Change change(*this);
    CALRT_TRY_ASSIGN(PrefixIndex * index, prefixes());
    CALRT_TRY(check_lane(lane));
    if (slots_[lane].state != LaneState::PARKED)
      return fail(Status::INVALID_STATE, "lane %u is %s, not parked", lane,
                  lane_state_name(slots_[lane].state));
    CALRT_TRY_ASSIGN(gone, index->take({PrefixPlace::LANE, lane}, PrefixEventKind::REMOVED));
    make_free(slots_[lane]);
    return {};
  });
}

Result<uint32_t> LaneTable::clear_prefixes() {
  return or_out_of_memory([&]() -> Result<uint32_t> {
    Change change(*this);
    CALRT_TRY_ASSIGN(PrefixIndex * index, prefixes());
    const uint32_t gone = index->clear();
    for (uint32_t lane = 0; lane < lanes(); ++lane) {
      if (slots_[lane].state == LaneState::PARKED &&
          index->get({PrefixPlace::LANE, lane}) == nullptr)
        make_free(slots_[lane]);
    }
    return gone;
  });
}

Result<PrefixMatch> LaneTable::find_prefix(const Prefix& wanted) const {
  return or_out_of_memory([&]() -> Result<PrefixMatch> {
    std::lock_guard lock(mutex_);
    return prefixes_ ? prefixes_->find(wanted) : PrefixMatch{};
  });
}

// ---- hosted blobs -----------------------------------------------------------------------------

Result<uint64_t> LaneTable::begin_hosted(Prefix&& prefix, uint64_t bytes, int32_t priority,
                                         std::vector<uint64_t>* evicted) {
  return or_out_of_memory([&]() -> Result<uint64_t> {
    Change change(*this);
    CALRT_TRY_ASSIGN(PrefixIndex * index, prefixes());
    return index->begin_hosted(std::move(prefix), bytes, priority, evicted);
  });
}

Result<void> LaneTable::end_hosted(uint64_t blob, bool ok) {
  return or_out_of_memory([&]() -> Result<void> {
    Change change(*this);
    CALRT_TRY_ASSIGN(PrefixIndex * index, prefixes());
    return index->end_hosted(blob, ok);
  });
}

Result<void> LaneTable::drop_hosted(uint64_t blob) {
  return or_out_of_memory([&]() -> Result<void> {
    std::optional<PrefixEntry> gone;
    Change change(*this);
    CALRT_TRY_ASSIGN(PrefixIndex * index, prefixes());
    CALRT_TRY_ASSIGN(gone, index->take({PrefixPlace::HOST, blob}, PrefixEventKind::REMOVED));
    return {};
  });
}

bool LaneTable::has_hosted(uint64_t blob) const {
  std::lock_guard lock(mutex_);
  return prefixes_ && prefixes_->get({PrefixPlace::HOST, blob}) != nullptr;
}

PrefixCounters LaneTable::prefix_counters() const {
  std::lock_guard lock(mutex_);
  return prefixes_ ? prefixes_->counters() : PrefixCounters{};
}

uint64_t LaneTable::hosted_bytes() const {
  std::lock_guard lock(mutex_);
  return prefixes_ ? prefixes_->hosted_bytes() : 0;
}

size_t LaneTable::drain_events(std::span<PrefixEvent> out) {
  std::lock_guard lock(mutex_);
  return prefixes_ ? prefixes_->drain_events(out) : 0;
}

}  // namespace calrt::kv
