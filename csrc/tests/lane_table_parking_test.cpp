// SPDX-License-Identifier: Apache-2.0
// Parked lanes and hosted blobs of a lane table: who takes them over, who reads them, who goes
// first.
#include "tests/lane_world.h"

using namespace calrt;
using namespace calrt::kv;
using namespace calrt::testing;

namespace {
constexpr uint64_t kJob = 1'000;
}

TEST(all_of_a_parked_lane_is_taken_in_place_but_its_last_token) {
  LaneWorld w(2);
  const uint32_t lane = w.park(1, 16);
  CHECK(w.state(lane) == LaneState::PARKED && w.table->free_lanes() == 2);
  CHECK(w.table->snapshot(lane).reserved == 0);
  const Prefix prompt = LaneWorld::prefix(1, 16);
  Reservation got = std::move(w.reuse(prompt)).value();
  CHECK(got.reuse().kind == Reuse::Kind::IN_PLACE && got.ref().lane == lane);
  CHECK(w.length(lane) == 15 && !got.evicted() && w.whole());
  const LaneRef ref = got.commit().value();
  CHECK(is(w.table->begin_spill(ref, kJob), Status::INVALID_STATE));  // they are the lane's own
  CHECK(w.table->release(ref).ok());
  CHECK(w.state(lane) == LaneState::FREE && w.length(lane) == 0 && w.whole());
}

// A reader pins until the copy has ended, it lets go, or its promise ends.
TEST(readers_pin_what_they_copy_from) {
  for (int how = 0; how < 5; ++how) {
    LaneWorld w(3);
    const uint32_t lane = w.park(1, 16);
    const Prefix prompt = LaneWorld::prefix(1, 10);
    Reservation got = std::move(w.reuse(prompt)).value();
    CHECK(got.reuse().kind == Reuse::Kind::COPY && got.reuse().id == lane && w.pins(lane) == 1);
    CHECK(is(w.table->unpark(lane), Status::INVALID_STATE) && w.table->free_lanes() == 1);
    CHECK(w.table->clear_prefixes().value() == 0 && w.whole());
    if (how == 0) {
      got.release();
    } else if (how == 1) {
      CHECK(w.table->expire(UINT64_MAX) == 1 && is(got.commit(), Status::KV_TIMEOUT));
    } else {
      const LaneRef ref = got.commit().value();
      if (how == 2) {
        CHECK(w.table->drop_reuse(ref).ok());
      } else {
        CHECK(w.table->begin_reuse(ref, kJob).value().front().lane == lane && w.pins(lane) == 1);
        CHECK(w.table->end_job(ref, kJob, how == 3, true) && w.whole());
        CHECK(how != 3 || w.length(ref.lane) == got.reuse().tokens);
        CHECK((w.state(ref.lane) == LaneState::POISONED) == (how == 4));
      }
    }
    CHECK(w.pins(lane) == 0 && w.length(lane) == 16 && w.whole());
    CHECK(w.table->unpark(lane).ok() && w.whole());
  }
}

// I8 for blobs: what a promise will be filled from cannot go before.
TEST(hosted_blobs_are_pinned_until_they_are_used) {
  for (const bool used : {true, false}) {
    LaneWorld w(2);
    const uint64_t blob = w.host(1, 12, 100);
    const Prefix prompt = LaneWorld::prefix(1, 13);
    Reservation got = std::move(w.reuse(prompt)).value();
    CHECK(got.reuse().kind == Reuse::Kind::HOSTED && got.reuse().id == blob);
    CHECK(got.reuse().tokens == 12);
    CHECK(is(w.table->drop_hosted(blob), Status::INVALID_STATE) && w.table->has_hosted(blob));
    CHECK(w.table->clear_prefixes().value() == 0 && w.whole());
    if (used) {
      const LaneRef ref = got.commit().value();
      CHECK(w.table->begin_write(ref, kJob, 12).ok());
      CHECK(is(w.table->drop_hosted(blob), Status::INVALID_STATE));
      CHECK(w.table->end_job(ref, kJob, true, true) && w.length(ref.lane) == 12);
    } else {
      got.release();
    }
    CHECK(w.whole() && w.table->drop_hosted(blob).ok() && w.table->hosted_bytes() == 0);
  }
}

TEST(the_lowest_priority_goes_first_then_the_least_recently_used) {
  LaneWorld w(3);
  const uint32_t high = w.park(1, 8, 5), older = w.park(2, 8, 1), newer = w.park(3, 8, 1);
  std::vector<Reservation> held;
  for (const uint32_t lane : {older, newer, high}) {
    auto got = w.table->try_reserve(4, 0);
    CHECK(got.ok() && got->ref().lane == lane && got->evicted() && w.length(lane) == 0);
    held.push_back(*std::move(got));
  }
  CHECK(is(w.table->try_reserve(4, 0), Status::KV_NO_CAPACITY) && w.whole());
  CHECK(w.table->prefix_counters().evicted_lanes == 3 && w.table->free_lanes() == 0);
}

TEST(a_lane_that_is_read_is_not_evicted) {
  LaneWorld w(2);
  const uint32_t lane = w.park(1, 16);
  const Prefix prompt = LaneWorld::prefix(1, 10);
  Reservation reader = std::move(w.reuse(prompt)).value();
  CHECK(w.pins(lane) == 1 && is(w.table->try_reserve(4, 0), Status::KV_NO_CAPACITY));
  CHECK(is(w.table->try_reserve(4, 0, lane, true), Status::KV_NO_CAPACITY) && w.whole());
  reader.release();
  CHECK(w.table->try_reserve(4, 0, lane, true).ok() && w.whole());
}

TEST(evicted_cells_are_spilled_before_anything_is_written) {
  LaneWorld w(1);
  w.park(1, 16);
  Reservation got = std::move(w.table->try_reserve(8, 0)).value();
  CHECK(got.evicted() && got.evicted()->prefix.tokens.size() == 16);
  const LaneRef ref = got.commit().value();
  for (uint64_t job = kJob; job < kJob + 2; ++job) {  // reading is no writing
    CHECK(w.table->begin_spill(ref, job).value().front().n == 16);
    CHECK(w.table->end_job(ref, job, job == kJob, true) && w.whole());
  }
  CHECK(w.table->begin_job(ref, kJob + 2, 1, true).ok());
  CHECK(w.table->end_job(ref, kJob + 2, true, true));
  CHECK(is(w.table->begin_spill(ref, kJob + 3), Status::INVALID_STATE) && w.whole());
}

TEST(only_whole_idle_lanes_are_parked_with_their_tokens) {
  LaneWorld w(2);
  const LaneRef a = w.own(8);
  CHECK(is(w.table->park(a, LaneWorld::prefix(1, 7), 0), Status::INVALID_ARGUMENT));
  CHECK(w.table->begin_job(a, kJob, 1, false).ok());
  CHECK(is(w.table->park(a, LaneWorld::prefix(1, 8), 0), Status::INVALID_STATE));
  CHECK(w.table->end_job(a, kJob, false, false) && w.whole());
  CHECK(w.table->park(a, LaneWorld::prefix(1, 8), 0).ok());
  CHECK(is(w.table->release(a), Status::INVALID_HANDLE) && w.state(a.lane) == LaneState::PARKED);
  CHECK(!w.table->find_prefix(LaneWorld::prefix(1, 8, "another's")).value() && w.whole());
}

TEST(a_blob_that_cannot_be_written_back_is_not_found) {
  MoveCaps caps = MoveCaps::all();
  caps.write = false;
  LaneWorld w(2, caps);
  w.host(1, 12, 100);
  const Prefix prompt = LaneWorld::prefix(1, 13);
  CHECK(w.reuse(prompt)->reuse().kind == Reuse::Kind::NONE && w.whole());
}

TEST(what_is_found_is_no_more_than_was_asked_for) {
  LaneWorld w(2);
  const uint32_t lane = w.park(1, 16);
  const Prefix prompt = LaneWorld::prefix(1, 20);
  const Reservation got = std::move(w.reuse(prompt, 6)).value();
  CHECK(got.reuse().kind == Reuse::Kind::IN_PLACE && got.ref().lane == lane);
  CHECK(got.reuse().tokens == 6 && w.length(lane) == 6 && w.whole());
}

// The cells are there once they were moved, not when they were found.
TEST(a_lane_that_made_room_holds_nothing_before_it_is_filled) {
  LaneWorld w(1);
  w.park(1, 16);
  const uint64_t blob = w.host(2, 12, 100);
  const Prefix prompt = LaneWorld::prefix(2, 13);
  Reservation got = std::move(w.reuse(prompt)).value();
  CHECK(got.reuse().kind == Reuse::Kind::HOSTED && got.reuse().id == blob && got.evicted());
  CHECK(w.length(0) == 0 && w.whole());
  const LaneRef ref = got.commit().value();
  CHECK(w.table->drop_reuse(ref).ok() && w.length(0) == 0);
  CHECK(w.table->begin_spill(ref, kJob).value().front().n == 16 && w.whole());
}

TEST(how_prefixes_are_kept_is_said_until_the_first_is_kept) {
  LaneWorld w(2);
  const Prefix prompt = LaneWorld::prefix(1, 16);
  CHECK(w.reuse(prompt).ok() && w.table->prefix_counters().misses == 1);
  CHECK(w.table->enable_prefixes(8).ok() && w.table->prefix_counters().misses == 0);
  CHECK(is(w.table->enable_prefixes(LaneWorld::kCells + 1), Status::OUT_OF_RANGE));
  CHECK(w.table->enable_prefixes(LaneWorld::kCells).ok() && w.table->enable_prefixes(8).ok());
  const LaneRef a = w.own(16);
  CHECK(is(w.table->park(a, LaneWorld::prefix(1, 16), 0), Status::INVALID_ARGUMENT));  // every 4
  CHECK(w.table->enable_prefixes(LaneWorld::kEvery, {.bytes = 1 << 20}).ok());
  std::vector<uint64_t> evicted;
  const uint64_t blob = w.table->begin_hosted(LaneWorld::prefix(2, 8), 100, 0, &evicted).value();
  CHECK(is(w.table->enable_prefixes(8), Status::INVALID_STATE));  // it is being written
  CHECK(w.table->end_hosted(blob, false).ok() && w.table->enable_prefixes(4).ok());
  CHECK(w.table->park(a, LaneWorld::prefix(1, 16), 0).ok());
  CHECK(is(w.table->enable_prefixes(8), Status::INVALID_STATE));
  CHECK(w.table->clear_prefixes().value() == 1);
  CHECK(is(w.table->enable_prefixes(8), Status::INVALID_STATE) && w.whole());
}

TEST(what_was_found_is_let_go_when_the_lane_is_parked_with_other_cells) {
  LaneWorld w(3);
  const uint32_t lane = w.park(1, 16);
  const LaneRef other = w.own(8);
  const Prefix prompt = LaneWorld::prefix(1, 10);
  Reservation got = std::move(w.reuse(prompt)).value();
  CHECK(got.reuse().kind == Reuse::Kind::COPY && w.pins(lane) == 1);
  const LaneRef ref = got.commit().value();
  CHECK(w.table->seq_cp(other, ref, 0, -1).ok());
  CHECK(w.table->park(ref, LaneWorld::prefix(2, 8), 0).ok());
  CHECK(w.pins(lane) == 0 && w.whole() && w.table->unpark(lane).ok());
}

TEST(what_was_found_is_let_go_when_the_lane_is_computed_instead) {
  LaneWorld w(3);
  const uint32_t lane = w.park(1, 16);
  const Prefix prompt = LaneWorld::prefix(1, 10);
  const LaneRef ref = std::move(w.reuse(prompt)).value().commit().value();
  CHECK(w.pins(lane) == 1 && w.table->begin_job(ref, kJob, 5, true).ok());
  CHECK(w.pins(lane) == 0 && w.table->end_job(ref, kJob, true, true));
  CHECK(is(w.table->begin_reuse(ref, kJob + 1), Status::INVALID_STATE));  // over what it computed
  CHECK(w.length(ref.lane) == 5 && w.whole() && w.table->unpark(lane).ok());
}
