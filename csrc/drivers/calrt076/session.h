// SPDX-License-Identifier: Apache-2.0
// The execution queue. One thread, the pump, gives runs to the SDK and takes them back; another,
// the waiter, sits in the SDK's Wait. What callers do never touches the SDK, so it never waits for
// it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "drivers/calrt076/job.h"
#include "drivers/calrt076/waiter.h"

struct cald_job {
  std::shared_ptr<calrt::calrt076::Job> job;
  cald_session* session;  // not touched once the job has ended
};

// Thread-safe.
struct cald_session {
 public:
  explicit cald_session(cald_device* device);
  calrt::Result<void> start();
  // Fails the queued jobs, waits for the running one, however long.
  ~cald_session();

  calrt::Result<std::shared_ptr<calrt::calrt076::Job>> submit(const cald_job_desc& desc);
  void cancel(const calrt::calrt076::Job& job);  // one that has not begun ends at once
  cald_device* device() const { return device_; }

 private:
  using JobPtr = std::shared_ptr<calrt::calrt076::Job>;
  using Lock = std::unique_lock<std::mutex>;

  // A job ends under the lock, as on_complete allows: the room it leaves is never there before its
  // end.
  void pump();
  void end_overdue();
  void begin_next(Lock& lock);
  void end_running(Lock& lock);
  calrt::Result<void> give(calrt::calrt076::Run& run);
  calrt::Result<void> take_back(calrt::calrt076::Job& job);

  cald_device* const device_;
  calrt::calrt076::Waiter waiter_;
  uint64_t run_ = 0;  // the SDK's number of what runs; the pump's alone
  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  std::deque<JobPtr> queue_;
  JobPtr running_;
  std::optional<calrt::Result<void>> ended_;  // of what runs: as the SDK has told
  bool stop_ = false;
  std::thread pump_;
};
