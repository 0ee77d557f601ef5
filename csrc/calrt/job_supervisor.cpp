// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/log.h"
#include "calrt/driver_host.h"
#include "calrt/job_control.h"

namespace calrt {
namespace {

constexpr uint64_t kRetryNs = 20'000'000;  // between two looks at a job the driver is not done with
constexpr auto kExitPatience = std::chrono::seconds(2);

// The driver's own view: a completion may arrive a moment before the driver is through.
bool settled(const JobResources& held) {
  const JobHandle::Handle handle = held.handle.get();
  if (handle == nullptr || handle.inherited()) return true;
  try {
    return handle.table->job_wait(handle.pointer, 0, nullptr) == CALD_OK;
  } catch (...) {
    return true;  // it will not answer better the next time
  }
}

}  // namespace

JobSupervisor& JobSupervisor::get() {
  static auto* supervisor =
      new JobSupervisor;  // never freed: drivers may answer until the very end
  return *supervisor;
}

void JobSupervisor::add(const std::shared_ptr<JobControl>& control) {
  const std::scoped_lock lock(mutex_);
  jobs_.emplace(control->job_seq(), control);
}

void JobSupervisor::arm(const JobControl& control) {
  const std::scoped_lock lock(mutex_);
  if (jobs_.count(control.job_seq()) == 0) return;
  deadlines_.emplace(control.deadline_ns(), control.job_seq());
  wake_by(control.deadline_ns());
}

std::shared_ptr<JobControl> JobSupervisor::take(uint64_t job_seq) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(job_seq);
  if (found == jobs_.end()) return nullptr;
  std::shared_ptr<JobControl> control = std::move(found->second);
  jobs_.erase(found);
  deadlines_.erase({control->deadline_ns(), job_seq});
  return control;
}

std::shared_ptr<JobControl> JobSupervisor::find(uint64_t job_seq) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(job_seq);
  return found != jobs_.end() ? found->second : nullptr;
}

void JobSupervisor::dispose(JobResources resources) {
  if (!settled(resources)) dispose_later(std::move(resources));
}

void JobSupervisor::dispose_later(JobResources resources) {
  const std::scoped_lock lock(mutex_);
  garbage_.push_back(std::move(resources));
  wake_by(0);
}

// The thread sleeps on through deadlines of jobs that have ended: with one job after another it is
// woken once per deadline's length, not once per job.
void JobSupervisor::wake_by(uint64_t t_ns) {
  if (stopping_) return;
  if (!running_ || process_ != getpid()) {  // a fork's child has no thread yet
    process_ = getpid();
    running_ = false;
    wakes_at_ = UINT64_MAX;
    try {
      std::thread([this] { run(); }).detach();
    } catch (const std::exception& failed) {
      log_line(LOG_ERROR, "calrt", "the job supervisor cannot start: %s", failed.what());
      return;  // waits see their deadlines themselves; dropped jobs are kept until a start works
    }
    running_ = true;
    std::atexit([] { get().stop(); });
  }
  if (t_ns >= wakes_at_) return;
  wakes_at_ = t_ns;
  wake_.notify_one();
}

void JobSupervisor::run() {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const uint64_t now = monotonic_ns();
    std::vector<std::shared_ptr<JobControl>> lost;
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      if (const auto job = jobs_.find(deadlines_.begin()->second); job != jobs_.end())
        lost.push_back(job->second);  // stays known, to recognise the late answer
      deadlines_.erase(deadlines_.begin());
    }
    unsettled_.splice(unsettled_.end(), garbage_);
    lock.unlock();
    for (const auto& control : lost) control->lose();
    lost.clear();
    std::erase_if(unsettled_, settled);  // gives back what they held, children first
    lock.lock();
    if (!garbage_.empty()) continue;
    wakes_at_ = deadlines_.empty() ? UINT64_MAX : deadlines_.begin()->first;
    if (!unsettled_.empty()) wakes_at_ = std::min(wakes_at_, monotonic_ns() + kRetryNs);
    while (!stopping_ && monotonic_ns() < wakes_at_) {
      if (wakes_at_ == UINT64_MAX)
        wake_.wait(lock);
      else
        wake_.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(wakes_at_)));
    }
  }
  running_ = false;
  stopped_.notify_all();
}

// At exit: no new work for a thread that would run beside static destructors.
void JobSupervisor::stop() {
  if (process_ != getpid()) return;
  std::unique_lock lock(mutex_);
  stopping_ = true;
  wake_.notify_all();
  stopped_.wait_for(lock, kExitPatience, [this] { return !running_; });
}

}  // namespace calrt
