// SPDX-License-Identifier: Apache-2.0
// Data moves on a device that fails at each step in turn: what was not written is as it was, what
// was is poisoned, nothing else is touched, and a lane is busy as long as the device may write it.
#include "engine/kv_mover.h"

#include <atomic>
#include <string>

#include "engine/lane_scrub.h"
#include "tests/kv_rig.h"
#include "tests/scripted_access.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

const Cells kFirst = cells_of(1, 20), kSecond = cells_of(2, 12), kOther = cells_of(3, 30);

// Three lanes: two that an operation may use, one that it must leave alone.
struct World : KvRig {
  explicit World(const KvRigSettings& with) : KvRig(with) {}
  kv::LaneRef a = filled(kFirst), b = filled(kSecond), other = filled(kOther);
};
constexpr int kFills = 3;  // jobs that make a world

Cells shifted(Cells cells, size_t keep, size_t discard) {
  cells.erase(cells.begin() + static_cast<std::ptrdiff_t>(keep),
              cells.begin() + static_cast<std::ptrdiff_t>(keep + discard));
  for (size_t i = 0; i < cells.size(); ++i) cells[i].position = static_cast<int32_t>(i);
  return cells;
}

struct Operation {
  const char* name;
  std::vector<const char*> withheld;
  const char* jobs;  // R reads, W writes cells
  bool writes_b;     // the lane that is changed: b, or a
  Result<void> (*run)(World&, const MoveCall&);
  Cells (*after)();  // of that lane
};

// Slabs of 5 cells.
const std::vector<Operation> kOperations = {
    {"copy",
     {},
     "W",
     true,
     [](World& w, const MoveCall& call) { return w.mover->copy(w.a, w.b, -1, -1, call); },
     [] { return kFirst; }},
    {"copy of a beginning, by ranges",
     {"lane_copy"},
     "W",
     true,
     [](World& w, const MoveCall& call) { return w.mover->copy(w.a, w.b, 0, 7, call); },
     [] { return Cells(kFirst.begin(), kFirst.begin() + 7); }},
    {"copy by the host",
     {"lane_copy", "range_copy"},
     "RWRWRWRW",
     true,
     [](World& w, const MoveCall& call) { return w.mover->copy(w.a, w.b, -1, -1, call); },
     [] { return kFirst; }},
    {"shift",
     {},
     "WW",
     false,
     [](World& w, const MoveCall& call) -> Result<void> {
       CALRT_TRY(w.table->shift(w.a, 2, 3));
       return w.mover->apply(w.a, call);
     },
     [] { return shifted(kFirst, 2, 3); }},
    {"shift by the host",
     {"range_copy"},
     "RWRWRWW",
     false,
     [](World& w, const MoveCall& call) -> Result<void> {
       CALRT_TRY(w.table->shift(w.a, 2, 3));
       return w.mover->apply(w.a, call);
     },
     [] { return shifted(kFirst, 2, 3); }},
    {"read",
     {},
     "RRRR",
     false,
     [](World& w, const MoveCall& call) -> Result<void> {
       CALRT_TRY_ASSIGN(const Cells cells, w.read(w.a, 5, call));
       CHECK(cells == kFirst);
       return {};
     },
     [] { return kFirst; }},
    {"write",
     {},
     "WWWWW",
     false,
     [](World& w, const MoveCall& call) { return w.write(w.a, cells_of(9, 23), 5, call); },
     [] { return cells_of(9, 23); }},
};

// How a step fails.
struct Fault {
  const char* target;  // counts the jobs
  const char* what;
  Status status;
  bool runs;  // the device does the job's work all the same
  bool late;  // the driver answers after the deadline
};
const Fault kFaults[] = {
    {"kv_submit", "status=SUBMIT_FAILED", Status::SUBMIT_FAILED, false, false},
    {"completion", "status=EXECUTION_FAILED", Status::EXECUTION_FAILED, true, false},
    {"completion", "status=30", Status::INTERNAL, true, false},
    {"completion", "delay_ms=600", Status::EXECUTION_FAILED, true, true},
};

bool contains(const std::string& steps, size_t n, char what) {
  return steps.substr(0, n).find(what) != std::string::npos;
}

void fails_at(const Operation& operation, const Fault& fault, size_t step) {
  KvRigSettings with{.withheld = operation.withheld, .slab_bytes = 5 * sizeof(Cell)};
  with.faults =
      std::string(fault.target) + " " + fault.what + " nth=" + std::to_string(kFills + step + 1);
  World w(with);
  const kv::LaneRef& changed = operation.writes_b ? w.b : w.a;
  const Cells before = operation.writes_b ? kSecond : kFirst;
  const Result<void> done = operation.run(w, fault.late ? w.within(200) : w.call());
  const std::string steps = operation.jobs;
  const bool read_only = !contains(steps, steps.size(), 'W');
  const bool written = contains(steps, fault.runs ? step + 1 : step, 'W');
  const auto where = [&](bool right) {
    if (!right)
      std::fprintf(stderr, "%s: %s %s at step %zu\n", operation.name, fault.target, fault.what,
                   step);
    return right;
  };
  CHECK(where(!done.ok() && done.error().code == fault.status));

  if (fault.late) {
    const auto busy = *w.table->snapshot(changed);
    CHECK(where(busy.job_seq != 0 && busy.state != kv::LaneState::POISONED));
    CHECK(w.table->truncate(changed, 1).error().code == Status::INVALID_STATE);
    CHECK(where(eventually([&] { return w.table->snapshot(changed)->job_seq == 0; })));
  }
  const auto now = *w.table->snapshot(changed);
  CHECK(where(now.job_seq == 0 && (now.state == kv::LaneState::POISONED) == written));
  if (!written) {
    CHECK(where(w.raw(changed.lane, static_cast<uint32_t>(before.size())) == before));
    // What the books were told before is still to be done, and can be.
    CHECK(where(read_only || operation.writes_b || !now.canonical || steps == "WWWWW"));
    CHECK(where(operation.run(w, w.call()).ok() || read_only || !operation.writes_b));
  }
  // The lane that was only read, and the one that had no part in it.
  if (operation.writes_b) {
    CHECK(where(w.table->snapshot(w.a)->job_seq == 0));
    CHECK(where(*w.read(w.a, kRigCells, w.call()) == kFirst));
  }
  CHECK(where(*w.read(w.other, kRigCells, w.call()) == kOther));
  if (written) {
    CHECK(w.table->release(changed).ok() && w.table->free_lanes() == 1);
    LaneScrubber scrubber(w.model, w.session, w.table);
    CHECK(where(scrubber.scrub({changed.lane}) == std::vector<uint32_t>{changed.lane}));
    CHECK(w.table->free_lanes() == 2);
  }
}

}  // namespace

TEST(moves_leave_what_they_should) {
  for (const Operation& operation : kOperations) {
    World w({.withheld = operation.withheld, .slab_bytes = 5 * sizeof(Cell)});
    const Result<void> done = operation.run(w, w.call());
    if (!done.ok()) std::fprintf(stderr, "%s: %s\n", operation.name, done.error().message.c_str());
    CHECK(done.ok());
    const kv::LaneRef& changed = operation.writes_b ? w.b : w.a;
    CHECK(*w.read(changed, 3, w.call()) == operation.after());
    if (operation.writes_b) CHECK(*w.read(w.a, 7, w.call()) == kFirst);
    CHECK(*w.read(w.other, kRigCells, w.call()) == kOther);
  }
}

TEST(a_move_that_fails_at_any_step_mixes_nothing_up) {
  for (const Operation& operation : kOperations)
    for (const Fault& fault : kFaults)
      for (size_t step = 0; step < std::strlen(operation.jobs); ++step)
        fails_at(operation, fault, step);
}
