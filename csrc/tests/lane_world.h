// SPDX-License-Identifier: Apache-2.0
// A lane table with prefixes, and short ways to fill, park and look at its lanes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kv/lanes.h"
#include "tests/check.h"

namespace calrt::testing {

struct LaneWorld {
  static constexpr uint32_t kCells = 64, kEvery = 4;
  std::shared_ptr<kv::LaneTable> table;
  uint64_t seq = 0;  // of the latest job

  explicit LaneWorld(uint32_t lanes, kv::MoveCaps caps = kv::MoveCaps::all())
      : table(kv::LaneTable::make(lanes, kCells, 1, caps)) {
    CHECK(table->enable_prefixes(kEvery, {.bytes = 1 << 20}).ok());
  }

  // Tokens that only `who` has, from the first on.
  static kv::Prefix prefix(int32_t who, uint32_t n, const char* salt = "") {
    std::vector<int32_t> tokens;
    for (uint32_t i = 0; i < n; ++i) tokens.push_back(who * 1000 + static_cast<int32_t>(i));
    kv::PrefixScope scope;
    scope.salt = salt;
    return kv::make_prefix(scope, std::move(tokens), kEvery).value();
  }

  kv::LaneRef own(uint32_t n, uint32_t prefer = kv::kAnyLane) {
    kv::Reservation reservation =
        table->try_reserve(kCells, 0, prefer, prefer != kv::kAnyLane).value();
    const kv::LaneRef ref = reservation.commit().value();
    if (n > 0) fill(ref, n);
    return ref;
  }
  void fill(const kv::LaneRef& ref, uint32_t n) {
    CHECK(table->begin_job(ref, ++seq, n, true).ok() && table->end_job(ref, seq, true, true));
  }
  uint32_t park(int32_t who, uint32_t n, int32_t priority = 0, uint32_t prefer = kv::kAnyLane) {
    const kv::LaneRef ref = own(n, prefer);
    CHECK(table->park(ref, prefix(who, n), priority).ok());
    return ref.lane;
  }
  uint64_t host(int32_t who, uint32_t n, uint64_t bytes) {
    std::vector<uint64_t> evicted;
    const uint64_t blob = table->begin_hosted(prefix(who, n), bytes, 0, &evicted).value();
    CHECK(table->end_hosted(blob, true).ok());
    return blob;
  }
  Result<kv::Reservation> reuse(const kv::Prefix& prompt, uint32_t tokens = kCells) {
    return table->try_reserve({.tokens = tokens, .prompt = &prompt}, 0);
  }

  kv::LaneState state(uint32_t lane) const { return table->snapshot(lane).state; }
  uint32_t length(uint32_t lane) const { return table->snapshot(lane).length; }
  uint32_t pins(uint32_t lane) const { return table->snapshot(lane).pins; }
  bool whole() const {
    const auto found = table->check_integrity();
    if (!found.ok()) std::fprintf(stderr, "%s\n", found.error().message.c_str());
    return found.ok();
  }

  // All that can be asked of the table, with the sequences of these leases.
  std::string seen(const std::vector<kv::LaneRef>& refs) const {
    std::string out;
    const auto put = [&](uint64_t number) { out += std::to_string(number) + ' '; };
    for (uint32_t i = 0; i < table->lanes(); ++i) {
      const kv::LaneSnapshot now = table->snapshot(i);
      for (const uint64_t number :
           {uint64_t(now.state), uint64_t{now.length}, uint64_t{now.reserved}, now.job_seq,
            uint64_t{now.canonical}, uint64_t{now.pins}, uint64_t{now.failed_scrubs}})
        put(number);
    }
    for (const kv::LaneRef& ref : refs) {
      const auto sequence = table->sequence(ref);
      put(sequence.ok());
      if (!sequence.ok()) continue;
      for (const kv::Run& run : sequence->runs())
        for (const int64_t number : {int64_t{run.cell}, int64_t{run.n}, int64_t{run.pos},
                                     int64_t{run.coded}, int64_t{run.same}})
          put(static_cast<uint64_t>(number));
    }
    const kv::PrefixCounters c = table->prefix_counters();
    for (const uint64_t number :
         {c.hits, c.misses, c.hit_tokens, c.stored, c.hosted, c.removed, c.cleared, c.evicted_lanes,
          c.evicted_blobs, c.events_lost, table->hosted_bytes(), table->stale_completions(),
          uint64_t{table->free_lanes()}, uint64_t{table->poisoned_lanes()}})
      put(number);
    return out;
  }
};

template <class T>
bool is(const Result<T>& got, Status code) {
  return got.ok() ? code == Status::OK : got.error().code == code;
}

}  // namespace calrt::testing
