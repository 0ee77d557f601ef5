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
  const auto none = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1), 0);
  CHECK(none->reserve(9, UINT64_MAX).error().code == Status::OUT_OF_RANGE);
  (void)take(*none);
  CHECK(none->reserve(1, UINT64_MAX).error().code == Status::QUEUE_FULL);
}

TEST(a_wait_ends_at_its_deadline_and_costs_next_to_nothing) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  (void)take(*queue);
  const auto cpu = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return uint64_t(t.tv_sec) * 1000 * kMs + uint64_t(t.tv_nsec);
  };
  const uint64_t begin = now_ns(), used = cpu();
  auto got = queue->reserve(1, begin + 500 * kMs);
  CHECK(!got.ok() && got.error().code == Status::KV_TIMEOUT);
  CHECK(now_ns() - begin >= 500 * kMs);
  CHECK(cpu() - used < 100 * kMs);  // a busy wait would use all of it
  CHECK(queue->table()->free_lanes() == 0);
}

TEST(an_interrupt_ends_the_wait) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  const kv::LaneRef ref = take(*queue);
  int asked = 0;
  auto got =
      queue->reserve(1, UINT64_MAX, {[](void* n) { return ++*static_cast<int*>(n) == 3; }, &asked});
  CHECK(!got.ok() && got.error().code == Status::CANCELLED && asked == 3);
  CHECK(queue->table()->release(ref).ok());
  CHECK(queue->reserve(1, 0).ok());  // a free lane is given whatever the deadline
}

TEST(lanes_are_given_in_the_order_of_arrival) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  const kv::LaneRef first = take(*queue);
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
      auto got = queue->reserve(1, UINT64_MAX,
                                {[](void* user) {
                                   auto* asked = static_cast<Ask*>(user);
                                   if (std::exchange(asked->first, false)) ++*asked->arrived;
                                   return false;
                                 },
                                 &ask});
      CHECK(got.ok());
      {
        std::lock_guard lock(mutex);
        order.push_back(i);
      }
      got->release();
      queue->lane_freed();
    });
    while (arrived.load() != i + 1) std::this_thread::yield();
  }
  CHECK(queue->table()->release(first).ok());
  queue->lane_freed();
  for (auto& thread : threads) thread.join();
  CHECK(order == (std::vector<int>{0, 1, 2, 3, 4, 5}));
  CHECK(queue->table()->free_lanes() == 1);
}

TEST(a_close_ends_every_wait_and_refuses_later_ones) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  (void)take(*queue);
  constexpr int kWaiters = 3;
  std::atomic<int> arrived{0}, unloaded{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kWaiters; ++i) {
    threads.emplace_back([&] {
      auto got = queue->reserve(1, now_ns() + 10'000 * kMs,
                                {[](void* user) {
                                   ++*static_cast<std::atomic<int>*>(user);
                                   return false;
                                 },
                                 &arrived});
      if (!got.ok() && got.error().code == Status::MODEL_UNLOADED) ++unloaded;
    });
  }
  while (arrived.load() < kWaiters) std::this_thread::yield();
  queue->close();
  queue->close();
  for (auto& thread : threads) thread.join();
  CHECK(unloaded.load() == kWaiters);
  CHECK(queue->reserve(1, UINT64_MAX).error().code == Status::MODEL_UNLOADED);
  CHECK(queue->reserve(9, UINT64_MAX).error().code == Status::MODEL_UNLOADED);
}

TEST(a_place_in_the_queue_has_one_outcome) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  const kv::LaneRef ref = take(*queue);
  auto first = *queue->enqueue(1, UINT64_MAX), second = *queue->enqueue(1, UINT64_MAX);
  CHECK(!first->poll() && first->take().error().code == Status::WAIT_TIMEOUT);
  CHECK(queue->waiters() == 2);
  CHECK(queue->table()->release(ref).ok());
  queue->lane_freed();
  CHECK(first->poll() && !second->poll());
  {
    auto lane = first->take();
    CHECK(lane.ok());
    CHECK(first->take().error().code == Status::INVALID_STATE);
    first->cancel();  // too late: nothing happens
    CHECK(queue->table()->free_lanes() == 0);
  }
  CHECK(second->poll() && second->take().ok());
}

TEST(a_lane_granted_to_one_who_has_gone_goes_to_the_next) {
  for (const bool cancelled : {true, false}) {
    const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
    const kv::LaneRef ref = take(*queue);
    auto first = *queue->enqueue(1, UINT64_MAX), second = *queue->enqueue(1, UINT64_MAX);
    CHECK(queue->table()->release(ref).ok());
    queue->lane_freed();  // first has it
    if (cancelled) {
      first->cancel();
      CHECK(first->take().error().code == Status::CANCELLED);
    } else {
      first.reset();
    }
    CHECK(second->take().ok());
  }
}

TEST(places_end_at_their_deadline_and_with_their_token) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  (void)take(*queue);
  auto late = *queue->enqueue(1, 1);
  CHECK(late->poll());
  const auto fd = *CompletionFd::make();
  late->notify(fd, 6);  // it has ended already
  CHECK(fd->drain() == std::vector<uint64_t>{6});
  CHECK(late->take().error().code == Status::KV_TIMEOUT);
  CancelToken token;
  auto one = *queue->enqueue(1, UINT64_MAX, &token), other = *queue->enqueue(1, UINT64_MAX);
  one->notify(fd, 7);
  other->notify(fd, 8);
  CHECK(fd->drain().empty() && !token.cancelled());
  token.cancel();
  CHECK(fd->drain() == std::vector<uint64_t>{7} && token.cancelled());
  CHECK(one->take().error().code == Status::CANCELLED && !other->poll());
  CHECK(queue->enqueue(1, UINT64_MAX, &token).error().code == Status::CANCELLED);
  CHECK(queue->reserve(1, UINT64_MAX, {}, &token).error().code == Status::CANCELLED);
  queue->close();
  CHECK(fd->drain() == std::vector<uint64_t>{8});
  CHECK(other->take().error().code == Status::MODEL_UNLOADED && queue->waiters() == 0);
}

TEST(one_thread_cancels_what_another_waits_for) {
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1));
  (void)take(*queue);
  CancelToken token;
  std::thread waits(
      [&] { CHECK(queue->reserve(1, UINT64_MAX, {}, &token).error().code == Status::CANCELLED); });
  while (queue->waiters() == 0) std::this_thread::yield();
  token.cancel();
  waits.join();
}

TEST(what_ends_the_model_ends_every_wait_with_its_reason) {
  for (const Status why : {Status::DEVICE_LOST, Status::INVALID_STATE}) {
    std::atomic<bool> alive{true};
    const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1), 64, nullptr,
                                                      [&]() -> Result<void> {
                                                        if (alive) return {};
                                                        return fail(why, "gone");
                                                      });
    const kv::LaneRef held = take(*queue);
    const auto fd = *CompletionFd::make();
    const auto first = *queue->enqueue(1, UINT64_MAX), second = *queue->enqueue(1, UINT64_MAX);
    first->notify(fd, 1);
    second->notify(fd, 2);
    // Told: all at once, also one whose lane is just given back.
    alive = false;
    (void)queue->table()->release(held);
    queue->lane_freed();
    CHECK((fd->drain() == std::vector<uint64_t>{1, 2}) && queue->waiters() == 0);
    for (const auto& waiter : {first, second}) CHECK(waiter->take().error().code == why);
    CHECK(queue->enqueue(1, UINT64_MAX).error().message == "gone");
    CHECK(queue->reserve(1, UINT64_MAX).error().code == why);
    const bool lost = why == Status::DEVICE_LOST;
    CHECK(queue->table()->offline_lanes() == (lost ? 1 : 0));
    CHECK(queue->table()->try_reserve(1, 0).ok() == !lost);
    queue->close();  // the first reason stays
    CHECK(queue->reserve(1, UINT64_MAX).error().code == why);
  }
}

TEST(a_wait_that_nobody_tells_sees_the_end_of_the_model) {
  std::atomic<bool> alive{true};
  const auto queue = std::make_shared<ReserveQueue>(kv::LaneTable::make(1, 8, 1), 64, nullptr,
                                                    [&]() -> Result<void> {
                                                      if (alive) return {};
                                                      return fail(Status::DEVICE_LOST, "gone");
                                                    });
  (void)take(*queue);
  std::thread waits(
      [&] { CHECK(queue->reserve(1, UINT64_MAX).error().code == Status::DEVICE_LOST); });
  while (queue->waiters() == 0) std::this_thread::yield();
  alive = false;
  waits.join();
}
