// SPDX-License-Identifier: Apache-2.0
// Prefix reuse with data: parks lanes, brings a reserved lane to what its reservation found, and
// keeps the cells of evicted lanes on the host while there is room.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "engine/kv_mover.h"
#include "engine/kv_state.h"
#include "kv/lanes.h"

namespace calrt::engine {

// A lane that is the caller's, and what it holds of the prompt.
struct PreparedLane {
  kv::LaneRef lane;
  uint32_t reused = 0;  // cells; the prompt goes on behind them
  kv::Reuse::Kind how = kv::Reuse::Kind::NONE;
};

// What the host tier did, beside kv::PrefixCounters.
struct HostTierCounters {
  uint64_t spilled = 0, spill_failures = 0;     // lanes that were evicted and had room
  uint64_t restored = 0, restore_failures = 0;  // blobs that were asked for
};

// Thread-safe. prepare() waits for jobs of the device; nothing else does.
class PrefixCache {
 public:
  // `host_bytes`: of all blobs; 0 = none. UNSUPPORTED where cells can't be read and written.
  static Result<std::shared_ptr<PrefixCache>> make(std::shared_ptr<KvMover> mover, uint32_t every,
                                                   uint64_t host_bytes);
  // Tokens between two keys: nothing shorter is parked.
  uint32_t every() const { return every_; }

  // `salt`: only prompts with the same salt find these cells.
  Result<kv::Prefix> prefix(std::vector<int32_t> tokens, std::string salt) const;
  // The lease ends, its cells stay for a prompt that begins alike. `tokens`: of all its cells.
  Result<void> park(const kv::LaneRef& lane, std::vector<int32_t> tokens, std::string salt,
                    int32_t priority);
  // Commits the reservation and does what it found: cells to be saved on the host first, a copy of
  // a parked lane, a blob to be restored. What can't be done is a miss: `reused` is 0 then.
  Result<PreparedLane> prepare(kv::Reservation reservation, const MoveCall& call);
  // Forgets all that nobody reads, on the host too; how many prefixes.
  Result<uint32_t> clear();
  HostTierCounters host_counters() const;

 private:
  using Blob = std::shared_ptr<const std::vector<unsigned char>>;
  PrefixCache() = default;
  // False: there is no room for it, which the index has counted.
  Result<bool> spill(const kv::LaneRef& lane, kv::PrefixEntry entry, const MoveCall& call);
  Result<void> restore(const kv::LaneRef& lane, const kv::Reuse& reuse, const MoveCall& call);
  void drop(const std::vector<uint64_t>& blobs);

  std::shared_ptr<KvMover> mover_;
  kv::PrefixScope scope_;  // without salt
  uint32_t every_ = 0;
  bool hosts_ = false;
  mutable RankedMutex mutex_{LockRank::LEAF, "prefix cache"};
  std::map<uint64_t, Blob> blobs_;
  HostTierCounters counters_;
};

}  // namespace calrt::engine
