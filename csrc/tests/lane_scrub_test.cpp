// SPDX-License-Identifier: Apache-2.0
// A poisoned lane is given out again once it works, is OFFLINE after two failures, and stays out of
// everybody's hands while a job of a try may still write it.
#include "engine/lane_scrub.h"

#include <cstdlib>
#include <string>
#include <thread>

#include "base/log.h"
#include "tests/kv_rig.h"
#include "tests/scripted_access.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

using Lanes = std::vector<uint32_t>;

struct World : KvRig {
  explicit World(const KvRigSettings& with = {}) : KvRig(with) {}
  LaneScrubber scrubber{model, session, table};

  // A lane as a job leaves it that failed after it began to write.
  kv::LaneRef poisoned() {
    const kv::LaneRef lane = reserve();
    const uint64_t job_seq = Job::next_job_seq();
    CHECK(table->begin_job(lane, job_seq, 5, true).ok());
    CHECK(table->end_job(lane, job_seq, false, true));
    return lane;
  }
  kv::LaneState state(const kv::LaneRef& lane) { return table->snapshot(lane.lane).state; }
};

// WRITE and READ of three cells, then CLEAR.
constexpr int kJobs = 7;

std::string nth(const char* rule, int job) { return std::string(rule) + std::to_string(job + 1); }

}  // namespace

TEST(a_lane_that_works_is_empty_and_its_owners_or_free) {
  World w;
  const kv::LaneRef lane = w.poisoned(), good = w.filled(cells_of(1, 9));
  CHECK(w.table->begin_job(lane, Job::next_job_seq(), 1, true).error().code == Status::KV_POISONED);
  CHECK(w.scrubber.scrub({lane.lane, good.lane}) == Lanes{lane.lane});
  CHECK(w.state(lane) == kv::LaneState::RESERVED && w.table->snapshot(lane)->length == 0);
  CHECK(w.raw(lane.lane, kRigCells) == Cells(kRigCells));  // nothing of before, nothing of the try
  CHECK(*w.read(good, kRigCells, w.call()) == cells_of(1, 9));
  CHECK(w.write(lane, cells_of(2, 4), 4, w.call()).ok());

  const kv::LaneRef gone = w.poisoned();
  CHECK(w.table->release(gone).ok() && w.state(gone) == kv::LaneState::POISONED);
  const uint32_t free = w.table->free_lanes();
  w.scrubber.scrub_unowned();
  CHECK(w.state(gone) == kv::LaneState::FREE && w.table->free_lanes() == free + 1);
  CHECK(w.scrubber.scrub({gone.lane}).empty());
}

TEST(the_first_the_middle_and_the_last_cell_are_tried) {
  World w({.withheld = {"kv_clear"}});  // so that what was written stays
  const kv::LaneRef lane = w.poisoned();
  CHECK(w.scrubber.scrub({lane.lane}) == Lanes{lane.lane});
  const Cells left = w.raw(lane.lane, kRigCells);
  for (uint32_t cell = 0; cell < kRigCells; ++cell) {
    const bool tried = cell == 0 || cell == kRigCells / 2 || cell == kRigCells - 1;
    CHECK((left[cell] != Cell()) == tried);
  }
}

TEST(a_job_of_the_try_that_fails_counts_and_two_are_enough) {
  for (const char* rule : {"kv_submit status=SUBMIT_FAILED nth=", "kv_submit status=-1 nth=",
                           "completion status=EXECUTION_FAILED nth=", "completion short_in=4 nth=",
                           "completion short_out=2 nth="}) {
    for (int job = 0; job < kJobs; ++job) {
      // short_in is of a WRITE, the even jobs; short_out of a READ.
      const bool in = std::strstr(rule, "short_in") != nullptr;
      const bool out = std::strstr(rule, "short_out") != nullptr;
      if ((in && (job % 2 != 0 || job == kJobs - 1)) || (out && job % 2 == 0)) continue;
      World w({.faults = nth(rule, job)});
      const kv::LaneRef lane = w.poisoned(), other = w.poisoned();
      CHECK(w.scrubber.scrub({lane.lane}).empty() && w.state(lane) == kv::LaneState::POISONED);
      CHECK(w.table->snapshot(lane.lane).failed_scrubs == 1);
      CHECK(w.scrubber.scrub({lane.lane, other.lane}) == (Lanes{lane.lane, other.lane}));
      CHECK(w.table->snapshot(lane.lane).failed_scrubs == 0);
    }
  }
  World w({.faults = "kv_submit status=SUBMIT_FAILED"});
  const kv::LaneRef lane = w.poisoned();
  CHECK(w.scrubber.scrub({lane.lane}).empty() && w.state(lane) == kv::LaneState::POISONED);
  CHECK(w.scrubber.scrub({lane.lane}).empty() && w.state(lane) == kv::LaneState::OFFLINE);
  CHECK(w.scrubber.scrub({lane.lane}).empty() && w.table->offline_lanes() == 1);
  CHECK(w.table->snapshot(lane).error().code == Status::INVALID_HANDLE);
  CHECK(w.table->free_lanes() == 3 && w.reserve().lane != lane.lane);
}

// A device that writes each cell but the last one too far.
TEST(a_lane_whose_cells_do_not_keep_what_is_written_does_not_work) {
  setenv("CALRT_DEFECT", "write_next_cell", 1);
  World w({.spec = "defective"});
  unsetenv("CALRT_DEFECT");
  const kv::LaneRef lane = w.poisoned();
  CHECK(w.scrubber.scrub({lane.lane}).empty() && w.table->snapshot(lane)->failed_scrubs == 1);
  CHECK(w.scrubber.scrub({lane.lane}).empty() && w.state(lane) == kv::LaneState::OFFLINE);
}

TEST(who_waits_tries_the_lanes_of_nobody_and_all_who_wait_may_have_them) {
  World w({.lanes = 1});
  const auto queue = std::make_shared<ReserveQueue>(
      w.table, 64, std::make_shared<LaneScrubber>(w.model, w.session, w.table));
  const kv::LaneRef lane = w.poisoned();
  CHECK(w.table->release(lane).ok());
  const auto first = *queue->enqueue(1, UINT64_MAX);
  CHECK(!first->poll());
  const auto second = queue->reserve(1, UINT64_MAX, {[](void*) { return true; }, nullptr});
  CHECK(!second.ok() && second.error().code == Status::CANCELLED && first->take().ok());
}

TEST(a_full_queue_is_no_fault_of_the_lane) {
  World w({.faults = "kv_submit status=QUEUE_FULL from=1 times=5"});
  const kv::LaneRef lane = w.poisoned();
  CHECK(w.scrubber.scrub({lane.lane}) == Lanes{lane.lane});
  CHECK(w.state(lane) == kv::LaneState::RESERVED);
}

TEST(without_cells_to_read_a_known_token_tells) {
  const std::vector<const char*> blind = {"kv_read"};
  {
    World w({.withheld = blind});
    const kv::LaneRef lane = w.poisoned(), other = w.poisoned();
    CHECK(w.scrubber.scrub({lane.lane, other.lane}) == (Lanes{lane.lane, other.lane}));
  }
  {
    // What was never seen must be the same twice; later it must be what was seen.
    World w({.faults = "completion flip nth=2", .withheld = blind});
    const kv::LaneRef lane = w.poisoned();
    CHECK(w.scrubber.scrub({lane.lane}).empty() && w.scrubber.scrub({lane.lane}).size() == 1);
  }
  {
    World w({.faults = "completion flip from=3", .withheld = blind});
    const kv::LaneRef good = w.poisoned(), bad = w.poisoned();
    CHECK(w.scrubber.scrub({good.lane, bad.lane}) == Lanes{good.lane});
    CHECK(w.scrubber.scrub({bad.lane}).empty() && w.state(bad) == kv::LaneState::OFFLINE);
  }
  World w({.faults = "submit status=QUEUE_FULL from=1 times=3", .withheld = blind});
  const kv::LaneRef lane = w.poisoned();
  CHECK(w.scrubber.scrub({lane.lane}) == Lanes{lane.lane});
}

TEST(a_lane_stays_out_of_hands_while_a_lost_try_may_write_it) {
  for (const bool token : {false, true}) {
    KvRigSettings with{.faults = "completion delay_ms=2600 nth=1"};
    if (token) with.withheld = {"kv_read"};
    World w(with);
    const kv::LaneRef lane = w.poisoned();
    CHECK(w.scrubber.scrub({lane.lane}).empty());
    // The job is lost, not answered: a second try would end before the first.
    CHECK(w.scrubber.scrub({lane.lane}).empty() && w.state(lane) == kv::LaneState::POISONED);
    CHECK(w.table->snapshot(lane.lane).failed_scrubs == 0);
    CHECK(eventually([&] { return w.table->snapshot(lane.lane).failed_scrubs == 1; }));
    CHECK(w.scrubber.scrub({lane.lane}) == Lanes{lane.lane});
  }
}

TEST(lanes_of_a_closed_model_or_device_are_not_tried_and_nobody_is_told) {
  static int lines;
  lines = 0;
  set_log_sink([](const LogRecord&) { ++lines; });
  for (const bool all : {false, true}) {
    World w;
    const kv::LaneRef lane = w.poisoned();
    if (all)
      w.model->device()->close();
    else
      w.model->close();
    CHECK(w.scrubber.scrub({lane.lane}).empty());
    CHECK(w.table->snapshot(lane.lane).failed_scrubs == 0 && lines == 0);
  }
  set_log_sink(nullptr);
}

TEST(one_lane_is_tried_by_one_at_a_time) {
  World w;
  const kv::LaneRef lane = w.poisoned();
  std::atomic<size_t> worked{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] { worked += w.scrubber.scrub({lane.lane}).size(); });
  for (std::thread& thread : threads) thread.join();
  CHECK(worked == 1 && w.state(lane) == kv::LaneState::RESERVED);
}
