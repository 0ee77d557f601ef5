// SPDX-License-Identifier: Apache-2.0
// Breadth-first over the reachable states of a table of two lanes of four cells: every operation
// from every state, beside a plain model (plain_lanes.h) that knows each cell. What the model
// refuses must be refused with its status, and change nothing.
#include <map>
#include <string>

#include "tests/check.h"
#include "tests/plain_lanes.h"

using namespace calrt;
using namespace calrt::kv;
using namespace calrt::testing;

namespace {

constexpr uint32_t kGeneration = 3;

std::vector<Op> all_operations() {
  std::vector<Op> all{{Do::RESERVE, 0, 4, -1},
                      {Do::RESERVE, 0, 2, 0},
                      {Do::RESERVE, 0, 4, 1, 1},
                      {Do::RESERVE_LATE, 0, 4, -1},
                      {Do::RESERVE, 0, 0, -1},
                      {Do::RESERVE, 0, 5, -1},
                      {Do::RESERVE, 0, 1, 2},
                      {Do::EXPIRE},
                      {Do::OFFLINE},
                      {Do::RM_ALL, 0, 1, 2},
                      {Do::RM_ALL, 0, -1, -1},
                      {Do::RM_ALL, 0, -2, -1}};
  for (int lane = 0; lane < kLanes; ++lane) {
    const auto add = [&](Do what, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
      all.push_back({what, lane, a, b, c});
    };
    for (const Do what : {Do::COMMIT, Do::DROP, Do::RELEASE, Do::KEEP, Do::CLEAR, Do::APPLY,
                          Do::READ, Do::REUSE, Do::SPILL, Do::BEGIN_SCRUB})
      add(what);
    for (const int n : {0, 1, 3, 5}) add(Do::BEGIN_JOB, n, n == 3);
    add(Do::END, 1, 1), add(Do::END, 0, 0), add(Do::END, 0, 1);
    add(Do::RM, 1, -1), add(Do::RM, 0, 1), add(Do::RM, 1, 2), add(Do::RM, 2, 1);
    add(Do::RM, -2, 0), add(Do::RM, 0, -2);
    add(Do::ADD, 0, -1, 1), add(Do::ADD, 1, -1, -1), add(Do::ADD, 0, 2, -1);
    add(Do::ADD, 0, 1, INT64_MAX), add(Do::ADD, 0, -1, INT64_MIN), add(Do::ADD, 0, -3, 1);
    add(Do::DIV, 0, -1, 2), add(Do::DIV, 1, 3, 3), add(Do::DIV, 0, -1, 0), add(Do::DIV, -2, 0, 1);
    for (const int job : {0, 1}) {
      add(Do::CP, -1, -1, job), add(Do::CP, 0, 2, job), add(Do::CP, 1, 3, job);
      add(Do::CP, 0, -2, job);
    }
    add(Do::SHIFT, 0, 0), add(Do::SHIFT, 1, 1);
    add(Do::TRUNCATE, 0), add(Do::TRUNCATE, 2);
    add(Do::WRITE, 0), add(Do::WRITE, 4), add(Do::WRITE, 5);
    add(Do::END_SCRUB, 1), add(Do::END_SCRUB, 0);
  }
  return all;
}

template <class T>
Status code_of(const Result<T>& got) {
  return got.ok() ? Status::OK : got.error().code;
}

// The table, and what a caller has in his hands.
struct Real {
  std::shared_ptr<LaneTable> table = LaneTable::make(kLanes, kCells, kGeneration);
  std::array<LaneRef, kLanes> refs{};  // the latest of each lane
  std::array<Reservation, kLanes> held;
  std::array<uint64_t, kLanes> job{};  // the latest of each lane
  uint64_t seq = 0, now = 1'000;

  Status begun(const Op& op, const Result<Plan>& got, bool other_too = false) {
    if (got.ok() && !got->empty()) {
      job[op.lane] = seq;
      if (other_too) job[1 - op.lane] = seq;
    }
    return code_of(got);
  }

  Status apply(const Op& op) {
    const auto lane = static_cast<uint32_t>(op.lane);
    const LaneRef& ref = refs[lane];
    const LaneRef& other = refs[1 - lane];
    switch (op.what) {
      case Do::RESERVE:
      case Do::RESERVE_LATE: {
        const uint32_t prefer = op.b < 0 ? kAnyLane : static_cast<uint32_t>(op.b);
        if (op.what == Do::RESERVE_LATE) now += kReservationTtlNs;
        auto got = table->try_reserve(static_cast<uint32_t>(op.a), now, prefer, op.c != 0);
        if (!got.ok()) return got.error().code;
        const LaneRef mine = got->ref();
        refs[mine.lane] = mine;
        held[mine.lane] = *std::move(got);
        return Status::OK;
      }
      case Do::EXPIRE:
        table->expire(now += kReservationTtlNs);
        return Status::OK;
      case Do::OFFLINE:
        table->take_offline();
        return Status::OK;
      case Do::COMMIT:
        return code_of(held[lane].commit());
      case Do::DROP:
        held[lane].release();
        return Status::OK;
      case Do::RELEASE:
        return code_of(table->release(ref));
      case Do::BEGIN_JOB: {
        const auto got = table->begin_job(ref, ++seq, static_cast<uint32_t>(op.a), op.b != 0);
        if (got.ok()) job[lane] = seq;
        return code_of(got);
      }
      case Do::END:
        return table->end_job(ref, job[lane], op.a != 0, op.b != 0) ? Status::OK
                                                                    : Status::INVALID_HANDLE;
      case Do::RM:
        return code_of(table->seq_rm(ref, op.a, op.b));
      case Do::RM_ALL:
        return code_of(table->seq_rm_all(op.a, op.b));
      case Do::KEEP:
        return code_of(table->seq_keep(ref));
      case Do::ADD:
        return code_of(table->seq_add(ref, op.a, op.b, op.c));
      case Do::DIV:
        return code_of(table->seq_div(ref, op.a, op.b, op.c));
      case Do::CP:
        if (op.c == 0) return code_of(table->seq_cp(ref, other, op.a, op.b));
        return begun(op, table->begin_copy(ref, other, op.a, op.b, ++seq), true);
      case Do::CLEAR:
        return code_of(table->clear(ref));
      case Do::SHIFT:
        return code_of(table->shift(ref, op.a, op.b));
      case Do::TRUNCATE:
        return code_of(table->truncate(ref, static_cast<uint32_t>(op.a)));
      case Do::APPLY:
        return begun(op, table->begin_apply(ref, ++seq));
      case Do::WRITE:
        return begun(op, table->begin_write(ref, ++seq, static_cast<uint32_t>(op.a)));
      case Do::READ:
        return begun(op, table->begin_read(ref, ++seq));
      case Do::REUSE:
        return begun(op, table->begin_reuse(ref, ++seq));
      case Do::SPILL:
        return begun(op, table->begin_spill(ref, ++seq));
      case Do::BEGIN_SCRUB:
        return code_of(table->begin_scrub(lane));
      case Do::END_SCRUB:
        return code_of(table->end_scrub(lane, op.a != 0));
    }
    return Status::INTERNAL;
  }

  // Empty if all that can be seen is as `plain` has it.
  const char* differs(const PlainTable& plain) const {
    for (uint32_t i = 0; i < kLanes; ++i) {
      const PlainLane& lane = plain.lanes[i];
      const LaneSnapshot seen = table->snapshot(i);
      if (seen.state != lane.state) return "the lane's state";
      if (seen.length != static_cast<uint32_t>(whole(lane.cells))) return "the length";
      if (seen.reserved != static_cast<uint32_t>(lane.reserved)) return "what is reserved";
      if (seen.job_seq != (lane.job == PlainJob::NONE ? 0 : job[i])) return "the job";
      if (seen.canonical != canonical(lane.cells)) return "canonical";
      if (seen.failed_scrubs != static_cast<uint32_t>(lane.failed)) return "failed scrubs";
      if (bool(held[i]) != lane.held) return "the reservation";
      const auto sequence = table->sequence(refs[i]);
      const bool readable = lane.leased && lane.state != LaneState::DRAINING;
      const Status stale = lane.lost ? Status::DEVICE_LOST : Status::INVALID_HANDLE;
      if (!readable && code_of(sequence) != stale) return "a stale lease";
      if (readable && (lane.state == LaneState::POISONED) != !sequence.ok()) return "poison";
      if (sequence.ok() && cells_of(*sequence) != lane.cells) return "the cells";
      if (sequence.ok() && sequence->pos_max() != pos_max(lane.cells)) return "pos_max";
    }
    if (table->free_lanes() != static_cast<uint32_t>(plain.count(LaneState::FREE)))
      return "free lanes";
    if (table->poisoned_lanes() != static_cast<uint32_t>(plain.count(LaneState::POISONED)))
      return "poisoned lanes";
    if (table->offline_lanes() != static_cast<uint32_t>(plain.count(LaneState::OFFLINE)))
      return "lanes offline";
    return table->check_integrity().ok() ? nullptr : "check_integrity()";
  }

  static Cells cells_of(const Sequence& sequence) {
    Cells cells;
    for (const Run& run : sequence.runs())
      for (uint32_t k = 0; k < run.n; ++k)
        cells[run.cell + k] = {static_cast<int8_t>(run.same ? run.pos : run.pos + int(k)),
                               static_cast<int8_t>(run.coded + int(k))};
    return cells;
  }
};

struct Node {
  PlainTable plain;
  int parent = -1, op = -1, depth = 0;
};

struct Search {
  const std::vector<Op> ops = all_operations();
  std::vector<Node> nodes;
  std::map<PlainTable, int> known;
  uint64_t checked = 0, refused = 0, stale = 0;
  std::array<uint64_t, 25> done{};  // by Do: what succeeded

  void add(const PlainTable& plain, int parent, int op, int depth) {
    if (known.emplace(plain, static_cast<int>(nodes.size())).second)
      nodes.push_back({plain, parent, op, depth});
  }

  std::vector<int> path(int node) const {
    std::vector<int> path;
    for (; nodes[node].parent >= 0; node = nodes[node].parent) path.push_back(nodes[node].op);
    return {path.rbegin(), path.rend()};
  }

  Real replay(const std::vector<Op>& before, const std::vector<int>& path) const {
    Real real;
    for (const Op& op : before) (void)real.apply(op);
    for (const int op : path) (void)real.apply(ops[op]);
    return real;
  }

  bool same(const Real& real, const PlainTable& plain, const std::vector<int>& path, int op) {
    ++checked;
    const char* what = real.differs(plain);
    if (what == nullptr) return true;
    std::fprintf(stderr, "%s after", what);
    for (const int step : path) describe(ops[step]);
    if (op >= 0) describe(ops[op]);
    std::fprintf(stderr, "\n");
    CHECK(what == nullptr);
    return false;
  }

  static void describe(const Op& op) {
    std::fprintf(stderr, " %d(lane %d; %lld, %lld, %lld)", int(op.what), op.lane, (long long)op.a,
                 (long long)op.b, (long long)op.c);
  }

  // What comes late, doubled or was never begun: counted, and nothing else.
  bool drops_strays(Real& real, const PlainTable& plain, const std::vector<int>& path) {
    for (uint32_t i = 0; i < kLanes; ++i) {
      const LaneRef& ref = real.refs[i];
      const uint64_t before = real.table->stale_completions(), job = real.job[i];
      bool any = false;
      for (const bool ok : {true, false}) {
        any |= real.table->end_job(ref, job + 1, ok, !ok);
        any |= real.table->end_job(ref, job - 1, ok, !ok);
        any |= real.table->end_job(ref, 0, ok, !ok);
        any |= real.table->end_job({ref.lane, ref.generation, ref.lease - 1}, job, ok, !ok);
        any |= real.table->end_job({ref.lane, ref.generation + 1, ref.lease}, job, ok, !ok);
        any |= real.table->end_job({kLanes, ref.generation, ref.lease}, job, ok, !ok);
      }
      CHECK(!any && real.table->stale_completions() == before + 12);
      stale += 12;
      if (any) return false;
    }
    return same(real, plain, path, -1);
  }

  // Every operation from every state that `depth` operations reach after `before`.
  void run(const std::vector<Op>& before, int depth) {
    nodes.clear();
    known.clear();
    PlainTable root;
    for (const Op& op : before) CHECK(root.apply(op) == Status::OK);
    add(root, -1, -1, 0);
    for (int at = 0; at < static_cast<int>(nodes.size()); ++at) {
      const Node node = nodes[at];
      if (node.depth == depth) continue;
      const std::vector<int> way = path(at);
      Real real = replay(before, way);
      if (!drops_strays(real, node.plain, way)) return;
      for (int op = 0; op < static_cast<int>(ops.size()); ++op) {
        PlainTable after = node.plain;
        const Status wanted = after.apply(ops[op]);
        const Status got = real.apply(ops[op]);
        if (got != wanted) {
          std::fprintf(stderr, "status %d, the model says %d: ", int(got), int(wanted));
          describe(ops[op]);
          (void)same(real, after, way, op);
          CHECK(got == wanted);
          return;
        }
        if (!same(real, after, way, op)) return;
        if (wanted == Status::OK)
          ++done[static_cast<size_t>(ops[op].what)];
        else
          ++refused;
        if (after == node.plain) continue;
        add(after, at, op, node.depth + 1);
        real = replay(before, way);
      }
    }
  }
};

void report(const Search& search, size_t least) {
  std::printf("%zu states, %llu checked, %llu refusals, %llu stray completions\n",
              search.nodes.size(), static_cast<unsigned long long>(search.checked),
              static_cast<unsigned long long>(search.refused),
              static_cast<unsigned long long>(search.stale));
  CHECK(search.nodes.size() >= least);
}

}  // namespace

TEST(seven_operations_from_nothing) {
  Search search;
  search.run({}, 7);
  report(search, 3'000);
}

// From two lanes that are somebody's and hold three and four cells.
TEST(four_operations_from_two_filled_lanes) {
  Search search;
  search.run({{Do::RESERVE, 0, 4, 0},
              {Do::COMMIT, 0},
              {Do::BEGIN_JOB, 0, 3, 1},
              {Do::END, 0, 1, 1},
              {Do::RESERVE, 0, 4, 1},
              {Do::COMMIT, 1},
              {Do::WRITE, 1, 4},
              {Do::END, 1, 1, 1}},
             4);
  report(search, 20'000);
  for (size_t op = 0; op < search.done.size(); ++op) {
    const auto what = static_cast<Do>(op);  // each is done somewhere, but what needs prefixes
    CHECK((search.done[op] > 0) == (what != Do::REUSE && what != Do::SPILL));
  }
}
