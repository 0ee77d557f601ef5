// SPDX-License-Identifier: Apache-2.0
// Prefix keys against their definition; of the index: exact matches, salts, forged keys, order of
// eviction, pins, limits, events. prefix_model_test.cpp has its random operations.
#include "kv/prefix.h"

#include <algorithm>
#include <string>

#include "base/sha256.h"
#include "tests/check.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

constexpr uint32_t kEvery = 4, kLanes = 6;

PrefixScope scope_of(const char* salt) {
  PrefixScope scope;
  scope.package_sha256[0] = 7;
  scope.model = 3;
  scope.salt = salt;
  return scope;
}

Prefix prefix_of(std::vector<int32_t> tokens, const char* salt = "a") {
  return make_prefix(scope_of(salt), std::move(tokens), kEvery).value();
}

// 0, 1, 2 ... n - 1, with `last` in place of the last.
std::vector<int32_t> count(int32_t n, int32_t last = -1) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < n; ++i) tokens.push_back(i);
  if (last >= 0) tokens.back() = last;
  return tokens;
}

PrefixIndex index_of(HostLimits limits = {}) {
  return PrefixIndex::make(kLanes, kEvery, limits).value();
}

PrefixHolder lane(uint64_t id) { return {PrefixPlace::LANE, id}; }
PrefixHolder blob(uint64_t id) { return {PrefixPlace::HOST, id}; }

bool insert(PrefixIndex& index, uint32_t at, Prefix prefix, int32_t priority = 0) {
  return index.insert(at, std::move(prefix), priority).ok();
}

uint64_t host(PrefixIndex& index, Prefix prefix, uint64_t bytes, int32_t priority = 0) {
  std::vector<uint64_t> evicted;
  auto id = index.begin_hosted(std::move(prefix), bytes, priority, &evicted);
  if (!id.ok() || !index.end_hosted(*id, true).ok()) return 0;
  return *id;
}

bool is(const PrefixMatch& match, PrefixHolder holder, uint32_t tokens) {
  return match && match.holder == holder && match.tokens == tokens;
}

Status status(const auto& result) { return result.ok() ? Status::OK : result.error().code; }

bool sound(const PrefixIndex& index) {
  const auto result = index.check_integrity();
  if (!result.ok()) std::fprintf(stderr, "%s\n", result.error().message.c_str());
  return result.ok();
}

}  // namespace

TEST(keys_are_the_chain_that_is_written) {
  const auto bytes = [](const auto& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  const PrefixScope scope = scope_of("tenant");
  std::string text("calrt prefix v1\0", 16);
  text += bytes(scope.package_sha256) + bytes(scope.model) + bytes(kEvery) + bytes(uint64_t{6});
  text += scope.salt;
  const Prefix prefix = prefix_of(count(11), "tenant");
  CHECK(prefix.keys.size() == 2);  // 11 tokens have two whole steps of 4
  for (size_t step = 0; step < 2; ++step) {
    Sha256 sha;
    sha.update(text.data(), text.size());
    const auto before = sha.digest();
    text.assign(reinterpret_cast<const char*>(before.data()), 32);
    for (int32_t i = 0; i < 4; ++i) text += bytes(static_cast<int32_t>(4 * step) + i);
    CHECK(hex(prefix.keys[step]) == sha256_hex(text.data(), text.size()));
  }
}

TEST(keys_tell_every_part_of_the_scope_apart) {
  std::vector<PrefixKey> keys;
  const auto add = [&](const PrefixScope& scope, uint32_t every) {
    keys.push_back(make_prefix(scope, count(8), every).value().keys.front());
  };
  PrefixScope scope = scope_of("a");
  add(scope, 4);
  add(scope, 8);
  scope.salt = "b";
  add(scope, 4);
  scope.salt.assign("a\0", 2);
  add(scope, 4);
  scope.salt.clear();
  add(scope, 4);
  scope.model = 4;
  add(scope, 4);
  scope.package_sha256[31] = 1;
  add(scope, 4);
  std::sort(keys.begin(), keys.end());
  CHECK(std::adjacent_find(keys.begin(), keys.end()) == keys.end());
}

TEST(prefixes_that_cannot_be) {
  CHECK(status(make_prefix({}, count(4), 0)) == Status::INVALID_ARGUMENT);
  const auto negative = make_prefix({}, {1, 2, -3}, 2);
  CHECK(status(negative) == Status::INVALID_ARGUMENT);
  CHECK(negative.error().message.find("tokens[2]=-3") != std::string::npos);
  CHECK(make_prefix({}, {}, 2).value().keys.empty());
  CHECK(status(PrefixIndex::make(1, 0)) == Status::INVALID_ARGUMENT);
}

TEST(what_is_not_taken_in) {
  PrefixIndex index = index_of();
  CHECK(status(index.insert(kLanes, prefix_of(count(8)), 0)) == Status::INVALID_ARGUMENT);
  CHECK(status(index.insert(0, prefix_of(count(3)), 0)) == Status::INVALID_ARGUMENT);
  CHECK(status(index.insert(0, make_prefix({}, count(8), 8).value(), 0)) ==
        Status::INVALID_ARGUMENT);
  Prefix keyless = prefix_of(count(8));
  keyless.keys.pop_back();
  CHECK(status(index.insert(0, std::move(keyless), 0)) == Status::INVALID_ARGUMENT);
  CHECK(keyless.tokens.size() == 8);  // a refusal leaves it whole
  CHECK(insert(index, 0, prefix_of(count(8))));
  CHECK(status(index.insert(0, prefix_of(count(8)), 0)) == Status::INVALID_STATE);
  CHECK(index.parked() == 1 && index.counters().stored == 1 && sound(index));
}

TEST(exact_number_of_equal_tokens) {
  PrefixIndex index = index_of();
  CHECK(insert(index, 2, prefix_of(count(10))));
  CHECK(!index.find(prefix_of(count(3))));  // shorter than a step
  CHECK(!index.find(prefix_of(count(4, 99))));
  for (int32_t n = 4; n <= 12; ++n) {
    const uint32_t equal = static_cast<uint32_t>(std::min(n, 10));
    CHECK(is(index.find(prefix_of(count(n))), lane(2), equal));
    if (n > 4 && n <= 10) CHECK(is(index.find(prefix_of(count(n, 99))), lane(2), equal - 1));
  }
  CHECK(index.find(prefix_of(count(6))).held == 10);
  Prefix other = make_prefix(scope_of("a"), count(10), 5).value();
  CHECK(!index.find(other));  // keys of another step
}

TEST(longest_wins_then_the_cheapest) {
  PrefixIndex index = index_of({1000, 8});
  const uint64_t hosted = host(index, prefix_of(count(12)), 10);
  CHECK(is(index.find(prefix_of(count(20))), blob(hosted), 12));
  CHECK(insert(index, 0, prefix_of(count(8))));
  CHECK(is(index.find(prefix_of(count(20))), blob(hosted), 12));  // more tokens than lane 0
  CHECK(is(index.find(prefix_of(count(20)), {.hosted = false}), lane(0), 8));
  CHECK(is(index.find(prefix_of(count(8))), lane(0), 8));  // equal: a lane needs no restore
  CHECK(insert(index, 1, prefix_of(count(16, 99))));
  CHECK(is(index.find(prefix_of(count(20))), lane(1), 15));
  CHECK(is(index.find(prefix_of(count(8))), lane(0), 8));  // equal: fewer of its tokens are lost
  CHECK(index.pin(lane(0)).ok());
  CHECK(is(index.find(prefix_of(count(8))), lane(1), 8));  // equal: nobody reads it
  CHECK(is(index.find(prefix_of(count(8)), {.lanes = false}), lane(0), 8));
  CHECK(is(index.find(prefix_of(count(8)), {.lanes = false, .pinned = false}), blob(hosted), 8));
  CHECK(!index.find(prefix_of(count(8)), {false, false, false}));
  CHECK(index.unpin(lane(0)).ok());
  CHECK(insert(index, 2, prefix_of(count(8))));
  CHECK(is(index.find(prefix_of(count(8))), lane(2), 8));  // equal: the latest used
  index.hit(lane(0), 8);
  CHECK(is(index.find(prefix_of(count(8))), lane(0), 8));
  CHECK(sound(index));
}

TEST(salts_separate_tenants) {
  PrefixIndex index = index_of({1000, 8});
  CHECK(insert(index, 0, prefix_of(count(12), "a")));
  host(index, prefix_of(count(12), "a"), 10);
  CHECK(!index.find(prefix_of(count(12), "b")));
  CHECK(!index.find(prefix_of(count(12), "")));
  CHECK(is(index.find(prefix_of(count(12), "a")), lane(0), 12));
  Prefix adapted = make_prefix({scope_of("a").package_sha256, 4, "a"}, count(12), kEvery).value();
  CHECK(!index.find(adapted));
}

TEST(forged_keys_never_hit) {
  PrefixIndex index = index_of();
  const Prefix mine = prefix_of(count(12), "a");
  // Another tenant's tokens under my keys; and my tokens and keys under his salt.
  Prefix other_tokens = prefix_of({9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}, "b");
  other_tokens.keys = mine.keys;
  Prefix other_scope = mine;
  other_scope.scope.salt = "b";
  Prefix same_scope = prefix_of({0, 1, 2, 3, 9, 5, 6, 7, 8, 9, 10, 11}, "a");
  same_scope.keys = mine.keys;
  CHECK(insert(index, 0, other_tokens) && insert(index, 1, other_scope));
  CHECK(insert(index, 2, same_scope));
  CHECK(!index.find(mine) && sound(index));
  CHECK(insert(index, 3, prefix_of(count(9, 99), "a")));
  CHECK(is(index.find(mine), lane(3), 8));  // found behind them
  CHECK(insert(index, 4, mine));
  CHECK(is(index.find(mine), lane(4), 12));
  for (const uint64_t id : {0, 1, 2, 3, 4})
    CHECK(index.take(lane(id), PrefixEventKind::REMOVED).ok());
  CHECK(index.parked() == 0 && sound(index));
}

TEST(victims_by_priority_then_use_and_never_pinned) {
  PrefixIndex index = index_of();
  CHECK(!index.victim_lane());
  CHECK(insert(index, 0, prefix_of(count(8)), 5));
  CHECK(insert(index, 1, prefix_of(count(8)), 1));
  CHECK(insert(index, 2, prefix_of(count(8)), 1));
  CHECK(insert(index, 3, prefix_of(count(8)), 9));
  CHECK(index.evictable_lanes() == 4);
  CHECK(index.victim_lane() == 1u);
  index.hit(lane(1), 8);
  CHECK(index.victim_lane() == 2u);
  CHECK(index.pin(lane(2)).ok() && index.pin(lane(2)).ok() && index.evictable_lanes() == 3);
  CHECK(index.victim_lane() == 1u);
  CHECK(status(index.take(lane(2), PrefixEventKind::EVICTED)) == Status::INVALID_STATE);
  CHECK(index.unpin(lane(2)).ok());
  CHECK(index.victim_lane() == 1u && index.evictable_lanes() == 3);  // one reader is left
  CHECK(index.unpin(lane(2)).ok());
  CHECK(index.victim_lane() == 2u && index.evictable_lanes() == 4);
  CHECK(status(index.unpin(lane(2))) == Status::INVALID_STATE);
  CHECK(status(index.pin(lane(5))) == Status::INVALID_HANDLE);
  CHECK(status(index.unpin(lane(5))) == Status::INVALID_HANDLE);
  CHECK(status(index.take(lane(5), PrefixEventKind::EVICTED)) == Status::INVALID_HANDLE);
  for (const uint32_t next : {2u, 1u, 0u, 3u}) {
    CHECK(index.victim_lane() == next);
    auto gone = index.take(lane(next), PrefixEventKind::EVICTED);
    CHECK(gone.ok() && gone->prefix.tokens == count(8));
  }
  CHECK(index.counters().evicted_lanes == 4 && sound(index));
}

TEST(host_limit) {
  PrefixIndex none = index_of();
  std::vector<uint64_t> evicted;
  CHECK(status(none.begin_hosted(prefix_of(count(8)), 1, 0, &evicted)) == Status::OUT_OF_RANGE);
  CHECK(none.counters().host_refused == 1);

  PrefixIndex index = index_of({100, 3});
  const auto begin = [&](uint64_t bytes, int32_t priority) {
    evicted.clear();
    return index.begin_hosted(prefix_of(count(8)), bytes, priority, &evicted);
  };
  CHECK(status(begin(101, 9)) == Status::OUT_OF_RANGE);
  CHECK(status(begin(UINT64_MAX, 9)) == Status::OUT_OF_RANGE);
  const uint64_t a = begin(40, 0).value();
  CHECK(!index.find(prefix_of(count(8))) && index.hosted_bytes() == 40);  // unfinished
  CHECK(status(index.pin(blob(a))) == Status::INVALID_HANDLE);
  CHECK(status(index.take(blob(a), PrefixEventKind::REMOVED)) == Status::INVALID_STATE);
  CHECK(status(begin(61, 0)) == Status::KV_NO_CAPACITY && evicted.empty());
  CHECK(index.end_hosted(a, true).ok() && is(index.find(prefix_of(count(8))), blob(a), 8));
  CHECK(status(index.end_hosted(a, true)) == Status::INVALID_HANDLE);
  const uint64_t b = begin(60, 1).value();
  CHECK(index.end_hosted(b, true).ok() && evicted.empty() && index.hosted_bytes() == 100);
  // Room for one more byte: the least used of the lowest priority goes, and only it.
  const uint64_t c = begin(1, 0).value();
  CHECK(evicted == std::vector<uint64_t>{a} && index.hosted_bytes() == 61);
  CHECK(index.end_hosted(c, false).ok() && index.hosted_bytes() == 60);  // its bytes never came
  CHECK(index.counters().host_aborted == 1);
  CHECK(status(begin(41, 0)) == Status::KV_NO_CAPACITY);  // b has a higher priority
  CHECK(index.pin(blob(b)).ok());
  CHECK(status(begin(41, 1)) == Status::KV_NO_CAPACITY);  // and now it is read
  CHECK(index.unpin(blob(b)).ok());
  const uint64_t d = begin(100, 1).value();
  CHECK(evicted == std::vector<uint64_t>{b} && index.end_hosted(d, true).ok());
  CHECK(index.take(blob(d), PrefixEventKind::REMOVED).ok() && index.hosted_bytes() == 0);
  // Three blobs, no more, and several go for one that is large.
  std::vector<uint64_t> small;
  for (int i = 0; i < 3; ++i) {
    small.push_back(begin(10, 0).value());
    CHECK(index.end_hosted(small.back(), true).ok() && evicted.empty());
  }
  index.hit(blob(small[0]), 8);
  CHECK(index.end_hosted(begin(10, 0).value(), true).ok());
  CHECK(evicted == std::vector<uint64_t>{small[1]});
  CHECK(index.end_hosted(begin(85, 0).value(), true).ok());
  CHECK((evicted == std::vector<uint64_t>{small[2], small[0]}));  // 10 + 85 fit
  CHECK(sound(index));
}

TEST(events_tell_what_happened) {
  PrefixIndex index = index_of({100, 3});
  const Prefix first = prefix_of(count(9));
  CHECK(insert(index, 4, first));
  const uint64_t hosted = host(index, prefix_of(count(12)), 60);
  host(index, prefix_of(count(8)), 60);
  (void)index.take(lane(4), PrefixEventKind::REMOVED);
  CHECK(insert(index, 5, first));
  (void)index.take(lane(5), PrefixEventKind::EVICTED);
  CHECK(index.clear() == 1);
  std::vector<PrefixEvent> events(20);
  CHECK(index.drain_events({events.data(), 2}) == 2);
  events.resize(2 + index.drain_events({events.data() + 2, 18}));
  using K = PrefixEventKind;
  const std::vector<K> kinds = {K::STORED,  K::HOSTED, K::EVICTED, K::HOSTED,
                                K::REMOVED, K::STORED, K::EVICTED, K::CLEARED};
  CHECK(events.size() == kinds.size());
  for (size_t i = 0; i < std::min(events.size(), kinds.size()); ++i)
    CHECK(events[i].kind == kinds[i] && events[i].number == i);
  CHECK(events[0].holder == lane(4) && events[0].tokens == 9 && events[0].key == first.keys[1]);
  CHECK(events[1].holder == blob(hosted) && events[2].holder == blob(hosted));
  CHECK(events[7].tokens == 1);
  CHECK(index.drain_events(events) == 0);
  CHECK(std::string(prefix_event_name(K::EVICTED)) == "evicted");
  CHECK(std::string(prefix_place_name(PrefixPlace::HOST)) == "host");
}

TEST(events_are_bounded) {
  PrefixIndex index = index_of();
  for (size_t i = 0; i < PrefixIndex::kEvents; ++i) index.clear();
  CHECK(index.counters().events_lost == 0);
  for (int i = 0; i < 10; ++i) index.clear();
  CHECK(index.counters().events_lost == 10);
  std::vector<PrefixEvent> events(1000);
  CHECK(index.drain_events(events) == PrefixIndex::kEvents);
  CHECK(events[0].number == 10);  // the oldest went
}

TEST(clear_spares_readers_and_writers) {
  PrefixIndex index = index_of({100, 3});
  CHECK(insert(index, 0, prefix_of(count(8))) && insert(index, 1, prefix_of(count(8))));
  const uint64_t done = host(index, prefix_of(count(8)), 10);
  std::vector<uint64_t> evicted;
  const uint64_t under_way = index.begin_hosted(prefix_of(count(8)), 10, 0, &evicted).value();
  CHECK(index.pin(lane(1)).ok());
  CHECK(index.clear() == 2);
  CHECK(index.get(lane(0)) == nullptr && index.get(lane(1)) != nullptr);
  CHECK(index.get(blob(done)) == nullptr && index.get(blob(under_way)) != nullptr);
  CHECK(index.end_hosted(under_way, true).ok() && index.hosted_bytes() == 10 && sound(index));
}
