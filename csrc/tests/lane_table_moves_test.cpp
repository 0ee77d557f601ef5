// SPDX-License-Identifier: Apache-2.0
// Data moves of a lane table: each kind, ended well, failed before it wrote and failed after.
#include "tests/lane_world.h"

using namespace calrt;
using namespace calrt::kv;
using namespace calrt::testing;

namespace {

constexpr uint64_t kJob = 1'000;

// What is pending in lane `ref` of 20 cells: [4, 6) went, the rest moved up.
void shift(LaneWorld& w, const LaneRef& ref) {
  CHECK(w.table->seq_rm(ref, 4, 6).ok() && w.table->seq_add(ref, 6, -1, -2).ok());
}

struct Ending {
  bool ok, written;
};
constexpr Ending kEndings[] = {{true, true}, {false, false}, {false, true}};

}  // namespace

TEST(apply) {
  for (const Ending end : kEndings) {
    LaneWorld w(2);
    const LaneRef a = w.own(20);
    shift(w, a);
    CHECK(is(w.table->begin_job(a, kJob, 1, false), Status::INVALID_STATE));  // pending
    CHECK(is(w.table->park(a, LaneWorld::prefix(1, 18), 0), Status::INVALID_STATE));
    const std::string pending = w.seen({a});
    const auto plan = w.table->begin_apply(a, kJob);
    CHECK(plan.ok() && !plan->empty() && w.whole());
    for (const Move& move : *plan) CHECK(move.lane == a.lane && move.to_lane == a.lane);
    CHECK(is(w.table->seq_rm(a, 0, 1), Status::INVALID_STATE));  // busy
    CHECK(is(w.table->begin_apply(a, kJob + 1), Status::INVALID_STATE));
    CHECK(!w.table->end_job(a, kJob - 1, true, true) &&
          w.table->snapshot(a).value().job_seq == kJob);
    CHECK(w.table->end_job(a, kJob, end.ok, end.written) && w.whole());
    if (end.ok) {
      CHECK(w.length(a.lane) == 18 && w.table->snapshot(a.lane).canonical);
      CHECK(w.table->begin_apply(a, kJob + 1).value().empty());
    } else if (end.written) {
      CHECK(w.state(a.lane) == LaneState::POISONED &&
            is(w.table->seq_keep(a), Status::KV_POISONED));
    } else {
      CHECK(w.length(a.lane) == 4 && !w.table->snapshot(a.lane).canonical);
      CHECK(!w.table->end_job(a, kJob, true, true));  // doubled
      CHECK(w.table->begin_apply(a, kJob + 1).value() == *plan);
      CHECK(w.table->end_job(a, kJob + 1, true, true) && w.length(a.lane) == 18);
    }
  }
}

TEST(copy_leaves_its_source_good) {
  for (const Ending end : kEndings) {
    for (int gone = 0; gone < 4; ++gone) {  // 1: the source is given back meanwhile, 2: the target
      LaneWorld w(3);
      const LaneRef a = w.own(20), b = w.own(3);
      const auto plan = w.table->begin_copy(a, b, 0, 12, kJob);
      CHECK(plan.ok() && plan->size() == 1 && plan->front().n == 12 && w.whole());
      CHECK(w.table->snapshot(a.lane).job_seq == kJob && w.table->snapshot(b.lane).job_seq == kJob);
      CHECK(is(w.table->begin_read(a, kJob + 1), Status::INVALID_STATE));
      if (gone & 1) CHECK(w.table->release(a).ok() && w.state(a.lane) == LaneState::DRAINING);
      if (gone & 2) CHECK(w.table->release(b).ok() && w.state(b.lane) == LaneState::DRAINING);
      // The source is read until the target's job ends, whatever it is told.
      CHECK(!w.table->end_job(a, kJob, true, true) && w.table->snapshot(a.lane).job_seq == kJob);
      CHECK(w.whole() && w.table->stale_completions() == 1);
      CHECK(w.table->end_job(b, kJob, end.ok, end.written) && w.whole());
      CHECK(w.state(a.lane) == (gone & 1 ? LaneState::FREE : LaneState::PREFILLING));
      CHECK(w.length(a.lane) == (gone & 1 ? 0 : 20));
      const bool poisoned = !end.ok && end.written;
      CHECK((w.state(b.lane) == LaneState::POISONED) == poisoned);
      if (gone & 2)
        CHECK(poisoned || w.state(b.lane) == LaneState::FREE);
      else if (!poisoned)
        CHECK(w.length(b.lane) == (end.ok ? 12 : 3));
      CHECK(!w.table->end_job(b, kJob, true, true) && w.whole());
    }
  }
}

// A device that copies lanes, but no ranges: the hole is copied with them, in one job.
TEST(a_copy_without_ranges_takes_what_lies_between) {
  MoveCaps caps = MoveCaps::all();
  caps.range_copy = false;
  LaneWorld w(2, caps);
  const LaneRef a = w.own(20), b = w.own(0);
  CHECK(w.table->seq_rm(a, 4, 6).ok());
  const Plan plan = w.table->begin_copy(a, b, 0, -1, kJob).value();
  CHECK(plan.size() == 1 && plan[0].op == MoveOp::LANE_COPY && plan[0].n == 20);
  CHECK(w.table->end_job(b, kJob, true, true) && w.whole());
  CHECK(w.table->sequence(b)->runs().size() == 2);
}

TEST(copies_of_nothing_and_of_itself_begin_no_job) {
  LaneWorld w(2);
  const LaneRef a = w.own(20), b = w.own(3);
  CHECK(w.table->begin_copy(a, a, 0, -1, kJob).value().empty() && w.length(a.lane) == 20);
  CHECK(w.table->begin_copy(a, b, 30, -1, kJob).value().empty() && w.length(b.lane) == 0);
  CHECK(w.table->begin_copy(a, b, 5, 9, kJob).ok() && w.table->end_job(b, kJob, true, true));
  CHECK(w.table->pos_min(b).value() == 5 && w.table->pos_max(b).value() == 8);
  CHECK(w.length(b.lane) == 0 && !w.table->snapshot(b.lane).canonical && w.whole());
  CHECK(is(w.table->begin_apply(b, kJob + 1), Status::KV_INVALID_SEQUENCE));
}

TEST(write_replaces_what_was_there) {
  for (const Ending end : kEndings) {
    LaneWorld w(1);
    const LaneRef a = w.own(20);
    CHECK(is(w.table->begin_write(a, kJob, LaneWorld::kCells + 1), Status::OUT_OF_RANGE));
    const auto plan = w.table->begin_write(a, kJob, 9);
    CHECK(plan.ok() && plan->front().op == MoveOp::WRITE && plan->front().n == 9 && w.whole());
    CHECK(w.length(a.lane) == 20);  // until it has ended
    CHECK(w.table->end_job(a, kJob, end.ok, end.written) && w.whole());
    if (!end.ok && end.written)
      CHECK(w.state(a.lane) == LaneState::POISONED);
    else
      CHECK(w.length(a.lane) == (end.ok ? 9 : 20));
  }
}

TEST(a_lane_that_is_only_read_stays_good) {
  for (const Ending end : kEndings) {
    LaneWorld w(1);
    const LaneRef a = w.own(20);
    const std::string before = w.seen({a});
    CHECK(w.table->begin_read(a, kJob).value().front().n == 20 && w.whole());
    CHECK(w.table->end_job(a, kJob, end.ok, end.written) && w.whole() && w.seen({a}) == before);
    shift(w, a);
    CHECK(is(w.table->begin_read(a, kJob + 1), Status::INVALID_STATE));
  }
}

TEST(job_numbers_rise_over_leases) {
  LaneWorld w(1);
  const LaneRef first = w.own(4);
  CHECK(w.table->begin_job(first, kJob, 1, false).ok() && w.table->release(first).ok());
  CHECK(w.table->end_job(first, kJob, true, true) && w.state(0) == LaneState::FREE);
  const LaneRef second = w.own(0);
  CHECK(is(w.table->begin_job(second, kJob, 1, true), Status::INVALID_ARGUMENT));
  CHECK(w.table->begin_job(second, kJob + 1, 1, true).ok());
  CHECK(!w.table->end_job(first, kJob, false, true) &&
        !w.table->end_job(second, kJob, false, true));
  CHECK(!w.table->end_job(first, kJob + 1, false, true) && w.table->stale_completions() == 3);
  CHECK(w.table->end_job(second, kJob + 1, true, true) && w.length(0) == 1 && w.whole());
}

TEST(what_the_device_cannot_move_is_refused_and_changes_nothing) {
  MoveCaps bare;
  LaneWorld w(2, bare);
  const LaneRef a = w.own(20), b = w.own(3);
  const std::string before = w.seen({a, b});
  CHECK(is(w.table->begin_copy(a, b, 0, -1, kJob), Status::UNSUPPORTED));
  CHECK(is(w.table->begin_write(a, kJob, 1), Status::UNSUPPORTED));
  CHECK(is(w.table->begin_read(a, kJob), Status::UNSUPPORTED));
  CHECK(is(w.table->seq_rm(a, 2, 4), Status::UNSUPPORTED));
  CHECK(is(w.table->seq_add(a, 2, 4, 1), Status::UNSUPPORTED));
  CHECK(is(w.table->seq_div(a, 2, 4, 2), Status::UNSUPPORTED));
  CHECK(is(w.table->shift(a, 0, 4), Status::UNSUPPORTED));
  CHECK(w.seen({a, b}) == before && w.whole());
  CHECK(w.table->seq_rm(a, 12, -1).ok() && w.table->seq_keep(a).ok() && w.length(a.lane) == 12);
}

// ---- poison
// ---------------------------------------------------------------------------------------

TEST(one_scrubs_at_a_time_and_the_owner_may_go_meanwhile) {
  for (const bool works : {true, false}) {
    for (const bool released : {true, false}) {
      LaneWorld w(2);
      const LaneRef a = w.own(20);
      CHECK(is(w.table->begin_scrub(a.lane), Status::INVALID_STATE));  // not poisoned
      CHECK(w.table->begin_job(a, kJob, 1, false).ok() && w.table->end_job(a, kJob, false, true));
      CHECK(w.table->begin_scrub(a.lane).ok());
      CHECK(is(w.table->begin_scrub(a.lane), Status::INVALID_STATE));
      if (released) CHECK(w.table->release(a).ok());
      CHECK(w.state(a.lane) == LaneState::POISONED && w.table->free_lanes() == 1);
      auto now = w.table->end_scrub(a.lane, works);
      CHECK(*now == (!works     ? LaneState::POISONED
                     : released ? LaneState::FREE
                                : LaneState::RESERVED));
      CHECK(is(w.table->end_scrub(a.lane, true), Status::INVALID_STATE) && w.whole());
      if (works) {
        w.seq = kJob;
        if (!released) w.fill(a, 2);
        continue;
      }
      CHECK(w.table->begin_scrub(a.lane).ok());
      CHECK(w.table->end_scrub(a.lane, false).value() == LaneState::OFFLINE && w.whole());
      CHECK(is(w.table->seq_keep(a), Status::INVALID_HANDLE) && w.table->offline_lanes() == 1);
      CHECK(is(w.table->begin_scrub(a.lane), Status::INVALID_STATE));
    }
  }
}

TEST(nobody_is_told_what_a_poisoned_lane_holds) {
  LaneWorld w(2);
  const LaneRef a = w.own(20), b = w.own(3);
  CHECK(w.table->begin_job(a, kJob, 1, false).ok() && w.table->end_job(a, kJob, false, true));
  CHECK(is(w.table->pos_min(a), Status::KV_POISONED));
  CHECK(is(w.table->pos_max(a), Status::KV_POISONED));
  CHECK(is(w.table->sequence(a), Status::KV_POISONED));
  CHECK(is(w.table->truncate(a, 0), Status::KV_POISONED));
  CHECK(is(w.table->clear(a), Status::KV_POISONED));
  CHECK(is(w.table->seq_cp(a, b, 0, -1), Status::KV_POISONED));
  CHECK(is(w.table->seq_cp(b, a, 0, -1), Status::KV_POISONED));
  CHECK(is(w.table->park(a, LaneWorld::prefix(1, 20), 0), Status::KV_POISONED) && w.whole());
}

TEST(a_scrub_that_works_forgets_the_failed_ones) {
  LaneWorld w(1);
  const LaneRef a = w.own(1);
  for (uint64_t round = 1; round <= 3; ++round) {
    CHECK(w.table->begin_job(a, kJob * round, 1, false).ok());
    CHECK(w.table->end_job(a, kJob * round, false, true));
    CHECK(w.table->poisoned(kJob * round, false) == std::vector<uint32_t>{0});
    CHECK(w.table->poisoned(kJob * round, true).empty());
    for (const bool works : {false, true})
      CHECK(w.table->begin_scrub(0).ok() && w.table->end_scrub(0, works).ok());
    CHECK(w.state(0) == LaneState::RESERVED && w.table->snapshot(0).failed_scrubs == 0);
  }
}

TEST(a_lost_device_ends_everything) {
  LaneWorld w(6);
  const LaneRef a = w.own(20), b = w.own(3), c = w.own(5);
  w.park(3, 16);
  Reservation promise = w.table->try_reserve(5, 0).value();
  CHECK(w.table->begin_copy(a, b, 0, -1, kJob).ok());
  CHECK(w.table->begin_job(c, kJob, 1, false).ok() && w.table->end_job(c, kJob, false, true));
  CHECK(w.table->begin_scrub(c.lane).ok() && w.table->release(a).ok());
  w.table->take_offline();
  CHECK(w.whole() && w.table->offline_lanes() == 6 && w.table->free_lanes() == 0);
  CHECK(!w.table->end_job(b, kJob, true, true) && !w.table->end_job(a, kJob, false, true));
  CHECK(w.table->end_scrub(c.lane, true).value() == LaneState::OFFLINE);
  CHECK(is(promise.commit(), Status::DEVICE_LOST) && !promise);
  CHECK(is(w.table->release(b), Status::DEVICE_LOST) &&
        is(w.table->seq_rm(c, 0, -1), Status::DEVICE_LOST));
  CHECK(is(w.table->try_reserve(1, 0), Status::DEVICE_LOST) &&
        is(w.table->try_reserve(1, 0, 2, true), Status::DEVICE_LOST));
  CHECK(w.whole() && w.table->offline_lanes() == 6 &&
        !w.table->find_prefix(LaneWorld::prefix(3, 16)).value());
}
