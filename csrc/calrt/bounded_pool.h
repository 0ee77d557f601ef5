// SPDX-License-Identifier: Apache-2.0
// A bounded pool of things that are lent out, come back by themselves and are used again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/ranked_mutex.h"
#include "base/result.h"

namespace calrt {

// What somebody does with a thing that the pool has lent.
enum class LoanState : uint8_t {
  LEASED,      // it is held
  IN_FLIGHT,   // a job that has not ended is bound to it
  QUARANTINED  // that job was lost, and the driver has not answered yet
};

struct PoolStats {
  uint32_t capacity = 0;
  uint32_t free = 0;  // can be had without waiting; capacity is the sum of this and the next three
  uint32_t leased = 0, in_flight = 0, quarantined = 0;
  uint32_t waiting = 0;
};

// Thread-safe. T tells its `LoanState loan_state() const` without taking a lock below POOL. Things
// are made when first needed, so that no more than `capacity` live; nothing is made or destroyed
// under a lock. A loan is a shared_ptr: the thing comes back when the last owner lets go, be it a
// job or a view, and goes to whoever has waited longest. Loans may outlive the pool.
template <class T>
class BoundedPool : public std::enable_shared_from_this<BoundedPool<T>> {
 public:
  using Make = std::function<Result<std::unique_ptr<T>>()>;
  struct Settings {
    uint32_t capacity = 1;  // lent at a time
    uint32_t keep = 1;      // kept for reuse while nobody waits
    std::string things;     // "buffers of 64 bytes", for the error that all are held
    std::string advice;     // what to do then
    Error closed;           // the answer once it is closed
    uint32_t most_waiting = 1024;
  };

  static std::shared_ptr<BoundedPool> make(Settings settings, Make make) {
    return std::shared_ptr<BoundedPool>(new BoundedPool(std::move(settings), std::move(make)));
  }
  ~BoundedPool() {
    for (T* thing : idle_) delete thing;
  }

  // A place in the queue of those who want one, from construction to destruction; nobody overtakes.
  // One thread uses it.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<BoundedPool> pool) : pool_(std::move(pool)) {
      pool_->enter(*this);
    }
    ~Turn() { pool_->leave(*this); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // The loan as soon as it is this turn's. BUFFER_POOL_EXHAUSTED, with the numbers, at `until_ns`
    // (CLOCK_MONOTONIC): the place is kept and may wait again. Once only after it gave a loan.
    Result<std::shared_ptr<T>> wait(uint64_t until_ns) { return pool_->wait(*this, until_ns); }

   private:
    friend class BoundedPool;
    enum class Is { WAITING, GRANTED, CLOSED, REFUSED, OVER };
    std::shared_ptr<BoundedPool> pool_;
    RankedCondition changed_;
    Is is_ = Is::WAITING;
    typename std::list<T*>::iterator place_;  // in lent_ once granted; null there: make one
  };

  // Waits until `deadline_ns` at most; 0 does not wait. BUFFER_POOL_EXHAUSTED then; QUEUE_FULL at
  // once when `most_waiting` wait already.
  Result<std::shared_ptr<T>> acquire(uint64_t deadline_ns) {
    return Turn(this->shared_from_this()).wait(deadline_ns);
  }

  PoolStats stats() const {
    const std::scoped_lock lock(mutex_);
    return count();
  }

  // Calls look(const T&) for everything lent, under the pool's lock.
  template <class Look>
  void each_lent(Look&& look) const {
    const std::scoped_lock lock(mutex_);
    for (const T* thing : lent_)
      if (thing != nullptr) look(*thing);
  }

  // Ends all waits, frees what nobody holds; what is lent is freed when it comes back. Idempotent.
  // `why` is the answer from now on, in place of the settings'.
  void close(const Error* why = nullptr) {
    std::list<T*> doomed;
    Make make;  // it may own the last of what it makes from
    {
      const std::scoped_lock lock(mutex_);
      if (!closed_ && why != nullptr) answer_ = *why;
      closed_ = true;
      doomed.swap(idle_);
      make.swap(make_);
      for (Turn* turn : queue_) {
        turn->is_ = Turn::Is::CLOSED;
        turn->changed_.notify_one();
      }
      queue_.clear();
    }
    for (T* thing : doomed) delete thing;
  }

 private:
  using Place = typename std::list<T*>::iterator;

  BoundedPool(Settings settings, Make make)
      : settings_(std::move(settings)), answer_(settings_.closed), make_(std::move(make)) {}

  void enter(Turn& turn) {
    const std::scoped_lock lock(mutex_);
    if (closed_) {
      turn.is_ = Turn::Is::CLOSED;
    } else if (lent_.size() < settings_.capacity) {  // then nobody waits: a place goes to who does
      if (idle_.empty())
        lent_.push_front(nullptr);
      else
        lent_.splice(lent_.begin(), idle_, idle_.begin());
      grant(turn, lent_.begin());
    } else if (queue_.size() < settings_.most_waiting) {
      queue_.push_back(&turn);
    } else {
      turn.is_ = Turn::Is::REFUSED;
    }
  }

  void grant(Turn& turn, Place place) {
    turn.place_ = place;
    turn.is_ = Turn::Is::GRANTED;
  }

  void leave(Turn& turn) {
    {
      const std::scoped_lock lock(mutex_);
      if (turn.is_ == Turn::Is::WAITING) queue_.remove(&turn);
    }
    if (turn.is_ == Turn::Is::GRANTED) give_back(turn.place_);  // it came after the last look
  }

  Result<std::shared_ptr<T>> wait(Turn& turn, uint64_t until_ns) {
    using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as the deadlines
    Make make;
    {
      std::unique_lock lock(mutex_);
      if (turn.is_ == Turn::Is::WAITING && until_ns != 0) {
        const auto ns = static_cast<int64_t>(std::min<uint64_t>(until_ns, INT64_MAX));
        turn.changed_.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(ns)),
                                 [&] { return turn.is_ != Turn::Is::WAITING; });
      }
      if (turn.is_ == Turn::Is::CLOSED) return answer_;
      if (turn.is_ == Turn::Is::REFUSED)
        return fail(Status::QUEUE_FULL, "%u already wait for %s: as many as may",
                    settings_.most_waiting, settings_.things.c_str());
      if (turn.is_ != Turn::Is::GRANTED) return exhausted();
      if (*turn.place_ == nullptr) make = make_;
      if (*turn.place_ == nullptr && closed_) return answer_;  // leave() gives it back
    }
    if (make) {
      auto made = make();
      if (!made.ok()) return std::move(made).error();
      const std::scoped_lock lock(mutex_);
      *turn.place_ = std::move(made)->release();
    }
    turn.is_ = Turn::Is::OVER;
    return std::shared_ptr<T>(
        *turn.place_, [pool = this->weak_from_this(), place = turn.place_](T* thing) noexcept {
          if (auto alive = pool.lock())
            alive->give_back(place);
          else
            delete thing;
        });
  }

  void give_back(Place place) noexcept {
    std::list<T*> doomed;
    {
      const std::scoped_lock lock(mutex_);
      if (!queue_.empty()) {  // none while closed
        Turn& next = *queue_.front();
        queue_.pop_front();
        grant(next, place);
        next.changed_.notify_one();
        return;
      }
      if (*place != nullptr && !closed_ && idle_.size() < settings_.keep)
        idle_.splice(idle_.begin(), lent_, place);
      else
        doomed.splice(doomed.begin(), lent_, place);
    }
    for (T* thing : doomed) delete thing;
  }

  PoolStats count() const {
    PoolStats stats;
    stats.capacity = settings_.capacity;
    stats.free = settings_.capacity - static_cast<uint32_t>(lent_.size());
    stats.waiting = static_cast<uint32_t>(queue_.size());
    for (const T* thing : lent_) {
      const LoanState state = thing != nullptr ? thing->loan_state() : LoanState::LEASED;
      ++(state == LoanState::QUARANTINED ? stats.quarantined
         : state == LoanState::IN_FLIGHT ? stats.in_flight
                                         : stats.leased);
    }
    return stats;
  }

  Error exhausted() const {
    const PoolStats now = count();
    return fail(Status::BUFFER_POOL_EXHAUSTED,
                "%u %s are still held (%u leased, %u in flight, %u quarantined), %u wait: %s",
                now.capacity - now.free, settings_.things.c_str(), now.leased, now.in_flight,
                now.quarantined, now.waiting, settings_.advice.c_str());
  }

  const Settings settings_;
  mutable RankedMutex mutex_{LockRank::POOL, "pool"};
  Error answer_;  // once closed
  Make make_;
  bool closed_ = false;
  std::list<T*> lent_;  // owned by the loans
  std::list<T*> idle_;  // owned by the pool
  std::list<Turn*> queue_;
};

}  // namespace calrt
