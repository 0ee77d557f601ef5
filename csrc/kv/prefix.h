// SPDX-License-Identifier: Apache-2.0
// Prefix reuse: which parked lane or hosted blob already holds the beginning of a prompt.
//
// A Prefix is token ids with a chain of SHA-256 keys, one key every `every` tokens; it is made
// outside of any lock. A PrefixIndex holds the prefixes of parked lanes (prefix_index.cpp) and of
// blobs that the host keeps; LaneTable owns one and calls it with its mutex held. A hit is never
// taken on a hash alone: scope and tokens are compared too.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"

namespace calrt::kv {

using PrefixKey = std::array<uint8_t, 32>;

// What must be equal besides the tokens for cells to be shared.
struct PrefixScope {
  std::array<uint8_t, 32> package_sha256{};
  uint64_t model = 0;  // the table's generation, or an adapter's id
  std::string salt;    // the tenant's; users of different salts never share cells
  bool operator==(const PrefixScope&) const = default;
};

// Plain data; whoever holds it owns it. keys[i] sums up the scope and tokens [0, (i + 1) * every).
struct Prefix {
  PrefixScope scope;
  uint32_t every = 0;
  std::vector<PrefixKey> keys;  // tokens.size() / every of them
  std::vector<int32_t> tokens;
};

// The chain: keys[i] = SHA-256(keys[i - 1], tokens of step i), keys[-1] = SHA-256(scope, every).
// INVALID_ARGUMENT: every == 0, a token < 0. Thread-safe; takes about 1 us for each KiB of tokens.
Result<Prefix> make_prefix(PrefixScope scope, std::vector<int32_t> tokens, uint32_t every);
// The keys of both as strings of bytes: < 0, 0, > 0. Keys of any kind have an order, forged too.
int compare_keys(const Prefix& a, const Prefix& b);

enum class PrefixPlace : uint8_t { LANE, HOST };
const char* prefix_place_name(PrefixPlace place);  // "lane"

// Who has the cells: a lane by number, a blob by the id that begin_hosted() gave.
struct PrefixHolder {
  PrefixPlace place = PrefixPlace::LANE;
  uint64_t id = 0;
  bool operator==(const PrefixHolder&) const = default;
};

struct PrefixMatch {
  PrefixHolder holder;
  uint32_t tokens = 0;  // equal ones from the beginning, >= every; 0: nothing matched
  uint32_t held = 0;    // tokens that the holder has in all
  uint32_t pins = 0;    // of the holder
  explicit operator bool() const { return tokens > 0; }
};

// Which holders a search may answer with.
struct PrefixFilter {
  bool lanes = true;   // parked lanes nobody reads
  bool pinned = true;  // parked lanes that someone copies from
  bool hosted = true;
};

struct PrefixEntry {
  Prefix prefix;
  int32_t priority = 0;  // the higher, the longer it stays
  uint32_t pins = 0;     // readers; a pinned entry is neither evicted nor taken
  uint64_t used = 0;     // the index's use counter when it was stored or hit last; unique
  uint64_t bytes = 0;    // of the blob; 0 for a lane
  bool ready = true;     // a blob whose bytes are still being read is not found
};

enum class PrefixEventKind : uint8_t { STORED, REMOVED, EVICTED, HOSTED, CLEARED };
const char* prefix_event_name(PrefixEventKind kind);  // "stored"

struct PrefixEvent {
  uint64_t number = 0;  // rises by 1; a hole is events that were lost
  PrefixEventKind kind = PrefixEventKind::STORED;
  PrefixHolder holder;  // not of CLEARED
  uint32_t tokens = 0;  // of the entry; of CLEARED: entries that went
  PrefixKey key{};      // the entry's last
};

// stored + hosted = removed + evicted + cleared + entries in the index, blobs not ready left out.
struct PrefixCounters {
  uint64_t hits = 0, misses = 0, hit_tokens = 0;
  uint64_t stored = 0, hosted = 0;    // entries that came
  uint64_t removed = 0, cleared = 0;  // entries that went
  uint64_t evicted_lanes = 0, evicted_blobs = 0;
  uint64_t host_refused = 0, host_aborted = 0;  // blobs that never were
  uint64_t events_lost = 0;                     // nobody drained them in time
};

struct HostLimits {
  uint64_t bytes = 0;      // of all blobs; 0: nothing is hosted
  uint32_t blobs = 4'096;  // how many
};

// Not thread-safe, no clock. An operation that fails changes nothing but counters of refusals;
// OUT_OF_HOST_MEMORY included. Costs: find O(log n) comparisons of keys, then of those that share
// the longest chain; victim O(lanes) or O(blobs); the others O(1) lookups and one sorted insertion.
class PrefixIndex {
 public:
  static constexpr size_t kEvents = 256;  // kept until drained; the oldest is lost first

  // Allocates all but the entries themselves. INVALID_ARGUMENT: every == 0.
  static Result<PrefixIndex> make(uint32_t lanes, uint32_t every, HostLimits limits = {});

  uint32_t every() const { return every_; }
  // The holder with most equal leading tokens (chain, scope and tokens compared). Of equals: an
  // unpinned lane, then a pinned one, then a blob; then the one with fewest tokens behind the
  // match; then the latest used. Counts nothing. A caller who must recompute a token cuts
  // `tokens` to n - 1 himself.
  PrefixMatch find(const Prefix& wanted, PrefixFilter filter = {}) const;
  // What was made of an answer, for LRU and counters. `tokens`: cells that were reused.
  void hit(PrefixHolder holder, uint32_t tokens);
  void miss() { ++counters_.misses; }

  // `lane` is parked with these tokens. INVALID_ARGUMENT: fewer than `every` tokens or another
  // `every`, a lane out of range; INVALID_STATE: it is there already. `prefix` is moved from only
  // if it succeeded.
  Result<void> insert(uint32_t lane, Prefix&& prefix, int32_t priority);

  // Room for a blob of `bytes`, counted from now on, found after end_hosted(id, true). Blobs of
  // lower or equal priority make room, lowest first, then least recently used; their ids are
  // appended to `evicted`, whose bytes the caller drops. OUT_OF_RANGE if it can never fit;
  // KV_NO_CAPACITY if too much is pinned, unfinished or of higher priority.
  Result<uint64_t> begin_hosted(Prefix&& prefix, uint64_t bytes, int32_t priority,
                                std::vector<uint64_t>* evicted);
  // Its bytes are there (found from now on), or never will be (gone; not an event). INVALID_HANDLE
  // if no such blob is unfinished.
  Result<void> end_hosted(uint64_t blob, bool ok);

  // Null if it has none. Valid until the entry goes.
  const PrefixEntry* get(PrefixHolder holder) const;
  // A reader comes and goes. INVALID_HANDLE without entry; INVALID_STATE: none left to go.
  Result<void> pin(PrefixHolder holder);
  Result<void> unpin(PrefixHolder holder);
  // The lane to evict: unpinned, lowest priority, then least recently used. Nothing if all are
  // pinned or there is none.
  std::optional<uint32_t> victim_lane() const;
  uint32_t evictable_lanes() const { return evictable_lanes_; }  // parked and not pinned

  // Takes the entry out; the caller destroys it outside of his lock. REMOVED: taken over, released,
  // dropped; EVICTED: made room. INVALID_HANDLE without entry; INVALID_STATE: pinned or unfinished.
  Result<PrefixEntry> take(PrefixHolder holder, PrefixEventKind why);
  // All entries go that are neither pinned nor unfinished; their number. Whose they were is found
  // by get().
  uint32_t clear();

  uint32_t parked() const { return static_cast<uint32_t>(lanes_.size()); }
  uint32_t blobs() const { return static_cast<uint32_t>(blobs_.size()); }  // unfinished included
  uint64_t hosted_bytes() const { return hosted_bytes_; }                  // unfinished included
  const HostLimits& limits() const { return limits_; }
  const PrefixCounters& counters() const { return counters_; }
  // The oldest events into `out`, and out of the list; how many.
  size_t drain_events(std::span<PrefixEvent> out);
  // Every invariant of the index; the first broken one is named.
  Result<void> check_integrity() const;

 private:
  using Entries = std::unordered_map<uint64_t, PrefixEntry>;
  struct Row {  // of the sorted index
    PrefixHolder holder;
    PrefixEntry* entry;
  };
  PrefixIndex() = default;
  Entries& of(PrefixPlace place) { return place == PrefixPlace::LANE ? lanes_ : blobs_; }
  PrefixEntry* look(PrefixHolder holder);
  // Where `entry` stands in the sorted list; its end if it does not.
  std::vector<Row>::const_iterator row_of(const PrefixEntry& entry) const;
  Result<void> check_new(const Prefix& prefix) const;
  void add(PrefixHolder holder, Prefix&& prefix, PrefixEntry&& rest);
  PrefixEntry extract(PrefixHolder holder);
  // `prefix` is the entry's; null for CLEARED, of which `entries` went.
  void note(PrefixEventKind kind, PrefixHolder holder, const Prefix* prefix, uint32_t entries = 0);

  Entries lanes_, blobs_;
  std::vector<Row> sorted_;          // by keys (compare_keys); room for all is reserved
  std::vector<PrefixEvent> events_;  // a ring
  uint64_t events_begin_ = 0, events_end_ = 0;
  HostLimits limits_;
  PrefixCounters counters_;
  uint64_t uses_ = 0, next_blob_ = 1, hosted_bytes_ = 0;
  uint32_t lane_count_ = 0, every_ = 0, evictable_lanes_ = 0;
};

}  // namespace calrt::kv
