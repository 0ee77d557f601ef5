// SPDX-License-Identifier: Apache-2.0
// The prefix index against a model that looks at every entry, through random operations; and with
// every allocation failing in turn.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "kv/prefix.h"
#include "tests/check.h"
#include "tests/failing_new.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

constexpr uint32_t kEvery = 3, kLanes = 5;
constexpr HostLimits kLimits{100, 6};

uint32_t next_random() {
  static uint32_t x = 2463534242;
  x ^= x << 13;
  x ^= x >> 17;
  return x ^= x << 5;
}

Prefix prefix_of(std::vector<int32_t> tokens, uint64_t tenant) {
  PrefixScope scope;
  scope.salt = std::string("tenant") + static_cast<char>('a' + tenant);
  return make_prefix(std::move(scope), std::move(tokens), kEvery).value();
}

// Few tokens that differ seldom, so that prompts share beginnings of all lengths.
Prefix random_prefix(uint32_t least) {
  std::vector<int32_t> tokens(least + next_random() % 16);
  for (auto& token : tokens) token = next_random() % 6 == 0;
  return prefix_of(std::move(tokens), next_random() % 2);
}

struct Entry {
  Prefix prefix;
  int32_t priority = 0;
  uint32_t pins = 0;
  uint64_t used = 0, bytes = 0;
  bool ready = true;
};

// All that PrefixIndex promises, by looking at every entry, without keys.
struct Model {
  std::map<uint64_t, Entry> lanes, blobs;
  PrefixCounters counters;
  uint64_t uses = 0, next_blob = 1;

  PrefixMatch find(const Prefix& wanted, PrefixFilter filter) const {
    using Rank = std::tuple<uint32_t, int, int64_t, uint64_t>;  // the greatest is best
    Rank best_rank;
    PrefixMatch best;
    const auto look = [&](PrefixHolder holder, const Entry& entry) {
      const bool is_lane = holder.place == PrefixPlace::LANE;
      if (!entry.ready || entry.prefix.scope != wanted.scope) return;
      if (is_lane ? !(entry.pins > 0 ? filter.pinned : filter.lanes) : !filter.hosted) return;
      const std::vector<int32_t>&a = entry.prefix.tokens, &b = wanted.tokens;
      uint32_t same = 0;
      while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
      if (same < kEvery) return;
      const int cheap = !is_lane ? 0 : entry.pins > 0 ? 1 : 2;
      const Rank rank{same, cheap, -static_cast<int64_t>(a.size()), entry.used};
      if (best && rank < best_rank) return;
      best_rank = rank;
      best = {holder, same, static_cast<uint32_t>(a.size()), entry.pins};
    };
    for (const auto& [id, entry] : lanes) look({PrefixPlace::LANE, id}, entry);
    for (const auto& [id, entry] : blobs) look({PrefixPlace::HOST, id}, entry);
    return best;
  }

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const auto& [id, entry] : blobs) sum += entry.bytes;
    return sum;
  }

  // The next to go, at most of `priority`.
  static std::optional<uint64_t> victim(const std::map<uint64_t, Entry>& from, int32_t priority) {
    std::optional<uint64_t> best;
    for (const auto& [id, entry] : from) {
      if (entry.pins > 0 || !entry.ready || entry.priority > priority) continue;
      if (!best || std::pair(entry.priority, entry.used) <
                       std::pair(from.at(*best).priority, from.at(*best).used))
        best = id;
    }
    return best;
  }

  // Whether there is room for `size`, and who went for it; nobody if there is none.
  std::optional<std::vector<uint64_t>> make_room(uint64_t size, int32_t priority) {
    std::vector<uint64_t> gone;
    auto left = blobs;
    const auto fits = [&] {
      uint64_t sum = size;
      for (const auto& [id, entry] : left) sum += entry.bytes;
      return sum <= kLimits.bytes && left.size() < kLimits.blobs;
    };
    while (!fits()) {
      const auto id = victim(left, priority);
      if (!id) return std::nullopt;
      left.erase(*id);
      gone.push_back(*id);
    }
    blobs = std::move(left);
    return gone;
  }

  std::map<uint64_t, Entry>& of(PrefixPlace place) {
    return place == PrefixPlace::LANE ? lanes : blobs;
  }
  Entry* get(PrefixHolder holder) {
    const auto found = of(holder.place).find(holder.id);
    return found == of(holder.place).end() ? nullptr : &found->second;
  }
};

bool same(const PrefixMatch& a, const PrefixMatch& b) {
  if (!a && !b) return true;
  return a.holder == b.holder && a.tokens == b.tokens && a.held == b.held && a.pins == b.pins;
}

bool same(const PrefixCounters& a, const PrefixCounters& b) {
  return a.hits == b.hits && a.misses == b.misses && a.hit_tokens == b.hit_tokens &&
         a.stored == b.stored && a.hosted == b.hosted && a.removed == b.removed &&
         a.cleared == b.cleared && a.evicted_lanes == b.evicted_lanes &&
         a.evicted_blobs == b.evicted_blobs && a.host_refused == b.host_refused &&
         a.host_aborted == b.host_aborted;
}

// One world of both; each step does the same to index and model.
struct Pair {
  PrefixIndex index = PrefixIndex::make(kLanes, kEvery, kLimits).value();
  Model model;

  PrefixHolder any() const {
    if (next_random() % 2 == 0) return {PrefixPlace::LANE, next_random() % kLanes};
    return {PrefixPlace::HOST,
            model.next_blob - std::min<uint64_t>(model.next_blob - 1, next_random() % 12)};
  }

  void search() {
    const Prefix wanted = random_prefix(0);
    const uint32_t bits = next_random();
    const PrefixFilter filter{bits % 4 != 0, bits / 4 % 4 != 0, bits / 16 % 4 != 0};
    const PrefixMatch found = index.find(wanted, filter);
    CHECK(same(found, model.find(wanted, filter)));
    if (!found) {
      index.miss();
      ++model.counters.misses;
    } else if (bits / 64 % 2 == 0) {
      index.hit(found.holder, found.tokens);
      model.get(found.holder)->used = ++model.uses;
      ++model.counters.hits;
      model.counters.hit_tokens += found.tokens;
    }
  }

  void park() {
    const uint64_t lane = next_random() % kLanes;
    const auto priority = static_cast<int32_t>(next_random() % 3);
    Prefix prefix = random_prefix(kEvery);
    Entry entry{prefix, priority, 0, 0, 0, true};
    const bool ok = index.insert(static_cast<uint32_t>(lane), std::move(prefix), priority).ok();
    CHECK(ok == !model.lanes.contains(lane));
    if (!ok) return;
    entry.used = ++model.uses;
    model.lanes.emplace(lane, std::move(entry));
    ++model.counters.stored;
  }

  void begin() {
    const uint64_t size = next_random() % 110;
    const auto priority = static_cast<int32_t>(next_random() % 3);
    Prefix prefix = random_prefix(kEvery);
    Entry entry{prefix, priority, 0, 0, size, false};
    std::vector<uint64_t> evicted;
    const auto id = index.begin_hosted(std::move(prefix), size, priority, &evicted);
    const auto room = model.make_room(size, priority);
    CHECK(id.ok() == room.has_value());
    if (!id.ok() || !room) {
      CHECK(id.error().code ==
            (size > kLimits.bytes ? Status::OUT_OF_RANGE : Status::KV_NO_CAPACITY));
      ++model.counters.host_refused;
      return;
    }
    CHECK(*id == model.next_blob && evicted == *room);
    entry.used = ++model.uses;
    model.blobs.emplace(model.next_blob++, std::move(entry));
    model.counters.evicted_blobs += room->size();
  }

  void end() {
    const PrefixHolder holder{PrefixPlace::HOST, any().id};
    const bool good = next_random() % 4 != 0;
    Entry* const entry = model.get(holder);
    const bool may = entry != nullptr && !entry->ready;
    CHECK(index.end_hosted(holder.id, good).ok() == may);
    if (!may) return;
    entry->ready = true;
    ++(good ? model.counters.hosted : model.counters.host_aborted);
    if (!good) model.blobs.erase(holder.id);
  }

  void pin() {
    const PrefixHolder holder = any();
    Entry* const entry = model.get(holder);
    const bool may = entry != nullptr && entry->ready && entry->pins < 3;
    if (entry == nullptr || !entry->ready || may) CHECK(index.pin(holder).ok() == may);
    if (may) ++entry->pins;
  }

  void unpin() {
    const PrefixHolder holder = any();
    Entry* const entry = model.get(holder);
    const bool may = entry != nullptr && entry->pins > 0;
    CHECK(index.unpin(holder).ok() == may);
    if (may) --entry->pins;
  }

  void take(PrefixHolder holder, PrefixEventKind why) {
    Entry* const entry = model.get(holder);
    const bool may = entry != nullptr && entry->pins == 0 && entry->ready;
    auto taken = index.take(holder, why);
    CHECK(taken.ok() == may);
    if (!may || !taken.ok()) return;
    CHECK(taken->prefix.tokens == entry->prefix.tokens && taken->used == entry->used &&
          taken->priority == entry->priority && taken->bytes == entry->bytes);
    PrefixCounters& counters = model.counters;
    if (why == PrefixEventKind::REMOVED)
      ++counters.removed;
    else
      ++(holder.place == PrefixPlace::LANE ? counters.evicted_lanes : counters.evicted_blobs);
    model.of(holder.place).erase(holder.id);
  }

  void clear() {
    uint32_t gone = 0;
    for (auto* table : {&model.lanes, &model.blobs}) {
      gone += static_cast<uint32_t>(std::erase_if(
          *table, [](const auto& item) { return item.second.pins == 0 && item.second.ready; }));
    }
    CHECK(index.clear() == gone);
    model.counters.cleared += gone;
  }

  void step() {
    const uint32_t what = next_random() % 64;
    if (what < 24) return search();
    if (what < 33) return park();
    if (what < 40) return begin();
    if (what < 47) return end();
    if (what < 52) return pin();
    if (what < 57) return unpin();
    if (what < 60) return take(any(), PrefixEventKind::REMOVED);
    if (what < 63) {
      if (const auto lane = index.victim_lane())
        take({PrefixPlace::LANE, *lane}, PrefixEventKind::EVICTED);
      return;
    }
    if (next_random() % 8 == 0) clear();
  }

  void compare() {
    const auto sound = index.check_integrity();
    CHECK(sound.ok());
    if (!sound.ok()) std::fprintf(stderr, "%s\n", sound.error().message.c_str());
    CHECK(same(index.counters(), model.counters));
    CHECK(index.hosted_bytes() == model.bytes() && index.hosted_bytes() <= kLimits.bytes);
    CHECK(index.parked() == model.lanes.size() && index.blobs() == model.blobs.size());
    const auto victim = Model::victim(model.lanes, INT32_MAX);
    CHECK(victim.has_value() == index.victim_lane().has_value());
    CHECK(!victim || *victim == *index.victim_lane());
    CHECK(index.evictable_lanes() ==
          std::count_if(model.lanes.begin(), model.lanes.end(),
                        [](const auto& item) { return item.second.pins == 0; }));
  }
};

}  // namespace

TEST(random_operations_agree_with_the_model) {
  uint64_t hits = 0, evicted = 0, refused = 0;
  for (int world = 0; world < 100; ++world) {
    Pair pair;
    for (int i = 0; i < 1'000 && testing::failures() == 0; ++i) {
      pair.step();
      pair.compare();
    }
    hits += pair.model.counters.hits;
    evicted += pair.model.counters.evicted_lanes + pair.model.counters.evicted_blobs;
    refused += pair.model.counters.host_refused;
  }
  CHECK(hits > 5'000 && evicted > 3'000 && refused > 5'000);  // the cases were reached
}

// An event is lost exactly when nobody drained it.
TEST(events_make_the_index_again) {
  Pair pair;
  std::set<std::pair<PrefixPlace, uint64_t>> held;
  std::vector<PrefixEvent> events(PrefixIndex::kEvents);
  uint64_t number = 0;
  for (int i = 0; i < 20'000; ++i) {
    pair.step();
    const size_t n = pair.index.drain_events(events);
    for (size_t e = 0; e < n; ++e) {
      CHECK(events[e].number == number++);
      const std::pair holder{events[e].holder.place, events[e].holder.id};
      switch (events[e].kind) {
        case PrefixEventKind::STORED:
        case PrefixEventKind::HOSTED:
          CHECK(held.insert(holder).second);
          break;
        case PrefixEventKind::REMOVED:
        case PrefixEventKind::EVICTED:
          CHECK(held.erase(holder) == 1);
          break;
        case PrefixEventKind::CLEARED: {
          const size_t before = held.size();
          std::erase_if(held, [&](const auto& item) {
            const PrefixEntry* const entry = pair.index.get({item.first, item.second});
            return entry == nullptr;
          });
          CHECK(before - held.size() == events[e].tokens);
        }
      }
    }
    uint64_t ready = pair.model.lanes.size();
    for (const auto& [id, entry] : pair.model.blobs) ready += entry.ready;
    CHECK(held.size() == ready);
  }
  CHECK(pair.index.counters().events_lost == 0);
}

TEST(every_allocation_fails_in_turn) {
  Status code = Status::OK;
  const auto told = [&] { CHECK(code == Status::OUT_OF_HOST_MEMORY); };
  const auto status = [](const auto& result) {
    return result.ok() ? Status::OK : result.error().code;
  };
  CHECK(testing::each_allocation_fails(
            [&] { code = status(PrefixIndex::make(kLanes, kEvery, kLimits)); }, told) >= 3);
  std::vector<std::vector<int32_t>> copies(8, std::vector<int32_t>(20, 1));
  CHECK(testing::each_allocation_fails(
            [&] {
              code = status(make_prefix({}, std::move(copies.back()), kEvery));
              copies.pop_back();
            },
            told) >= 1);

  Pair pair;
  for (int i = 0; i < 50; ++i) pair.step();
  (void)pair.index.clear();
  Prefix parked = prefix_of(std::vector<int32_t>(9, 1), 0), hosted = parked;
  uint32_t lane = 0;
  while (pair.index.get({PrefixPlace::LANE, lane}) != nullptr) ++lane;
  const uint32_t before = pair.index.parked();
  CHECK(testing::each_allocation_fails(
            [&] { code = status(pair.index.insert(lane, std::move(parked), 1)); },
            [&] {
              told();
              CHECK(parked.tokens.size() == 9 && pair.index.parked() == before);
              CHECK(pair.index.check_integrity().ok());
            }) >= 1);
  CHECK(code == Status::OK && pair.index.parked() == before + 1);

  // One that needs room, so that its victims stay if it fails.
  PrefixIndex index = PrefixIndex::make(kLanes, kEvery, kLimits).value();
  std::vector<uint64_t> evicted;
  for (int i = 0; i < 4; ++i) {
    Prefix copy = hosted;
    CHECK(index.end_hosted(*index.begin_hosted(std::move(copy), 25, 0, &evicted), true).ok());
  }
  CHECK(testing::each_allocation_fails(
            [&] { code = status(index.begin_hosted(std::move(hosted), 60, 0, &evicted)); },
            [&] {
              told();
              CHECK(hosted.tokens.size() == 9 && evicted.empty() && index.hosted_bytes() == 100);
              CHECK(index.blobs() == 4 && index.check_integrity().ok());
            }) >= 3);
  CHECK(code == Status::OK && evicted.size() == 3 && index.hosted_bytes() == 85);
  CHECK(index.check_integrity().ok());
}
