// SPDX-License-Identifier: Apache-2.0
// A job: what was asked, where it stands, and its one end.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "drivers/calrt076/run.h"

namespace calrt::calrt076 {

// Shared by the handle and the session; whoever is last frees it. Thread-safe.
class Job {
 public:
  Job(cald_device* device, Run run, const cald_job_desc& desc);

  void begin();
  void computed();  // the SDK is done, the output is about to be copied
  // Tells the completion, then lets waiters go. Once. `why`: null = DONE.
  void finish(int32_t state, const Error* why);

  Result<void> query(int32_t* state);
  Result<void> wait(uint64_t deadline_ns);
  void describe(cald_timing* out);

  Run run;
  const uint64_t job_seq, deadline_ns;

 private:
  cald_device* const device_;
  void (*const on_complete_)(void* user, const cald_completion* completion);
  void* const user_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  int32_t state_ = CALD_JOB_QUEUED;
  Error error_;  // of one that failed or was cancelled
  uint64_t submitted_ns_, begun_ns_ = 0, computed_ns_ = 0, ended_ns_ = 0;
};

}  // namespace calrt::calrt076
