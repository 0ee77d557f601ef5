// SPDX-License-Identifier: Apache-2.0
#include "calrt/session_pump.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "calrt/device.h"
#include "calrt/driver_host.h"
#include "calrt/own_threads.h"

namespace calrt {
namespace {

constexpr uint64_t kSliceNs = 2'000'000;         // how long an end out of order may go unseen
constexpr uint64_t kLostSliceNs = 50'000'000;    // the same if only lost jobs are left
constexpr uint64_t kLeastPollNs = 50'000;        // between polls, however often it is asked for
constexpr uint64_t kFailedPollNs = 100'000'000;  // until a poll that failed is tried again

auto time_of(uint64_t t_ns) {
  const uint64_t latest = monotonic_ns() + kHardTimeoutNs;  // far, and no overflow of the clock
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<int64_t>(std::min(t_ns, latest))));
}

}  // namespace

SessionPump::SessionPump(Kind kind, std::shared_ptr<SessionCore> core)
    : kind_(kind), core_(std::move(core)) {}

void SessionPump::watch(std::shared_ptr<JobControl> control) {
  const std::scoped_lock lock(mutex_);
  if (waits()) jobs_.push_back(std::move(control));
  kicked_ = true;
  running_ = running_ || start();
  changed_.notify_one();
}

void SessionPump::kick() {
  const std::scoped_lock lock(mutex_);
  kicked_ = true;
  changed_.notify_one();
}

void SessionPump::close() {
  const std::scoped_lock lock(mutex_);
  closing_ = true;
  changed_.notify_one();
}

bool SessionPump::start() {
  return own_threads::start(
      "a session", [self = shared_from_this()] { self->run(); },
      [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->kick();
      });
}

void SessionPump::run() {
  std::unique_lock lock(mutex_);
  while (!closing_ && !own_threads::stopping()) {
    if (waits())
      wait_turn(lock);
    else
      poll_turn(lock);
  }
  running_ = false;
}

void SessionPump::wait_turn(std::unique_lock<RankedMutex>& lock) {
  const auto news = [this] { return kicked_ || closing_; };
  if (jobs_.empty()) changed_.wait(lock, [&] { return news() || !jobs_.empty(); });
  kicked_ = false;
  if (jobs_.empty()) return;
  const std::vector<std::shared_ptr<JobControl>> jobs = jobs_;
  lock.unlock();
  const bool lost = std::all_of(jobs.begin(), jobs.end(),
                                [](const auto& job) { return job->state() == JobState::LOST; });
  const uint64_t until = monotonic_ns() + (lost ? kLostSliceNs : kSliceNs);
  std::vector<JobControl*> ended;
  for (const auto& job : jobs)
    if (job->wait_for_driver(job == jobs.front() && ended.empty() ? until : 0))
      ended.push_back(job.get());
  lock.lock();
  std::erase_if(jobs_, [&](const auto& job) {
    return std::find(ended.begin(), ended.end(), job.get()) != ended.end();
  });
  // A driver that answers before the time it was given must not make this thread spin.
  if (ended.empty()) changed_.wait_until(lock, time_of(until), news);
}

void SessionPump::poll_turn(std::unique_lock<RankedMutex>& lock) {
  const auto news = [this] { return kicked_ || closing_; };
  changed_.wait_until(lock, time_of(poll_at_), news);
  if (closing_) return;
  kicked_ = false;
  lock.unlock();
  uint64_t next = CALD_NO_DEADLINE;
  Result<void> polled;
  {
    const std::scoped_lock one_at_a_time(core_->serial);
    const cald_driver_table& table = core_->device->table();
    polled = core_->device->heeded(call_driver("poll", [&](cald_error* detail) {
      return table.poll(core_->handle.get().pointer, monotonic_ns(), &next, detail);
    }));
  }
  if (!polled.ok()) {
    if (poll_failures_++ == 0)
      log_line(LOG_ERROR, core_->device->table().name, "poll failed, and is tried again: %s",
               error_text(polled.error()).c_str());
    next = monotonic_ns() + kFailedPollNs;
  } else {
    poll_failures_ = 0;
  }
  lock.lock();
  poll_at_ = std::max(next, monotonic_ns() + kLeastPollNs);
}

}  // namespace calrt
