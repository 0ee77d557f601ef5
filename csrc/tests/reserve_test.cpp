// SPDX-License-Identifier: Apache-2.0
// Waiting for a lane: in order of arrival, one outcome each, no busy wait.
#include "engine/reserve.h"

#include <time.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/check.h"

using namespace calrt;
using namespace calrt::engine;

namespace {

constexpr uint64_t kMs = 1'000'000;

uint64_t now_ns() {
  return uint64_t(std::chrono::steady_clock::now().time_since_epoch() /
                  std::chrono::nanoseconds(1));
}

kv::LaneRef take(ReserveQueue& queue) {
  return (*queue.reserve(1, now_ns() + 10'000 * kMs)).commit().value();
}

}  // namespace

TEST(what_cannot_fit_or_wait_is_refused_at_once) {
  ReserveQueue none(kv::LaneTable::make(1, 8, 1), 0);
  CHECK(none.reserve(9, UINT64_MAX).error().code == Status::OUT_OF_RANGE);
  (void)take(none);
  CHECK(none.reserve(1, UINT64_MAX).error().code == Status::QUEUE_FULL);
}

TEST(a_wait_ends_at_its_deadline_and_costs_next_to_nothing) {
  ReserveQueue queue(kv::LaneTable::make(1, 8, 1));
  (void)take(queue);
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return uint64_t(t.tv_sec) * 1000 * kMs + uint64_t(t.tv_nsec);
  };
  const uint64_t begin = now_ns(), used = cpu();
  auto got = queue.reserve(1, begin + 500 * kMs);
  CHECK(!got.ok() && got.error().code == Status::KV_TIMEOUT);
  CHECK(now_ns() - begin >= 500 * kMs);
  CHECK(cpu() - used < 100 * kMs);  // a busy wait would use all of it
  CHECK(queue.table()->free_lanes() == 0);
}

TEST(an_interrupt_ends_the_wait) {
  ReserveQueue queue(kv::LaneTable::make(1, 8, 1));
  const kv::LaneRef ref = take(queue);
  int asked = 0;
  auto got =
      queue.reserve(1, UINT64_MAX, [](void* n) { return ++*static_cast<int*>(n) == 3; }, &asked);
  CHECK(!got.ok() && got.error().code == Status::CANCELLED && asked == 3);
  CHECK(queue.table()->release(ref).ok());
  CHECK(queue.reserve(1, 0).ok());  // a free lane is given whatever the deadline
}

TEST(lanes_are_given_in_the_order_of_arrival) {
  ReserveQueue queue(kv::LaneTable::make(1, 8, 1));
  const kv::LaneRef first = take(queue);
  constexpr int kWaiters = 6;
  std::atomic<int> arrived{0};
  std::vector<int> order;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiters; ++i) {
    threads.emplace_back([&, i] {
      struct Ask {
        std::atomic<int>* arrived;
        bool first = true;
      } ask{&arrived};
      // The first question comes when the waiter stands in the queue: then the next may arrive.
      auto got = queue.reserve(
          1, UINT64_MAX,
          [](void* user) {
            auto* asked = static_cast<Ask*>(user);
            if (std::exchange(asked->first, false)) ++*asked->arrived;
            return false;
          },
          &ask);
      CHECK(got.ok());
      {
        std::lock_guard lock(mutex);
        order.push_back(i);
      }
      got->release();
      queue.lane_freed();
    });
    while (arrived.load() != i + 1) std::this_thread::yield();
  }
  CHECK(queue.table()->release(first).ok());
  queue.lane_freed();
  for (auto& thread : threads) thread.join();
  CHECK(order == (std::vector<int>{0, 1, 2, 3, 4, 5}));
  CHECK(queue.table()->free_lanes() == 1);
}

TEST(a_close_ends_every_wait_and_refuses_later_ones) {
  ReserveQueue queue(kv::LaneTable::make(1, 8, 1));
  (void)take(queue);
  constexpr int kWaiters = 3;
  std::atomic<int> arrived{0}, unloaded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiters; ++i) {
    threads.emplace_back([&] {
      auto got = queue.reserve(
          1, now_ns() + 10'000 * kMs,
          [](void* user) {
            ++*static_cast<std::atomic<int>*>(user);
            return false;
          },
          &arrived);
      if (!got.ok() && got.error().code == Status::MODEL_UNLOADED) ++unloaded;
    });
  }
  while (arrived.load() < kWaiters) std::this_thread::yield();
  queue.close();
  queue.close();
  for (auto& thread : threads) thread.join();
  CHECK(unloaded.load() == kWaiters);
  CHECK(queue.reserve(1, UINT64_MAX).error().code == Status::MODEL_UNLOADED);
  CHECK(queue.reserve(9, UINT64_MAX).error().code == Status::MODEL_UNLOADED);
}
