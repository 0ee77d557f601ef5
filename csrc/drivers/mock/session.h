// SPDX-License-Identifier: Apache-2.0
// The execution queue. One state machine, advance(), moves it from event to event in the device's
// time; on a clock of its own a worker thread calls it, else poll does.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "drivers/mock/work.h"

namespace calrt::mock {

// What graph runs and KV operations have in common.
struct Terms {
  uint64_t job_seq, deadline_ns;
  void (*on_complete)(void* user, const cald_completion* completion);
  void* user;
};

// What a session shares with its jobs, whose handles may outlive it.
struct Bell {
  std::mutex mutex;
  std::condition_variable rung;
  bool open = true;  // the session is there
};

struct Job {
  std::shared_ptr<Bell> bell;
  cald_session* session;  // while bell->open
  cald_device* device;
  Terms terms;
  std::unique_ptr<Work> work;

  // Guarded by bell->mutex:
  int32_t state = CALD_JOB_QUEUED;
  bool cancel_asked = false;
  Error error;  // of a failed or cancelled one
  uint64_t submitted_ns = 0, begun_ns = 0, due_ns = 0;
  Stages stages;  // as they last on this clock
};

}  // namespace calrt::mock

struct cald_job {
  std::shared_ptr<calrt::mock::Job> job;
};

struct cald_session {
 public:
  cald_session(cald_device* device, uint32_t index) : device_(device), index_(index) {}
  calrt::Result<void> start();
  // Waits for the running job, fails the queued ones.
  ~cald_session();

  // QUEUE_FULL when the preset's queue is full behind a running job.
  calrt::Result<std::shared_ptr<calrt::mock::Job>> submit(std::unique_ptr<calrt::mock::Work> work,
                                                          const calrt::mock::Terms& terms);
  // What has begun runs to its end, and is cancelled there.
  void cancel(const std::shared_ptr<calrt::mock::Job>& job);
  // To `now_ns`; when to come again, CALD_NO_DEADLINE if there is nothing to do.
  calrt::Result<uint64_t> poll(uint64_t now_ns);

  cald_device* device() const { return device_; }
  uint32_t index() const { return index_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using JobRef = std::shared_ptr<calrt::mock::Job>;

  uint64_t advance(Lock& lock, uint64_t now_ns);
  void begin_next(Lock& lock, uint64_t now_ns);
  void finish_running(Lock& lock);
  // Tells the completion, then lets waiters go; once for each job. Without the lock in between.
  void end(Lock& lock, const JobRef& job, int32_t terminal, calrt::Error why);
  void count(const calrt::mock::Job& job, int32_t terminal);
  void trace(const calrt::mock::Job& job);
  void worker_loop();
  bool threaded() const { return device_->settings.completion != CALD_COMPLETION_POLL; }
  uint64_t now_ns() const;

  cald_device* device_;
  const uint32_t index_;
  const std::shared_ptr<calrt::mock::Bell> bell_ = std::make_shared<calrt::mock::Bell>();
  // Guarded by the bell's mutex:
  std::deque<JobRef> waiting_;
  JobRef running_;
  uint64_t free_ns_ = 0;     // when the last job ended
  uint64_t virtual_ns_ = 0;  // where the last poll stood
  bool kicked_ = false, closing_ = false;

  std::thread worker_;
};

namespace calrt::mock {

// The entries of a job's handle.
void query(const Job& job, int32_t* state, cald_error* err);
Result<void> wait(Job& job, uint64_t deadline_ns);
Result<void> cancel(const std::shared_ptr<Job>& job);
cald_timing timing_of(const Job& job);

}  // namespace calrt::mock
