// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <vector>

#include "calrt/driver_host.h"
#include "calrt/job_control.h"
#include "calrt/own_threads.h"

namespace calrt {
namespace {

constexpr uint64_t kRetryNs = 20'000'000;  // between two looks at what is not ready yet

// The driver's own view: a completion may arrive a moment before the driver is through.
bool settled(const JobResources& held) {
  const JobHandle::Handle handle = held.handle.get();
  if (handle == nullptr || handle.inherited()) return true;
  try {
    // The job has been answered: of a driver that only has errors left no better word will come.
    return handle.table->job_wait(handle.pointer, 0, nullptr) != CALD_WAIT_TIMEOUT;
  } catch (...) {
    return true;
  }
}

}  // namespace

JobSupervisor& JobSupervisor::get() { return per_process<JobSupervisor>(); }

void JobSupervisor::add(std::shared_ptr<JobControl> control) {
  const bool real_time = control->real_time();
  const uint64_t deadline_ns = control->deadline_ns();
  const std::scoped_lock lock(mutex_);
  jobs_.add(std::move(control));
  if (real_time) wake_by(deadline_ns);
}

std::shared_ptr<JobControl> JobSupervisor::take(uint64_t job_seq) {
  const std::scoped_lock lock(mutex_);
  return jobs_.take(job_seq);
}

std::shared_ptr<JobControl> JobSupervisor::find(uint64_t job_seq) {
  const std::scoped_lock lock(mutex_);
  return jobs_.find(job_seq);
}

void JobSupervisor::lose_overdue(const Session& session) {
  std::vector<std::shared_ptr<JobControl>> lost;
  {
    const uint64_t now = session.now_ns();
    const std::scoped_lock lock(mutex_);
    jobs_.each([&](const std::shared_ptr<JobControl>& job) {
      if (!job->real_time() && job->of(session) && job->deadline_ns() <= now &&
          job->state() != JobState::CREATED)
        lost.push_back(job);
    });
  }
  for (const auto& job : lost) job->lose();
}

void JobSupervisor::dispose(JobResources resources) {
  if (!settled(resources)) dispose_later(std::move(resources));
}

void JobSupervisor::dispose_later(JobResources resources) {
  const std::scoped_lock lock(mutex_);
  garbage_.push_back(std::move(resources));
  wake_by(0);
}

void JobSupervisor::wake_by(uint64_t t_ns) {
  if (!running_) {  // without a thread, waits see their deadlines themselves
    running_ = own_threads::start(
        "job deadlines", [this] { run(); },
        [this] {
          const std::scoped_lock lock(mutex_);
          wakes_at_ = 0;
          wake_.notify_one();
        });
    wakes_at_ = UINT64_MAX;
  }
  if (t_ns >= wakes_at_) return;
  wakes_at_ = t_ns;
  wake_.notify_one();
}

void JobSupervisor::run() {
  using Clock = std::chrono::steady_clock;
  std::vector<std::shared_ptr<JobControl>> lost;
  std::unique_lock lock(mutex_);
  while (!own_threads::stopping()) {
    const uint64_t now = monotonic_ns();
    wakes_at_ = UINT64_MAX;
    jobs_.each([&](const std::shared_ptr<JobControl>& job) {
      const JobState state = job->state();
      if (!job->real_time() || state >= JobState::DONE) return;  // lost ones stay, to be recognised
      if (job->deadline_ns() > now)
        wakes_at_ = std::min(wakes_at_, job->deadline_ns());
      else if (state == JobState::CREATED)
        wakes_at_ = std::min(wakes_at_, now + kRetryNs);
      else
        lost.push_back(job);
    });
    unsettled_.splice(unsettled_.end(), garbage_);
    lock.unlock();
    for (const auto& job : lost) job->lose();
    lost.clear();
    std::erase_if(unsettled_, settled);  // gives back what they held, children first
    lock.lock();
    if (!garbage_.empty()) continue;
    if (!unsettled_.empty()) wakes_at_ = std::min(wakes_at_, monotonic_ns() + kRetryNs);
    while (monotonic_ns() < wakes_at_ && !own_threads::stopping()) {
      if (wakes_at_ == UINT64_MAX)
        wake_.wait(lock);
      else
        wake_.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(wakes_at_)));
    }
  }
  running_ = false;
}

}  // namespace calrt
