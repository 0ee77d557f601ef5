// SPDX-License-Identifier: Apache-2.0
// Eight threads on one lane table: promises, jobs, copies, sequences, parked prefixes, scrubs. At
// the end every lane is back and the table agrees with itself. CALRT_STRESS_OPERATIONS sets how
// much in all (default 8e5).
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/lane_world.h"

using namespace calrt;
using namespace calrt::kv;
using namespace calrt::testing;

namespace {

constexpr int kThreads = 8;
constexpr uint32_t kLanes = 6;

int operations() {
  const char* asked = std::getenv("CALRT_STRESS_OPERATIONS");
#if defined(__SANITIZE_THREAD__)
  constexpr int kUsual = 80'000;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  constexpr int kUsual = 80'000;
#else
  constexpr int kUsual = 800'000;
#endif
#else
  constexpr int kUsual = 800'000;
#endif
  return asked != nullptr ? std::max(std::atoi(asked), kThreads) : kUsual;
}

struct Shared {
  LaneWorld world{kLanes};
  std::atomic<uint64_t> seq{0}, done{0}, wrong{0}, reserved{0}, parked{0}, moved{0}, scrubbed{0};
  std::array<std::atomic<int>, kLanes> owners{};  // of each lane: never two
};

void expect(Shared& all, bool right) {
  if (!right) ++all.wrong;
}

// A job of mine: nobody else's completion ends it, and mine does once.
void end(Shared& all, const LaneRef& ref, uint64_t seq, bool ok, bool written) {
  LaneTable& table = *all.world.table;
  expect(all, !table.end_job(ref, seq + (1ull << 40), ok, written));
  expect(all, table.end_job(ref, seq, ok, written));
  expect(all, !table.end_job(ref, seq, ok, written));
}

void own(Shared& all, std::mt19937& random, int who, const LaneRef& ref) {
  LaneTable& table = *all.world.table;
  expect(all, all.owners[ref.lane].fetch_add(1) == 0);
  const int steps = 1 + static_cast<int>(random() % 12);
  bool poisoned = false;
  for (int step = 0; step < steps && !poisoned; ++step, ++all.done) {
    const uint64_t seq = ++all.seq;
    switch (random() % 8) {
      case 0:
      case 1:
      case 2:
        if (table.begin_job(ref, seq, 1 + random() % 8, step == 0).ok()) {
          const uint32_t dice = random() % 16;
          poisoned = dice == 0;
          end(all, ref, seq, dice > 1, dice == 0);
        }
        break;
      case 3:
        expect(all, table.seq_rm(ref, random() % 8, random() % 16).ok());
        break;
      case 4:
        expect(all, table.seq_add(ref, random() % 16, -1, -1).ok());
        break;
      case 5:
        if (auto plan = table.begin_apply(ref, seq); plan.ok() && !plan->empty()) {
          end(all, ref, seq, true, true);
          ++all.moved;
        }
        break;
      case 6:
        expect(all, table.clear(ref).ok());
        break;
      case 7:
        if (auto plan = table.begin_write(ref, seq, 12); plan.ok()) end(all, ref, seq, true, true);
        break;
    }
  }
  const uint64_t seq = ++all.seq;
  const uint32_t last = poisoned ? 9 : random() % 4;
  if (last == 0 && table.begin_write(ref, seq, 12).ok()) {
    end(all, ref, seq, true, true);
    Prefix prefix = LaneWorld::prefix(who % 3, 12);
    all.owners[ref.lane] = 0;
    expect(all, table.park(ref, std::move(prefix), static_cast<int32_t>(random() % 3)).ok());
    ++all.parked;
  } else if (last == 1 && table.begin_job(ref, seq, 1, false).ok()) {
    expect(all, table.release(ref).ok());  // drains
    all.owners[ref.lane] = 0;
    expect(all, table.end_job(ref, seq, true, true));
  } else {
    all.owners[ref.lane] = 0;
    expect(all, table.release(ref).ok());
  }
  expect(all, is(table.release(ref), Status::INVALID_HANDLE));
}

void work(Shared& all, int who, uint64_t enough) {
  LaneTable& table = *all.world.table;
  std::mt19937 random(static_cast<unsigned>(who));
  const Prefix prompt = LaneWorld::prefix(who % 3, 10 + who % 4);
  while (all.done < enough) {
    ++all.done;
    const auto capacity = table.can_allocate(8);
    expect(all, capacity.ok() && capacity->free <= kLanes);
    switch (random() % 16) {
      case 0:
        table.expire(0);
        break;
      case 1:
        (void)table.unpark(random() % kLanes);
        break;
      case 2:
        expect(all, table.clear_prefixes().ok());
        break;
      case 3:
        expect(all, table.check_integrity().ok());
        break;
      default:
        break;
    }
    for (const uint32_t lane : table.poisoned(0, true)) {
      if (!table.begin_scrub(lane).ok()) continue;
      expect(all, table.end_scrub(lane, true).ok());
      ++all.scrubbed;
    }
    auto got = random() % 4 == 0 ? all.world.reuse(prompt) : table.try_reserve(64, 0);
    if (!got.ok()) {
      expect(all, is(got, Status::KV_NO_CAPACITY));
      std::this_thread::yield();
      continue;
    }
    ++all.reserved;
    if (random() % 8 == 0) continue;  // dropped
    const auto ref = got->commit();
    expect(all, ref.ok());
    if (!ref.ok()) continue;
    const uint64_t seq = ++all.seq;
    if (auto plan = table.begin_reuse(*ref, seq); plan.ok()) {
      end(all, *ref, seq, true, true);
      ++all.moved;
    }
    own(all, random, who, *ref);
  }
}

}  // namespace

TEST(eight_threads) {
  Shared all;
  const auto enough = static_cast<uint64_t>(operations());
  std::vector<std::thread> threads;
  for (int who = 1; who <= kThreads; ++who) threads.emplace_back(work, std::ref(all), who, enough);
  for (std::thread& thread : threads) thread.join();
  LaneTable& table = *all.world.table;
  CHECK(all.wrong == 0 && all.done >= enough);
  for (const uint32_t lane : table.poisoned(0, true))
    CHECK(table.begin_scrub(lane).ok() && table.end_scrub(lane, true).ok());
  CHECK(table.clear_prefixes().ok() && all.world.whole());
  CHECK(table.free_lanes() == kLanes && table.poisoned_lanes() == 0);
  CHECK(all.reserved > enough / 40 && all.parked > enough / 400);
  CHECK(all.moved > enough / 1'000 && all.scrubbed > enough / 4'000);
  std::printf(
      "%llu operations: %llu lanes, %llu parked, %llu moves, %llu scrubs\n",
      static_cast<unsigned long long>(all.done), static_cast<unsigned long long>(all.reserved),
      static_cast<unsigned long long>(all.parked), static_cast<unsigned long long>(all.moved),
      static_cast<unsigned long long>(all.scrubbed));
}
