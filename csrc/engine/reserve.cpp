// SPDX-License-Identifier: Apache-2.0
#include "engine/reserve.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace calrt::engine {

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

// A lane may come free without lane_freed(): a reservation expires, a runner gives one back.
constexpr uint64_t kLookAgainNs = 100'000'000;

uint64_t now_ns() {
  return static_cast<uint64_t>(Clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

Error unloaded() {
  return fail(Status::MODEL_UNLOADED, "no lane to be had: the model is closed; load it again");
}

}  // namespace

ReserveQueue::ReserveQueue(std::shared_ptr<kv::LaneTable> table, uint32_t max_waiters)
    : table_(std::move(table)), max_waiters_(max_waiters) {}

Result<kv::Reservation> ReserveQueue::reserve(uint32_t tokens, uint64_t deadline_ns,
                                              bool (*interrupted)(void*), void* user) {
  std::unique_lock lock(mutex_);
  if (closed_) return unloaded();
  if (waiting_.empty()) {  // nobody is overtaken
    auto got = table_->try_reserve(tokens, now_ns());
    if (got.ok() || got.error().code != Status::KV_NO_CAPACITY) return got;
  } else if (auto fits = table_->can_allocate(tokens); !fits.ok()) {
    return std::move(fits).error();
  }
  if (waiting_.size() >= max_waiters_) {
    return fail(Status::QUEUE_FULL, "%zu callers already wait for a lane: at most %u may",
                waiting_.size(), max_waiters_);
  }
  const uint64_t begin = now_ns();
  const uint64_t ticket = next_ticket_++;
  waiting_.push_back(ticket);
  const auto leave = [&] {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), ticket));
    changed_.notify_all();  // the next one may be the first now
  };
  while (true) {
    const uint64_t now = now_ns();
    if (closed_) {
      leave();
      return unloaded();
    }
    if (waiting_.front() == ticket) {
      auto got = table_->try_reserve(tokens, now);
      if (got.ok() || got.error().code != Status::KV_NO_CAPACITY) {
        leave();
        return got;
      }
    }
    if (now >= deadline_ns) {
      leave();
      return fail(Status::KV_TIMEOUT,
                  "no lane of %u came free in %.3f s: wait longer, or release one", table_->lanes(),
                  static_cast<double>(now - begin) / 1e9);
    }
    if (interrupted != nullptr) {
      lock.unlock();  // it may take other locks (the GIL)
      const bool stop = interrupted(user);
      lock.lock();
      if (stop) {
        leave();
        return fail(Status::CANCELLED, "the wait for a lane was interrupted");
      }
      if (closed_) continue;  // while the lock was open: nobody will notify again
    }
    const uint64_t until = std::min(deadline_ns, now + kLookAgainNs);
    changed_.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(until)));
  }
}

void ReserveQueue::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

void ReserveQueue::lane_freed() {
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

}  // namespace calrt::engine
