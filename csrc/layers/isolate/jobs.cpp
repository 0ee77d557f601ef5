// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/jobs.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace calrt::isolate {

Job* Jobs::add(Remote* remote, uint64_t job_seq, void (*on_complete)(void*, const cald_completion*),
               void* user, bool timed) {
  const std::scoped_lock lock(mutex_);
  const uint64_t token = ++last_token_;
  auto& job = jobs_[token];
  job = std::make_unique<Job>(Job{remote, token, job_seq, on_complete, user, timed});
  return job.get();
}

void Jobs::start(Job& job) {
  job.accepted = true;
  ++count_.accepted;
  if (job.ended) return;
  ++count_.running;
  count_.timed += job.timed;
}

void Jobs::stop(Job& job) {
  if (!job.accepted || job.ended) return;
  --count_.running;
  count_.timed -= job.timed;
}

Jobs::Count Jobs::count() {
  const std::scoped_lock lock(mutex_);
  return count_;
}

cald_completion Jobs::lost_end(const Job& job) {
  cald_completion end{};
  end.struct_size = sizeof end;
  end.state = CALD_JOB_FAILED;
  end.job_seq = job.job_seq;
  end.status = CALD_DEVICE_LOST;
  end.bytes_in = end.bytes_out = CALD_BYTES_UNKNOWN;
  return end;
}

void Jobs::tell(std::unique_lock<std::mutex>& lock, Job& job, const cald_completion& completion) {
  stop(job);
  job.ended = true;
  ++count_.ended;
  job.end = completion;
  const uint64_t token = job.token;
  const auto on_complete = job.on_complete;
  void* const user = job.user;
  lock.unlock();
  if (on_complete != nullptr) on_complete(user, &completion);
  lock.lock();
  // Who was told may have destroyed it.
  if (const auto known = jobs_.find(token); known != jobs_.end()) known->second->told = true;
  told_.notify_all();
}

void Jobs::accept(Job* job) {
  std::unique_lock lock(mutex_);
  start(*job);
  if (lost_ && !job->ended) tell(lock, *job, lost_end(*job));
}

bool Jobs::refuse(Job* job, bool lost) {
  const std::scoped_lock lock(mutex_);
  if (lost && job->ended) {
    start(*job);
    return true;
  }
  jobs_.erase(job->token);
  return false;
}

bool Jobs::end(uint64_t token, const cald_completion& completion) {
  std::unique_lock lock(mutex_);
  const auto known = jobs_.find(token);
  if (known == jobs_.end() || known->second->ended) return false;
  tell(lock, *known->second, completion);
  return true;
}

void Jobs::lose_all() {
  std::unique_lock lock(mutex_);
  lost_ = true;
  std::vector<uint64_t> tokens;
  for (const auto& [token, job] : jobs_)
    if (job->accepted && !job->ended) tokens.push_back(token);
  std::sort(tokens.begin(), tokens.end());  // in the order of submission
  for (const uint64_t token : tokens)
    if (const auto known = jobs_.find(token); known != jobs_.end() && !known->second->ended)
      tell(lock, *known->second, lost_end(*known->second));
}

bool Jobs::wait(const Job* job, uint64_t deadline_ns) {
  using Clock = std::chrono::steady_clock;        // CLOCK_MONOTONIC, as deadlines
  constexpr auto kSlice = std::chrono::hours(1);  // far, and no overflow of the clock
  std::unique_lock lock(mutex_);
  for (;;) {
    if (job->told) return true;
    const auto now = Clock::now();
    const auto now_ns = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count());
    if (now_ns >= deadline_ns) return false;
    const uint64_t left = deadline_ns - now_ns;
    const auto until = left > uint64_t{3'600'000'000'000}
                           ? now + kSlice
                           : now + std::chrono::nanoseconds(static_cast<int64_t>(left));
    told_.wait_until(lock, until);
  }
}

cald_completion Jobs::ending(const Job* job) {
  const std::scoped_lock lock(mutex_);
  return job->told ? job->end : cald_completion{};
}

void Jobs::forget(Job* job) {
  const std::scoped_lock lock(mutex_);
  stop(*job);
  jobs_.erase(job->token);
}

}  // namespace calrt::isolate
