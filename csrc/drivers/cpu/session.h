// SPDX-License-Identifier: Apache-2.0
// The execution queue: one worker thread runs jobs in order. Calls are thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "drivers/cpu/pool.h"
#include "drivers/cpu/submit.h"

namespace calrt::cpu {

inline constexpr uint32_t kDepth = 1;  // jobs that run at once
inline constexpr uint32_t kQueue = 8;  // jobs that may wait behind

// Shared by the handle, the queue and the worker; whoever is last frees it.
struct JobState {
  cald_session* session = nullptr;  // not touched once terminal
  cald_model* model = nullptr;
  Work work;
  uint64_t job_seq = 0, deadline_ns = 0;
  void (*on_complete)(void* user, const cald_completion* completion) = nullptr;
  void* user = nullptr;
  std::atomic<bool> cancel{false};

  std::mutex mutex;  // guards what follows
  std::condition_variable ended;
  int32_t state = CALD_JOB_QUEUED;
  Error error;  // of a failed or cancelled one
  uint64_t submitted_ns = 0, started_ns = 0, ended_ns = 0;

  // Tells the completion, then lets waiters go. Once.
  void finish(int32_t terminal, Error why, uint64_t now_ns);
};

}  // namespace calrt::cpu

struct cald_job {
  std::shared_ptr<calrt::cpu::JobState> state;
};

struct cald_session {
 public:
  explicit cald_session(cald_device* device) : device_(device) {}
  calrt::Result<void> start();
  // Waits for the running job, fails the queued ones.
  ~cald_session();

  // QUEUE_FULL when kDepth + kQueue jobs have not ended.
  // Desc: cald_job_desc or cald_kv_desc.
  template <class Desc>
  calrt::Result<std::shared_ptr<calrt::cpu::JobState>> submit(const Desc& desc);
  void cancel(calrt::cpu::JobState& job);
  cald_device* device() const { return device_; }

 private:
  void worker_loop();
  void run(calrt::cpu::JobState& job);
  void end(calrt::cpu::JobState& job, int32_t terminal, calrt::Error why);

  cald_device* device_;
  calrt::cpu::Pool pool_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable work_;
  std::deque<std::shared_ptr<calrt::cpu::JobState>> queue_;
  uint32_t running_ = 0;
  bool stop_ = false;
  std::thread worker_;
};
