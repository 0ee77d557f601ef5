// SPDX-License-Identifier: Apache-2.0
// The order of locks is checked per thread; a wrong order is counted and named, and nothing more.
#define CALRT_CHECK_LOCKS 1  // in every build: the functions live in the library
#include "base/ranked_mutex.h"

#include <chrono>
#include <string>
#include <thread>

#include "base/log.h"
#include "tests/check.h"

using namespace calrt;

namespace {

RankedMutex device(LockRank::DEVICE, "device"), session(LockRank::SESSION, "session"),
    job(LockRank::JOB, "job"), other_job(LockRank::JOB, "other job");
std::string heard;

// How many violations `body` makes, on a thread of its own, so that it starts with nothing held.
template <class Body>
uint64_t violations(Body&& body) {
  heard.clear();
  set_log_sink([](const LogRecord& record) { heard += record.text; });
  const uint64_t before = lock_order_violations();
  std::thread(body).join();
  set_log_sink(nullptr);
  const uint64_t made = lock_order_violations() - before;
  testing::expected_lock_violations() += made;
  return made;
}

}  // namespace

TEST(outermost_first_is_right) {
  CHECK(violations([] {
          const std::scoped_lock a(device), b(session);
          const std::scoped_lock c(job);
        }) == 0);
  CHECK(heard.empty());
}

TEST(an_inversion_is_named) {
  CHECK(violations([] {
          const std::scoped_lock inner(job);
          const std::scoped_lock outer(session);
        }) == 1);
  CHECK(heard == "'session' (rank 30) was taken while 'job' (rank 50) is held");
}

TEST(two_of_one_rank_have_no_order) {
  CHECK(violations([] {
          const std::scoped_lock one(job);
          const std::scoped_lock two(other_job);
        }) == 1);
}

TEST(what_was_let_go_does_not_count) {
  CHECK(violations([] {
          std::unique_lock outer(device), inner(job);
          inner.unlock();
          const std::scoped_lock between(session);
          outer.unlock();  // not in the order of taking
          inner.lock();
        }) == 0);
}

TEST(a_lock_that_was_not_had_is_not_held) {
  CHECK(violations([] {
          std::unique_lock mine(job);
          std::thread([] { CHECK(!job.try_lock()); }).join();
          mine.unlock();
          CHECK(device.try_lock());
          device.unlock();
        }) == 0);
}

TEST(conditions_wait_and_wake) {
  RankedCondition changed;
  bool ready = false;
  CHECK(violations([&] {
          std::thread waker([&] {
            const std::scoped_lock lock(job);
            ready = true;
            changed.notify_all();
          });
          std::unique_lock lock(job);
          changed.wait(lock, [&] { return ready; });
          CHECK(lock.owns_lock());
          CHECK(!changed.wait_for(lock, std::chrono::milliseconds(1), [] { return false; }));
          lock.unlock();
          waker.join();
          const std::scoped_lock again(session);
        }) == 0);
}
