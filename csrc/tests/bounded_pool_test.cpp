// SPDX-License-Identifier: Apache-2.0
// BoundedPool: nothing is lent twice, nobody overtakes, nothing is lost by who gives up or fails.
#include "calrt/bounded_pool.h"

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "calrt/driver_host.h"
#include "tests/check.h"
#include "tests/scripted_access.h"

using namespace calrt;

namespace {

struct Thing {
  static inline std::atomic<int> living{0}, most{0};
  std::atomic<int> holders{0};
  std::atomic<LoanState> state{LoanState::LEASED};
  Thing() {
    const int now = ++living;
    int seen = most.load();
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
  }
  ~Thing() { --living; }
  LoanState loan_state() const { return state.load(); }
};
using Pool = BoundedPool<Thing>;

Pool::Settings settings(uint32_t capacity, uint32_t keep) {
  Pool::Settings settings;
  settings.capacity = capacity;
  settings.keep = keep;
  settings.things = "things";
  settings.advice = "drop some";
  settings.closed = fail(Status::INVALID_STATE, "closed");
  return settings;
}

std::shared_ptr<Pool> make(uint32_t capacity, uint32_t keep) {
  return Pool::make(settings(capacity, keep), [] { return std::make_unique<Thing>(); });
}

uint64_t in(uint64_t ms) { return monotonic_ns() + ms * 1'000'000; }
constexpr uint64_t kLong = 60'000;  // a hang, not a wait

}  // namespace

TEST(all_are_used_again_and_no_more_than_the_capacity_live) {
  Thing::most = 0;
  auto pool = make(3, 2);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::shared_ptr<Thing>> held;
    for (int i = 0; i < 3; ++i) held.push_back(*pool->acquire(0));
    CHECK(Thing::living == 3 && pool->stats().free == 0);
    CHECK(pool->acquire(0).error().code == Status::BUFFER_POOL_EXHAUSTED);
    held.clear();
    CHECK(Thing::living == 2 && pool->stats().free == 3);  // one more than is kept
  }
  CHECK(Thing::most == 3);
  pool.reset();
  CHECK(Thing::living == 0);
}

TEST(the_error_names_the_numbers) {
  auto pool = make(3, 3);
  auto a = *pool->acquire(0), b = *pool->acquire(0), c = *pool->acquire(0);
  b->state = LoanState::IN_FLIGHT;
  c->state = LoanState::QUARANTINED;
  CHECK(pool->acquire(0).error().message ==
        "3 things are still held (1 leased, 1 in flight, 1 quarantined), 1 wait: drop some");
  const PoolStats now = pool->stats();
  CHECK(now.leased == 1 && now.in_flight == 1 && now.quarantined == 1 && now.free == 0);
}

TEST(waiters_are_served_in_the_order_they_came) {
  auto pool = make(1, 1);
  auto held = *pool->acquire(0);
  constexpr int kWaiters = 20;
  std::atomic<int> served{0};
  std::vector<std::thread> threads;
  std::vector<int> order(kWaiters, -1);
  for (int i = 0; i < kWaiters; ++i) {
    threads.emplace_back([&, i] {
      auto mine = pool->acquire(in(kLong));
      CHECK(mine.ok());
      order[i] = served++;
    });
    CHECK(eventually([&] { return pool->stats().waiting == static_cast<uint32_t>(i) + 1; }));
  }
  held.reset();
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kWaiters; ++i) CHECK(order[i] == i);
}

TEST(nobody_overtakes_a_waiter) {
  auto pool = make(1, 1);
  auto held = *pool->acquire(0);
  Pool::Turn first(pool);
  CHECK(!first.wait(0).ok() && pool->stats().waiting == 1);
  held.reset();                   // granted to the first, who has not looked yet
  CHECK(!pool->acquire(0).ok());  // so it is not there for another
  CHECK(pool->stats().free == 0);
  auto mine = first.wait(0);
  CHECK(mine.ok());
}

TEST(who_gives_up_loses_nothing_for_the_others) {
  auto pool = make(1, 1);
  auto held = *pool->acquire(0);
  {
    Pool::Turn quitter(pool), waiting(pool), other(pool);
    CHECK(pool->stats().waiting == 3);
  }
  CHECK(pool->stats().waiting == 0);
  {
    Pool::Turn granted(pool);
    held.reset();
  }  // granted and never taken
  CHECK(pool->stats().free == 1 && pool->acquire(0).ok());
  held = *pool->acquire(0);
  Pool::Turn second(pool);
  {
    Pool::Turn third(pool);
    held.reset();
  }
  CHECK(second.wait(0).ok());
}

TEST(deadlines_are_kept_one_by_one) {
  auto pool = make(2, 2);
  auto a = *pool->acquire(0), b = *pool->acquire(0);
  std::atomic<int> timed_out{0}, served{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 12; ++i)
    threads.emplace_back([&, i] {
      auto mine = pool->acquire(i % 2 == 0 ? in(20) : in(kLong));
      if (mine.ok()) {
        ++served;
      } else {
        CHECK(mine.error().code == Status::BUFFER_POOL_EXHAUSTED);
        ++timed_out;
      }
    });
  CHECK(eventually([&] { return timed_out == 6 && pool->stats().waiting == 6; }));
  a.reset();
  b.reset();
  for (std::thread& thread : threads) thread.join();
  CHECK(timed_out == 6 && served == 6 && pool->stats().free == 2);
}

TEST(making_runs_without_the_lock_and_its_failures_pass_the_place_on) {
  std::atomic<int> failures{3};
  std::weak_ptr<Pool> seen;
  auto pool = Pool::make(settings(1, 1), [&]() -> Result<std::unique_ptr<Thing>> {
    CHECK(seen.lock()->stats().leased == 1);  // would hang under the lock
    if (failures-- > 0) return fail(Status::OUT_OF_DEVICE_MEMORY, "no");
    return std::make_unique<Thing>();
  });
  seen = pool;
  Pool::Turn first(pool), second(pool), third(pool);
  CHECK(first.wait(0).error().code == Status::OUT_OF_DEVICE_MEMORY);
  CHECK(!second.wait(0).ok() && second.wait(0).error().code == Status::BUFFER_POOL_EXHAUSTED);
  CHECK(first.wait(0).error().code == Status::OUT_OF_DEVICE_MEMORY);  // it may try again
  CHECK(pool->acquire(0).error().code == Status::BUFFER_POOL_EXHAUSTED);
  CHECK(first.wait(0).error().code == Status::OUT_OF_DEVICE_MEMORY);
  CHECK(first.wait(0).ok());  // given back at once
  CHECK(second.wait(0).ok());
  CHECK(third.wait(0).ok());
  CHECK(pool->stats().free == 1);
}

TEST(close_wakes_all_and_loans_outlive_the_pool) {
  auto pool = make(1, 1);
  auto held = *pool->acquire(0);
  std::vector<std::thread> threads;
  for (int i = 0; i < 5; ++i)
    threads.emplace_back(
        [&] { CHECK(pool->acquire(in(kLong)).error().code == Status::INVALID_STATE); });
  CHECK(eventually([&] { return pool->stats().waiting == 5; }));
  pool->close();
  pool->close();
  for (std::thread& thread : threads) thread.join();
  CHECK(pool->acquire(in(kLong)).error().code == Status::INVALID_STATE);
  CHECK(Thing::living == 1);
  pool.reset();
  CHECK(Thing::living == 1 && held->holders == 0);
  held.reset();
  CHECK(Thing::living == 0);
}

TEST(what_comes_back_after_the_close_is_not_kept) {
  auto pool = make(2, 2);
  auto idle = *pool->acquire(0), held = *pool->acquire(0);
  idle.reset();
  CHECK(Thing::living == 2);
  pool->close();
  CHECK(Thing::living == 1);
  held.reset();
  CHECK(Thing::living == 0 && pool->stats().free == 2);
}

TEST(the_queue_has_a_bound) {
  auto bounded = settings(1, 1);
  bounded.most_waiting = 2;
  auto pool = Pool::make(bounded, [] { return std::make_unique<Thing>(); });
  auto held = *pool->acquire(0);
  Pool::Turn a(pool), b(pool);
  CHECK(pool->acquire(in(kLong)).error().code == Status::QUEUE_FULL);  // at once
  CHECK(pool->stats().waiting == 2);
}

// Threads that take, hold, share, give up and time out in a seeded disorder: each thing has one
// holder at a time, and at the end all are back.
TEST(disorder) {
  for (const uint32_t capacity : {1u, 2u, 5u}) {
    Thing::most = 0;
    auto pool = make(capacity, capacity);
    std::atomic<int> twice{0}, taken{0}, given_up{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 8; ++t)
      threads.emplace_back([&, t] {
        std::mt19937 random(t * 7919 + capacity);
        for (int i = 0; i < 2000; ++i) {
          Pool::Turn turn(pool);
          if (random() % 4 == 0) {
            ++given_up;
            continue;
          }
          auto loan = turn.wait(random() % 8 == 0 ? monotonic_ns() + random() % 50'000 : in(kLong));
          if (!loan.ok()) {
            CHECK(loan.error().code == Status::BUFFER_POOL_EXHAUSTED);
            ++given_up;
            continue;
          }
          ++taken;
          if ((*loan)->holders.fetch_add(1) != 0) ++twice;
          std::shared_ptr<Thing> shared = *loan;  // as a view would
          if (random() % 4 == 0) std::this_thread::yield();
          shared->holders.fetch_sub(1);
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK(twice == 0 && taken + given_up == 8 * 2000);
    CHECK(Thing::most <= static_cast<int>(capacity));
    const PoolStats now = pool->stats();
    CHECK(now.free == capacity && now.waiting == 0);
    std::vector<std::shared_ptr<Thing>> all;
    for (uint32_t i = 0; i < capacity; ++i) all.push_back(*pool->acquire(0));
    CHECK(!pool->acquire(0).ok());
  }
  CHECK(Thing::living == 0);
}
