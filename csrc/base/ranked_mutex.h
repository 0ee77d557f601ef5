// SPDX-License-Identifier: Apache-2.0
// Mutexes that know their place in the one order in which calrt takes locks. Debug and sanitizer
// builds check it (CALRT_CHECK_LOCKS); elsewhere a RankedMutex is a std::mutex with a label.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#if !defined(CALRT_CHECK_LOCKS) && \
    (!defined(NDEBUG) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__))
#define CALRT_CHECK_LOCKS 1
#endif
#if !defined(CALRT_CHECK_LOCKS) && defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CALRT_CHECK_LOCKS 1
#endif
#endif

namespace calrt {

// Outermost first: a thread that holds a lock may take one of a higher rank only. Python's
// interpreter lock is above all of them. The driver may be called under ranks up to CALL.
enum class LockRank : uint8_t {
  DRIVERS = 10,  // the registry of driver libraries
  DEVICE = 20,
  SESSION = 30,
  CALL = 35,  // one call at a time on one handle below a session: a buffer, an ended job
  POOL = 40,
  JOB = 50,
  TABLE = 55,  // the table of jobs that are owed an answer
  LEAF = 60,   // nothing is taken under it
};

namespace detail {
// Keep the list of what the calling thread holds. note_lock() runs before the lock is taken, so
// that an order that would deadlock is reported before it does.
void note_lock(const void* mutex, LockRank rank, const char* name) noexcept;
void note_unlock(const void* mutex) noexcept;
}  // namespace detail

// Locks taken against the order, in this process; each of the first ones is an error line that
// names both locks.
uint64_t lock_order_violations() noexcept;

class RankedMutex {
 public:
  // `name`: for the report, a literal such as "session.submit".
  constexpr RankedMutex(LockRank rank, const char* name) noexcept : name_(name), rank_(rank) {}
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  void lock() {
    note_lock();
    mutex_.lock();
  }
  bool try_lock() {
    if (!mutex_.try_lock()) return false;
    note_lock();
    return true;
  }
  void unlock() {
    mutex_.unlock();
#ifdef CALRT_CHECK_LOCKS
    detail::note_unlock(this);
#endif
  }
  std::mutex& plain() { return mutex_; }

 private:
  void note_lock() {
#ifdef CALRT_CHECK_LOCKS
    detail::note_lock(this, rank_, name_);
#endif
  }
  std::mutex mutex_;
  [[maybe_unused]] const char* name_;
  [[maybe_unused]] LockRank rank_;
};

// A condition variable for it. A waiting thread counts as holding the lock: it can take no other.
class RankedCondition {
 public:
  void notify_one() noexcept { condition_.notify_one(); }
  void notify_all() noexcept { condition_.notify_all(); }

  void wait(std::unique_lock<RankedMutex>& lock) {
    on_plain(lock, [&](auto& plain) { condition_.wait(plain); });
  }
  template <class Predicate>
  void wait(std::unique_lock<RankedMutex>& lock, Predicate ready) {
    on_plain(lock, [&](auto& plain) { condition_.wait(plain, ready); });
  }
  template <class Time>
  std::cv_status wait_until(std::unique_lock<RankedMutex>& lock, const Time& time) {
    auto status = std::cv_status::no_timeout;
    on_plain(lock, [&](auto& plain) { status = condition_.wait_until(plain, time); });
    return status;
  }
  template <class Time, class Predicate>
  bool wait_until(std::unique_lock<RankedMutex>& lock, const Time& time, Predicate ready) {
    bool came = false;
    on_plain(lock, [&](auto& plain) { came = condition_.wait_until(plain, time, ready); });
    return came;
  }
  template <class Time, class Predicate>
  bool wait_for(std::unique_lock<RankedMutex>& lock, const Time& time, Predicate ready) {
    return wait_until(lock, std::chrono::steady_clock::now() + time, ready);
  }

 private:
  template <class Wait>
  void on_plain(std::unique_lock<RankedMutex>& lock, Wait&& wait) {
    std::unique_lock<std::mutex> plain(lock.mutex()->plain(), std::adopt_lock);
    wait(plain);
    (void)plain.release();
  }
  std::condition_variable condition_;
};

}  // namespace calrt
