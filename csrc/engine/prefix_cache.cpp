// SPDX-License-Identifier: Apache-2.0
#include "engine/prefix_cache.h"

#include <algorithm>
#include <new>
#include <utility>

namespace calrt::engine {

Result<std::shared_ptr<PrefixCache>> PrefixCache::make(std::shared_ptr<KvMover> mover,
                                                       uint32_t every, uint64_t host_bytes) {
  const kv::MoveCaps& caps = mover->caps();
  if (host_bytes > 0 && !(caps.read && caps.write))
    return fail(Status::UNSUPPORTED,
                "host_bytes=%llu: this model's cells cannot be %s, so none can be kept on the "
                "host: leave host_bytes at 0",
                static_cast<unsigned long long>(host_bytes),
                caps.read    ? "written (kv_write)"
                : caps.write ? "read (kv_read)"
                             : "read (kv_read) and written (kv_write)");
  std::shared_ptr<PrefixCache> made(new PrefixCache);
  made->hosts_ = host_bytes > 0;
  kv::HostLimits limits;
  limits.bytes = host_bytes;
  CALRT_TRY(mover->queue()->table()->enable_prefixes(every, limits));
  made->scope_.package_sha256 = blob_identity(*mover).package_sha256;
  made->scope_.model = mover->model()->generation();
  made->every_ = every;
  made->mover_ = std::move(mover);
  return made;
}

Result<kv::Prefix> PrefixCache::prefix(std::vector<int32_t> tokens, std::string salt) const {
  kv::PrefixScope scope = scope_;
  scope.salt = std::move(salt);
  return kv::make_prefix(std::move(scope), std::move(tokens), every_);
}

Result<void> PrefixCache::park(const kv::LaneRef& lane, std::vector<int32_t> tokens,
                               std::string salt, int32_t priority) {
  CALRT_TRY_ASSIGN(kv::Prefix made, prefix(std::move(tokens), std::move(salt)));
  CALRT_TRY(mover_->queue()->table()->park(lane, std::move(made), priority));
  mover_->queue()->lane_freed();
  return {};
}

Result<PreparedLane> PrefixCache::prepare(kv::Reservation reservation, const MoveCall& call) {
  kv::LaneTable& table = *mover_->queue()->table();
  const kv::Reuse reuse = reservation.reuse();
  std::unique_ptr<kv::PrefixEntry> evicted = std::move(reservation.evicted());
  CALRT_TRY_ASSIGN(const kv::LaneRef lane, reservation.commit());
  PreparedLane ready{lane, reuse.tokens, reuse.kind};
  Result<void> done;
  if (evicted && hosts_) {
    const Result<bool> kept = spill(lane, *std::move(evicted), call);
    // A job that was lost reads the lane still: nobody may have it yet.
    const auto now = table.snapshot(lane);
    if (!kept.ok() && (!now.ok() || now->job_seq != 0)) done = kept.error();
    std::lock_guard lock(mutex_);
    if (!kept.ok())
      ++counters_.spill_failures;
    else if (*kept)
      ++counters_.spilled;
  }
  if (done.ok() && reuse.kind == kv::Reuse::Kind::COPY) done = mover_->reuse(lane, call);
  if (done.ok() && reuse.kind == kv::Reuse::Kind::HOSTED) {
    done = restore(lane, reuse, call);
    std::lock_guard lock(mutex_);
    ++(done.ok() ? counters_.restored : counters_.restore_failures);
  }
  if (done.ok()) return ready;
  (void)table.drop_reuse(lane).ok();
  // A lane that was half written is poisoned: it is given back, and the caller asks again.
  auto now = table.snapshot(lane);
  if (!now.ok() || now->state == kv::LaneState::POISONED || now->job_seq != 0) {
    (void)table.release(lane).ok();
    mover_->queue()->lane_freed();
    return std::move(done).error();
  }
  CALRT_TRY(table.clear(lane));
  return PreparedLane{lane, 0, kv::Reuse::Kind::NONE};
}

Result<bool> PrefixCache::spill(const kv::LaneRef& lane, kv::PrefixEntry entry,
                                const MoveCall& call) {
  kv::LaneTable& table = *mover_->queue()->table();
  const auto cells = static_cast<uint32_t>(entry.prefix.tokens.size());
  CALRT_TRY_ASSIGN(const uint64_t bytes, state_bytes(*mover_, cells, 0));
  std::vector<uint64_t> gone;
  const auto begun = table.begin_hosted(std::move(entry.prefix), bytes, entry.priority, &gone);
  drop(gone);
  if (!begun.ok()) {
    const Status why = begun.error().code;
    if (why == Status::OUT_OF_RANGE || why == Status::KV_NO_CAPACITY) return false;
    return begun.error();
  }
  const auto write = [&]() -> Result<void> {
    auto memory = std::make_shared<std::vector<unsigned char>>(bytes);
    MemorySink sink(*memory);
    CALRT_TRY(save_evicted(*mover_, lane, cells, sink, call));
    std::lock_guard lock(mutex_);
    blobs_.emplace(*begun, std::move(memory));
    return {};
  };
  Result<void> written;
  try {
    written = write();
  } catch (const std::bad_alloc&) {
    written = fail(Status::OUT_OF_HOST_MEMORY, "no memory for %llu bytes of evicted cells",
                   (unsigned long long)bytes);
  }
  (void)table.end_hosted(*begun, written.ok()).ok();
  CALRT_TRY(written);
  return true;
}

Result<void> PrefixCache::restore(const kv::LaneRef& lane, const kv::Reuse& reuse,
                                  const MoveCall& call) {
  Blob blob;
  {
    std::lock_guard lock(mutex_);
    const auto found = blobs_.find(reuse.id);
    if (found != blobs_.end()) blob = found->second;
  }
  if (blob == nullptr)
    return fail(Status::INVALID_HANDLE, "blob %llu is not kept any more",
                (unsigned long long)reuse.id);
  MemorySource source(*blob);
  CALRT_TRY(load_state(*mover_, lane, source, call));
  CALRT_TRY(mover_->queue()->table()->truncate(lane, reuse.tokens));
  return mover_->queue()->table()->drop_reuse(lane);  // the blob may go now
}

void PrefixCache::drop(const std::vector<uint64_t>& blobs) {
  std::vector<Blob> gone;  // freed without the mutex
  std::lock_guard lock(mutex_);
  for (const uint64_t id : blobs) {
    const auto found = blobs_.find(id);
    if (found == blobs_.end()) continue;
    gone.push_back(std::move(found->second));
    blobs_.erase(found);
  }
}

Result<uint32_t> PrefixCache::clear() {
  kv::LaneTable& table = *mover_->queue()->table();
  CALRT_TRY_ASSIGN(const uint32_t gone, table.clear_prefixes());
  mover_->queue()->lane_freed();
  std::vector<uint64_t> dead;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, blob] : blobs_)
      if (!table.has_hosted(id)) dead.push_back(id);
  }
  drop(dead);
  return gone;
}

HostTierCounters PrefixCache::host_counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

}  // namespace calrt::engine
