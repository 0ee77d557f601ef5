// SPDX-License-Identifier: Apache-2.0
// Prefixes with their cells: taken over, copied, kept on the host up to a limit and brought back;
// and on a device that fails in between nothing is lost but time.
#include "engine/prefix_cache.h"

#include <array>
#include <string>

#include "tests/kv_rig.h"
#include "tests/scripted_access.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

using Kind = kv::Reuse::Kind;
using Tokens = std::vector<int32_t>;

constexpr uint32_t kEvery = 8, kHeld = 20;  // tokens between two keys; of each parked lane

// `n` tokens of conversation `who`, then those of another.
Tokens tokens_of(int32_t who, uint32_t n, uint32_t more = 0) {
  Tokens tokens;
  for (uint32_t i = 0; i < n; ++i) tokens.push_back(who * 1'000 + static_cast<int32_t>(i));
  for (uint32_t i = 0; i < more; ++i) tokens.push_back(900'000 + static_cast<int32_t>(i));
  return tokens;
}

Cells first(Cells cells, size_t n) {
  cells.resize(n);
  return cells;
}

struct World : KvRig {
  explicit World(uint64_t host_bytes = 0, KvRigSettings with = {})
      : KvRig(with), cache(*PrefixCache::make(mover, kEvery, host_bytes)) {}
  const std::shared_ptr<PrefixCache> cache;

  // A lane of `who` that was given back, on a lane of its own; one job.
  uint32_t park(int32_t who, int32_t priority = 0, const std::string& salt = "") {
    const kv::LaneRef lane = filled(cells_of(static_cast<uint32_t>(who), kHeld));
    CHECK(cache->park(lane, tokens_of(who, kHeld), salt, priority).ok());
    return lane.lane;
  }
  Result<PreparedLane> ask(const Tokens& prompt, const MoveCall& how,
                           const std::string& salt = "") {
    CALRT_TRY_ASSIGN(const kv::Prefix wanted, cache->prefix(prompt, salt));
    kv::Need need;
    need.tokens = kRigCells;
    need.prompt = &wanted;
    CALRT_TRY_ASSIGN(kv::Reservation reserved, table->try_reserve(need, session->now_ns()));
    return cache->prepare(std::move(reserved), how);
  }
  Result<PreparedLane> ask(const Tokens& prompt) { return ask(prompt, call()); }
  bool holds(const PreparedLane& ready, int32_t who) {
    const auto cells = read(ready.lane, kRigCells, call());
    return cells.ok() && *cells == first(cells_of(static_cast<uint32_t>(who), kHeld), ready.reused);
  }
  void give_back(const PreparedLane& ready) { CHECK(table->release(ready.lane).ok()); }
  uint64_t blob_bytes() { return *state_bytes(*mover, kHeld, 0); }
  kv::PrefixCounters counters() { return table->prefix_counters(); }
};

bool is(const Result<PreparedLane>& ready, Kind how, uint32_t reused) {
  return ready.ok() && ready->how == how && ready->reused == reused;
}

}  // namespace

TEST(a_conversation_goes_on_in_its_lane_and_a_beginning_is_copied) {
  World w;
  const uint32_t parked = w.park(1);
  const auto shares = w.ask(tokens_of(1, 12, 5));
  CHECK(is(shares, Kind::COPY, 12) && shares->lane.lane != parked && w.holds(*shares, 1));
  CHECK(w.table->snapshot(parked).state == kv::LaneState::PARKED);
  CHECK(w.table->snapshot(parked).pins == 0);
  const auto same = w.ask(tokens_of(1, kHeld));  // its last token is computed again
  CHECK(is(same, Kind::IN_PLACE, kHeld - 1) && same->lane.lane == parked && w.holds(*same, 1));
  CHECK(is(w.ask(tokens_of(1, kHeld)), Kind::NONE, 0));  // the prefix is somebody's now
  w.give_back(*same);
  const uint32_t again = w.park(2);
  const auto longer = w.ask(tokens_of(2, kHeld, 9));
  CHECK(is(longer, Kind::IN_PLACE, kHeld) && longer->lane.lane == again && w.holds(*longer, 2));
  CHECK(w.counters().hits == 3 && w.counters().misses == 1);
  CHECK(w.counters().hit_tokens == 12 + kHeld - 1 + kHeld);
}

TEST(without_a_free_lane_a_beginning_is_taken_over) {
  World w(0, {.lanes = 1});
  w.park(1);
  const auto ready = w.ask(tokens_of(1, 12, 5));
  CHECK(is(ready, Kind::IN_PLACE, 12) && w.holds(*ready, 1));
}

TEST(a_lane_that_is_parked_goes_to_who_waits) {
  World w(0, {.lanes = 1});
  const kv::LaneRef lane = w.filled(cells_of(1, kHeld));
  const auto waiter = *w.queue->enqueue(1, UINT64_MAX);
  CHECK(!waiter->poll() && w.cache->park(lane, tokens_of(1, kHeld), "", 0).ok());
  const auto got = waiter->take();  // nobody has polled
  CHECK(got.ok() && got->ref().lane == lane.lane);
}

TEST(another_salt_finds_nothing) {
  World w;
  w.park(1, 0, "a");
  CHECK(is(w.ask(tokens_of(1, kHeld, 1)), Kind::NONE, 0));
  CHECK(is(w.ask(tokens_of(1, kHeld, 1), w.call(), "b"), Kind::NONE, 0));
  CHECK(is(w.ask(tokens_of(1, kHeld, 1), w.call(), "a"), Kind::IN_PLACE, kHeld));
}

TEST(evicted_cells_stay_on_the_host_up_to_the_limit) {
  const uint64_t one = World().blob_bytes();
  World w(2 * one + one / 2, {.lanes = 1});
  for (int32_t who = 1; who <= 4; ++who) {
    const auto ready =
        w.ask(tokens_of(90 + who, 3));  // makes room: the one before goes to the host
    CHECK(is(ready, Kind::NONE, 0));
    w.give_back(*ready);
    w.park(who);
    CHECK(w.table->hosted_bytes() <= 2 * one + one / 2);
  }
  // 1, 2, 3 were evicted in this order, and two have room.
  CHECK(w.table->hosted_bytes() == 2 * one && w.counters().evicted_lanes == 3);
  CHECK(w.counters().hosted == 3 && w.counters().evicted_blobs == 1);
  CHECK(w.cache->host_counters().spilled == 3);
  // Each that comes back makes room by another.
  for (const int32_t who : {3, 4}) {
    const auto back = w.ask(tokens_of(who, kHeld, 2));
    CHECK(is(back, Kind::HOSTED, kHeld) && w.holds(*back, who));
    w.give_back(*back);
  }
  for (const int32_t who : {1, 2}) {
    const auto gone = w.ask(tokens_of(who, kHeld, 2));
    CHECK(is(gone, Kind::NONE, 0));
    w.give_back(*gone);
  }
  CHECK(w.cache->host_counters().restored == 2 && w.cache->host_counters().restore_failures == 0);
}

TEST(priority_goes_before_age_and_what_is_too_large_is_not_kept) {
  const uint64_t one = World().blob_bytes();
  World w(one, {.lanes = 1});
  w.park(1, 5);
  w.give_back(*w.ask(tokens_of(91, 3)));
  w.park(2, 1);
  w.give_back(*w.ask(tokens_of(92, 3)));  // 2 finds no room beside 1, which matters more
  // No failure: nothing was tried.
  CHECK(w.counters().host_refused == 1 && w.cache->host_counters().spill_failures == 0);
  CHECK(w.cache->host_counters().spilled == 1);
  CHECK(is(w.ask(tokens_of(1, kHeld, 1)), Kind::HOSTED, kHeld));

  World small(one - 1, {.lanes = 1});
  small.park(1);
  CHECK(is(small.ask(tokens_of(91, 3)), Kind::NONE, 0) && small.table->hosted_bytes() == 0);
  CHECK(small.counters().host_refused == 1 && small.cache->host_counters().spill_failures == 0);
}

TEST(events_and_counters_tell_the_same) {
  World w(1 << 20, {.lanes = 2});
  for (int32_t who = 1; who <= 5; ++who) w.park(who);
  const auto back = w.ask(tokens_of(1, kHeld, 1));
  CHECK(is(back, Kind::HOSTED, kHeld) || is(back, Kind::NONE, 0));
  w.give_back(*back);
  CHECK(*w.cache->clear() > 0 && w.table->hosted_bytes() == 0 && w.table->free_lanes() == 2);
  std::array<kv::PrefixEvent, 64> events;
  const size_t n = w.table->drain_events(events);
  std::array<uint64_t, 5> seen{};
  uint64_t cleared = 0;
  for (size_t i = 0; i < n; ++i) {
    CHECK(events[i].number == (i == 0 ? events[0].number : events[i - 1].number + 1));
    ++seen[static_cast<size_t>(events[i].kind)];
    if (events[i].kind == kv::PrefixEventKind::CLEARED) cleared += events[i].tokens;
  }
  const kv::PrefixCounters c = w.counters();
  const auto count = [&](kv::PrefixEventKind kind) { return seen[static_cast<size_t>(kind)]; };
  CHECK(count(kv::PrefixEventKind::STORED) == c.stored && c.stored == 5);
  CHECK(count(kv::PrefixEventKind::HOSTED) == c.hosted);
  CHECK(count(kv::PrefixEventKind::REMOVED) == c.removed && cleared == c.cleared);
  CHECK(count(kv::PrefixEventKind::EVICTED) == c.evicted_lanes + c.evicted_blobs);
  CHECK(c.stored + c.hosted == c.removed + c.evicted_lanes + c.evicted_blobs + c.cleared);
}

// ---- a device that fails ----------------------------------------------------------------------

namespace {

// The job after the one that fills the parked lane.
KvRigSettings fails(const char* rule, uint32_t lanes, int job = 2) {
  return {.faults = std::string(rule) + " nth=" + std::to_string(job), .lanes = lanes};
}

}  // namespace

TEST(a_prefix_that_cannot_be_saved_is_forgotten_and_the_lane_is_good) {
  for (const char* rule : {"kv_submit status=SUBMIT_FAILED", "completion status=EXECUTION_FAILED",
                           "completion short_out=4"}) {
    World w(1 << 20, fails(rule, 1));
    w.park(1);
    const auto ready = w.ask(tokens_of(2, 12));
    CHECK(is(ready, Kind::NONE, 0));
    CHECK(w.cache->host_counters().spill_failures == 1 && w.counters().host_aborted == 1);
    CHECK(w.table->hosted_bytes() == 0);
    CHECK(w.write(ready->lane, cells_of(7, 9), 9, w.call()).ok());
    w.give_back(*ready);
    CHECK(is(w.ask(tokens_of(1, kHeld, 1)), Kind::NONE, 0));
  }
}

TEST(a_lane_whose_saving_was_lost_is_nobodys_until_the_driver_answers) {
  World w(1 << 20, fails("completion delay_ms=150", 1));
  w.park(1);
  const auto ready = w.ask(tokens_of(2, 12), w.within(40));
  CHECK(!ready.ok() && ready.error().code == Status::EXECUTION_FAILED);
  CHECK(w.table->free_lanes() == 0 && w.table->snapshot(0).state == kv::LaneState::DRAINING);
  CHECK(eventually([&] { return w.table->free_lanes() == 1; }));
  CHECK(is(w.ask(tokens_of(2, 12)), Kind::NONE, 0));
}

TEST(a_copy_that_fails_leaves_the_prefix_for_the_next) {
  for (const char* rule : {"kv_submit status=SUBMIT_FAILED", "completion status=EXECUTION_FAILED",
                           "completion delay_ms=150"}) {
    World w(0, fails(rule, 4));
    const uint32_t parked = w.park(1);
    const bool late = std::strstr(rule, "delay") != nullptr;
    const auto ready = w.ask(tokens_of(1, 12, 3), late ? w.within(40) : w.call());
    if (std::strstr(rule, "kv_submit") != nullptr) {
      CHECK(is(ready, Kind::NONE, 0));  // nothing was written: a miss
      CHECK(w.table->snapshot(parked).pins == 0);
      CHECK(w.write(ready->lane, cells_of(7, 9), 9, w.call()).ok());
      w.give_back(*ready);
    } else {
      CHECK(!ready.ok() && ready.error().code == Status::EXECUTION_FAILED);
    }
    if (late) {  // the device reads the prefix still: it must not go
      CHECK(w.table->snapshot(parked).pins == 1 && w.table->clear_prefixes().value() == 0);
      CHECK(eventually([&] { return w.table->poisoned_lanes() == 1; }));
    }
    CHECK(w.table->snapshot(parked).pins == 0);
    CHECK(w.table->poisoned_lanes() == (ready.ok() ? 0 : 1));
    const auto next = w.ask(tokens_of(1, 12, 3));
    CHECK(is(next, Kind::COPY, 12) && w.holds(*next, 1));
  }
}

TEST(a_blob_that_cannot_be_restored_stays_for_the_next) {
  for (const char* rule : {"kv_submit status=SUBMIT_FAILED", "completion status=EXECUTION_FAILED",
                           "completion short_in=4"}) {
    // park: WRITE; evict: READ; restore: WRITE.
    World w(1 << 20, fails(rule, 2, 4));
    w.park(1), w.park(2);
    const auto other = w.ask(tokens_of(3, 12));  // 1 goes to the host
    CHECK(is(other, Kind::NONE, 0) && w.table->hosted_bytes() > 0);
    w.give_back(*other);
    const auto ready = w.ask(tokens_of(1, kHeld, 3));
    CHECK(w.cache->host_counters().restore_failures == 1);
    if (std::strstr(rule, "kv_submit") != nullptr) {
      CHECK(is(ready, Kind::NONE, 0));
      w.give_back(*ready);
    } else {
      CHECK(!ready.ok() && w.table->poisoned_lanes() == 1);
    }
    const auto next = w.ask(tokens_of(1, kHeld, 3));
    CHECK(is(next, Kind::HOSTED, kHeld) && w.holds(*next, 1));
  }
}
