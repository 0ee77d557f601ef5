// SPDX-License-Identifier: Apache-2.0
// LaneTable against a plain slow model: every operation sequence of a small scope, long random
// ones, and two threads.
#include "kv/lanes.h"

#include <atomic>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "tests/check.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

// ---- the slow model: facts about each lane, states derived from them
// -----------------------------

struct ModelLane {
  bool owned = false, committed = false, poisoned = false, draining = false, prefilled = false;
  bool decoding = false;
  uint32_t length = 0, reserved = 0, job_cells = 0;
  uint64_t lease = 0, job = 0, last_job = 0, expires = 0;
  uint64_t freed_at = 0;

  LaneState state() const {
    if (poisoned) return LaneState::POISONED;
    if (draining) return LaneState::DRAINING;
    if (!owned) return LaneState::FREE;
    if (decoding) return LaneState::DECODING;
    if (prefilled) return LaneState::PREFILLING;
    return LaneState::RESERVED;
  }
  void free(uint64_t when) {
    const uint64_t last = last_job;
    *this = ModelLane{};
    last_job = last;
    freed_at = when;
  }
};

struct Model {
  std::vector<ModelLane> lanes;
  uint32_t cells;
  uint64_t frees = 0, stale = 0;

  ModelLane* owner(const LaneRef& ref, uint32_t generation) {
    if (ref.generation != generation || ref.lane >= lanes.size() || ref.lease == 0) return nullptr;
    ModelLane& lane = lanes[ref.lane];
    return lane.owned && lane.lease == ref.lease ? &lane : nullptr;
  }
  void expire(uint64_t now) {
    for (auto& lane : lanes) {
      if (lane.owned && !lane.committed && now >= lane.expires) lane.free(++frees);
    }
  }
  int choose(uint32_t prefer, bool only) const {
    if (prefer != kAnyLane && lanes[prefer].state() == LaneState::FREE) return int(prefer);
    if (only) return -1;
    int best = -1;
    for (int i = 0; i < int(lanes.size()); ++i) {
      if (lanes[i].state() != LaneState::FREE) continue;
      if (best < 0 || lanes[i].freed_at <= lanes[best].freed_at) best = i;
    }
    return best;
  }
};

constexpr uint32_t kGeneration = 7;

// One table and one model, driven by small numbers; compares everything after each operation.
struct Pair {
  explicit Pair(uint32_t lanes, uint32_t cells)
      : table(LaneTable::make(lanes, cells, kGeneration)) {
    model.lanes.resize(lanes);
    model.cells = cells;
    handles.resize(lanes);
    held.resize(lanes);
  }

  std::shared_ptr<LaneTable> table;
  Model model;
  std::vector<LaneRef> handles;   // the latest lease of each lane, perhaps stale
  std::vector<Reservation> held;  // RAII promise of each lane
  uint64_t now = 1, job_seq = 0;
  std::string log;
  bool good = true;

  void expect(bool condition, const char* what) {
    if (condition || !good) return;
    good = false;
    std::fprintf(stderr, "lanes: %s after:%s\n", what, log.c_str());
    CHECK(condition);
  }

  void reserve(uint32_t tokens, uint32_t prefer, bool only, uint64_t ttl) {
    log += " reserve";
    auto got = table->try_reserve(tokens, now, prefer, only, ttl);
    if (tokens == 0 || tokens > model.cells) {
      expect(!got.ok() && got.error().code == Status::OUT_OF_RANGE, "cannot fit");
      return;
    }
    model.expire(now);
    const int lane = model.choose(prefer, only);
    expect(got.ok() == (lane >= 0), "reserve decides as the model");
    if (!got.ok()) {
      expect(got.error().code == Status::KV_NO_CAPACITY, "no capacity");
      return;
    }
    expect(int(got->ref().lane) == lane, "lane choice");
    if (int(got->ref().lane) != lane) return;
    ModelLane& m = model.lanes[lane];
    m.owned = true;
    m.reserved = tokens;
    m.lease = got->ref().lease;
    m.expires = now + ttl;
    handles[lane] = got->ref();
    held[lane] = *std::move(got);  // an older, expired promise is dropped here: must not free ours
  }

  void commit(uint32_t lane) {
    log += " commit";
    const bool live = bool(held[lane]);
    const LaneRef ref = held[lane].ref();
    auto got = held[lane].commit();
    ModelLane* m = live ? model.owner(ref, kGeneration) : nullptr;
    expect(got.ok() == (m != nullptr), "commit");
    if (!got.ok() && live) expect(got.error().code == Status::KV_TIMEOUT, "expired");
    if (m != nullptr) m->committed = true;
  }

  void drop(uint32_t lane) {
    log += " drop";
    const bool live = bool(held[lane]);
    const LaneRef ref = held[lane].ref();
    held[lane].release();
    if (ModelLane* m = live ? model.owner(ref, kGeneration) : nullptr) m->free(++model.frees);
  }

  void begin(uint32_t lane, uint32_t n, bool prefill, bool old_seq = false) {
    log += " begin";
    const uint64_t seq = old_seq ? job_seq : ++job_seq;
    auto got = table->begin_job(handles[lane], seq, n, prefill);
    ModelLane* m = model.owner(handles[lane], kGeneration);
    const bool legal = m != nullptr && m->committed && !m->poisoned && m->job == 0 &&
                       seq > m->last_job && n > 0 && m->length + n <= m->reserved;
    expect(got.ok() == legal, "begin_job");
    if (!legal) return;
    m->job = m->last_job = seq;
    m->job_cells = n;
    m->prefilled = true;
    m->decoding = !prefill;
  }

  // wrong: a completion with a job_seq that is not the lane's.
  void end(uint32_t lane, bool ok, bool written, bool wrong) {
    log += " end";
    ModelLane& m = model.lanes[lane];
    const uint64_t seq = wrong ? m.job + 1000 : m.job;
    const bool current = !wrong && m.job != 0 && handles[lane].lease == m.lease;
    expect(table->end_job(handles[lane], seq, ok, written) == current, "end_job");
    if (!current) {
      ++model.stale;
      return;
    }
    m.job = 0;
    if (ok) m.length += m.job_cells;
    m.job_cells = 0;
    const bool drained = m.draining;
    if (!ok && written) {
      m.poisoned = true;
      m.draining = false;
      if (drained) m.length = m.reserved = 0, m.lease = 0;
    } else if (drained) {
      m.free(++model.frees);
    }
  }

  void release(uint32_t lane) {
    log += " release";
    auto got = table->release(handles[lane]);
    ModelLane* m = model.owner(handles[lane], kGeneration);
    expect(got.ok() == (m != nullptr), "release");
    if (m == nullptr) return;
    m->owned = false;
    if (m->job != 0) {
      m->draining = true;
    } else if (m->poisoned) {
      m->length = m->reserved = 0;
      m->lease = 0;
    } else {
      m->free(++model.frees);
    }
  }

  void truncate(uint32_t lane, uint32_t length) {
    log += " truncate";
    auto got = table->truncate(handles[lane], length);
    ModelLane* m = model.owner(handles[lane], kGeneration);
    const bool legal =
        m != nullptr && m->committed && !m->poisoned && m->job == 0 && length <= m->length;
    expect(got.ok() == legal, "truncate");
    if (legal) m->length = length;
  }

  void scrub(uint32_t lane) {
    log += " scrub";
    ModelLane& m = model.lanes[lane];
    expect(table->begin_scrub(lane).ok() == m.poisoned, "begin_scrub");
    expect(!table->begin_scrub(lane).ok(), "one at a time");
    const auto state = table->end_scrub(lane, true);
    expect(state.ok() == m.poisoned, "end_scrub");
    if (!m.poisoned) return;
    if (m.owned) {
      m.poisoned = m.prefilled = m.decoding = false;
      m.length = 0;
    } else {
      m.free(++model.frees);
    }
    expect(*state == m.state(), "what a scrub leaves");
  }

  // The lanes that job `seq` poisoned, all if 0.
  void scrub_of(uint64_t seq) {
    log += " scrub_of";
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < model.lanes.size(); ++i) {
      const ModelLane& m = model.lanes[i];
      if (m.poisoned && (seq == 0 || m.last_job == seq)) expected.push_back(i);
    }
    expect(table->poisoned(seq, false) == expected, "poisoned");
    for (const uint32_t lane : expected) scrub(lane);
  }

  void pass(uint64_t ns) {
    log += " pass";
    now += ns;
    table->expire(now);
    model.expire(now);
  }

  void compare() {
    const auto integrity = table->check_integrity();
    expect(integrity.ok(), integrity.ok() ? "" : integrity.error().message.c_str());
    uint32_t free = 0;
    for (uint32_t i = 0; i < model.lanes.size(); ++i) {
      const ModelLane& m = model.lanes[i];
      const LaneSnapshot s = table->snapshot(i);
      free += m.state() == LaneState::FREE;
      expect(s.state == m.state(), "state");
      expect(s.length == m.length && s.reserved == m.reserved && s.job_seq == m.job, "numbers");
      expect(table->snapshot(handles[i]).ok() == (model.owner(handles[i], kGeneration) != nullptr),
             "staleness");
    }
    expect(table->free_lanes() == free, "free lanes");
    expect(table->stale_completions() == model.stale, "stale completions");
    expect(table->can_allocate(1)->now == (free > 0), "can_allocate");
  }

  static constexpr uint32_t kOps = 28;  // 14 operations on each of two lanes
  void apply(uint32_t op) {
    const uint32_t lane = op % 2;
    switch (op / 2) {
      case 0:
        return reserve(2, kAnyLane, false, 10);
      case 1:
        return reserve(1, lane, true, 100);
      case 2:
        return commit(lane);
      case 3:
        return drop(lane);
      case 4:
        return begin(lane, 2, true);
      case 5:
        return begin(lane, 1, false);
      case 6:
        return end(lane, true, true, false);
      case 7:
        return end(lane, false, true, false);
      case 8:
        return end(lane, true, true, true);
      case 9:
        return release(lane);
      case 10:
        return truncate(lane, 1);
      case 11:
        return scrub(lane);
      case 12:
        return scrub_of(lane == 0 ? 0 : model.lanes[lane].last_job);
      default:
        return pass(20);
    }
  }
};

}  // namespace

TEST(every_short_sequence_behaves_as_the_model) {
  // Each sequence starts where one lane is committed, so depth 4 reaches drains and poison.
  for (uint32_t code = 0; code < Pair::kOps * Pair::kOps * Pair::kOps * Pair::kOps; ++code) {
    Pair pair(2, 3);
    pair.reserve(2, 1, true, 10);
    pair.commit(1);
    uint32_t rest = code;
    for (int i = 0; i < 4; ++i, rest /= Pair::kOps) pair.apply(rest % Pair::kOps);
    pair.compare();
    if (!pair.good) return;
  }
}

TEST(long_random_sequences_behave_as_the_model) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const uint32_t lanes = 1 + random() % 5, cells = 1 + random() % 9;
    Pair pair(lanes, cells);
    for (int step = 0; step < 1000 && pair.good; ++step) {
      const uint32_t lane = random() % lanes;
      if (pair.log.size() > 400) pair.log.erase(0, 200);
      switch (random() % 13) {
        case 0:
        case 1:
          pair.reserve(random() % (cells + 2), random() % 2 ? lane : kAnyLane, false,
                       1 + random() % 50);
          break;
        case 2:
          pair.reserve(1, lane, true, 1 + random() % 50);
          break;
        case 3:
        case 4:
          pair.commit(lane);
          break;
        case 5:
          pair.drop(lane);
          break;
        case 6:
          pair.begin(lane, random() % 4, random() % 2, random() % 8 == 0);
          break;
        case 7:
          pair.begin(lane, 1, random() % 2);
          break;
        case 8:
        case 9:
          pair.end(lane, random() % 4 != 0, random() % 2, random() % 8 == 0);
          break;
        case 10:
          pair.release(lane);
          break;
        case 11:
          random() % 2 ? pair.truncate(lane, random() % 4) : pair.scrub(lane);
          if (random() % 4 == 0) pair.scrub_of(random() % 2 ? 0 : pair.model.lanes[lane].last_job);
          break;
        default:
          pair.pass(random() % 20);
          break;
      }
      pair.compare();
    }
    if (!pair.good) return;
  }
}

TEST(a_completion_of_an_earlier_owner_never_reaches_the_lane) {
  auto table = LaneTable::make(1, 8, 1);
  const LaneRef first = std::move(*table->try_reserve(1, 0)).commit().value();
  CHECK(table->begin_job(first, 5, 1, true).ok());
  CHECK(table->release(first).ok());
  CHECK(table->snapshot(0).state == LaneState::DRAINING);
  CHECK(!table->try_reserve(1, 0).ok());
  CHECK(table->end_job(first, 5, true, true));
  const LaneRef second = std::move(*table->try_reserve(1, 0)).commit().value();
  CHECK(table->begin_job(second, 6, 1, true).ok());
  CHECK(!table->end_job(first, 5, true, true));
  CHECK(!table->end_job(first, 6, true, true));  // right number, wrong lease
  CHECK(!table->end_job(second, 5, true, true));
  CHECK(table->stale_completions() == 3);
  CHECK(table->snapshot(0).job_seq == 6);
}

TEST(a_promise_of_any_length_ends_no_sooner) {
  auto table = LaneTable::make(1, 8, 1);
  const auto got = table->try_reserve(1, 77, kAnyLane, false, UINT64_MAX);
  CHECK(got.ok() && table->expire(UINT64_MAX - 1) == 0 && table->free_lanes() == 0);
}

TEST(errors_name_the_numbers) {
  auto table = LaneTable::make(2, 8, 3);
  const auto too_long = table->try_reserve(9, 0);
  CHECK(!too_long.ok() && too_long.error().code == Status::OUT_OF_RANGE);
  CHECK(too_long.error().message.find("tokens=9") != std::string::npos);
  CHECK(too_long.error().message.find("8 cells") != std::string::npos);
  CHECK(!table->can_allocate(9).ok());
  CHECK(!table->try_reserve(1, 0, 2).ok());
  const LaneRef four = std::move(*table->try_reserve(4, 0)).commit().value();
  CHECK(table->begin_job(four, 1, 3, true).ok() && table->end_job(four, 1, true, true));
  const auto past = table->begin_job(four, 2, 2, false);
  CHECK(!past.ok() && past.error().code == Status::OUT_OF_RANGE);
  CHECK(past.error().message.find("3 cells filled + 2 to write > 4 reserved") != std::string::npos);
  CHECK(table->snapshot(four.lane).job_seq == 0 && table->begin_job(four, 2, 1, false).ok());
  CHECK(table->snapshot(99).state == LaneState::OFFLINE);
  LaneRef ref = std::move(*table->try_reserve(1, 0)).commit().value();
  ref.generation = 2;
  CHECK(table->begin_job(ref, 1, 1, true).error().code == Status::INVALID_HANDLE);
}

TEST(threads_never_share_a_lane) {
  auto table = LaneTable::make(3, 16, 1);
  std::atomic<int> owners[3] = {0, 0, 0};
  std::atomic<uint64_t> job_seq{1};
  std::atomic<bool> shared{false};
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 20000; ++i) {
      auto got = table->try_reserve(1 + random() % 16, 0);
      if (!got.ok()) continue;
      const uint32_t lane = got->ref().lane;
      if (owners[lane].fetch_add(1) != 0) shared = true;
      if (random() % 4 == 0) {
        owners[lane].fetch_sub(1);
        continue;  // the reservation gives it back
      }
      const LaneRef ref = got->commit().value();
      const uint64_t seq = job_seq.fetch_add(1);
      if (table->begin_job(ref, seq, 1, true).ok()) {
        if (!table->end_job(ref, seq, true, true)) shared = true;
      }
      (void)table->can_allocate(1);
      owners[lane].fetch_sub(1);
      if (!table->release(ref).ok()) shared = true;
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  CHECK(!shared);
  CHECK(table->free_lanes() == 3);
  CHECK(table->check_integrity().ok());
}
