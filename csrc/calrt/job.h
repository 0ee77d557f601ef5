// SPDX-License-Identifier: Apache-2.0
// A submitted graph run. The job owns its bindings until a terminal state.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "calrt/device.h"
#include "calrt/model.h"

namespace calrt {

enum class JobState : int32_t {
  CREATED = 0,
  QUEUED = CALD_JOB_QUEUED,
  RUNNING = CALD_JOB_RUNNING,
  DONE = CALD_JOB_DONE,
  FAILED = CALD_JOB_FAILED,
  CANCELLED = CALD_JOB_CANCELLED,
  LOST = 6,  // no answer by its deadline; its buffers stay quarantined until the driver answers
};
const char* job_state_name(JobState state);

// Told once when a job ends, on a driver thread or inside submit. Must not block or call back
// into the runtime. Must outlive the jobs it was given to.
class CompletionSink {
 public:
  virtual void completed(uint64_t job_seq, JobState state, int32_t status) noexcept = 0;

 protected:
  ~CompletionSink() = default;
};

class Job : public std::enable_shared_from_this<Job> {
 public:
  // Submits `bindings` (already filled) on the session. job_seq is unique in the process and
  // rises. deadline_ns: absolute; the job is lost if it has not ended by then.
  // QUEUE_FULL at once when the session's queue is full; the bindings come back to the caller then.
  static Result<std::shared_ptr<Job>> submit(const std::shared_ptr<Session>& session,
                                             std::shared_ptr<Model> model,
                                             std::shared_ptr<BindingSet> bindings,
                                             uint64_t deadline_ns, CompletionSink* sink = nullptr);
  static uint64_t next_job_seq();
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  uint64_t job_seq() const { return job_seq_; }
  JobState state() const { return state_.load(std::memory_order_acquire); }
  bool terminal() const { return state() >= JobState::DONE; }
  const std::shared_ptr<BindingSet>& bindings() const { return bindings_; }
  const std::shared_ptr<Model>& model() const { return model_; }

  // Waits until terminal or `deadline_ns`. WAIT_TIMEOUT changes nothing. After a terminal state
  // returns OK for DONE and the job's own error otherwise, every time it is asked.
  Result<void> wait(uint64_t deadline_ns);
  // Best effort; the job still ends in exactly one terminal state.
  Result<void> cancel();
  Result<cald_timing> timing() const;

 private:
  Job() = default;
  static void on_complete(void* user, const cald_completion* completion);
  struct Control;  // outlives the Job while the driver may still answer
  std::shared_ptr<Session> session_;
  std::shared_ptr<Model> model_;
  std::shared_ptr<BindingSet> bindings_;
  std::shared_ptr<Control> control_;
  cald_job* handle_ = nullptr;
  uint64_t job_seq_ = 0;
  uint64_t deadline_ns_ = CALD_NO_DEADLINE;
  std::atomic<JobState> state_{JobState::CREATED};
};

}  // namespace calrt
