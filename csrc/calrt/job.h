// SPDX-License-Identifier: Apache-2.0
// A submitted graph run. The job owns its bindings until a terminal state.
#pragma once

#include <cstdint>
#include <memory>
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

// Told exactly once how a job ended (LOST too, also when the Job object is gone), on a driver's or
// the runtime's thread or inside submit. Must not block or call back into the runtime. Must live
// until it was told; it is not touched once completed() has returned or wait() has seen the end.
class CompletionSink {
 public:
  virtual void completed(uint64_t job_seq, JobState state, int32_t status) noexcept = 0;
  // Whom the job serves, for log lines about it; asked only when one is written, before the end.
  virtual std::vector<uint64_t> requests(uint64_t /*job_seq*/) noexcept { return {}; }

 protected:
  ~CompletionSink() = default;
};

class JobControl;

// No job runs longer than this, whatever deadline it was given: then it is lost.
inline constexpr uint64_t kHardTimeoutNs = 600'000'000'000;

// Thread-safe. A Job may be dropped while it runs: what it holds lives until the driver has
// answered and is then given back on the runtime's own thread; no destructor waits.
class Job : public std::enable_shared_from_this<Job> {
 public:
  // Submits `bindings` (already filled) on the session. job_seq is unique in the process and
  // rises. deadline_ns: absolute; the job is lost if it has not ended by then.
  // QUEUE_FULL at once when the session's queue is full; the bindings come back to the caller then,
  // as after every error. WAIT_TIMEOUT if the deadline has passed already.
  static Result<std::shared_ptr<Job>> submit(const std::shared_ptr<Session>& session,
                                             std::shared_ptr<Model> model,
                                             std::shared_ptr<BindingSet> bindings,
                                             uint64_t deadline_ns, CompletionSink* sink = nullptr);
  static uint64_t next_job_seq();
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  uint64_t job_seq() const { return job_seq_; }
  JobState state() const;
  bool terminal() const;  // asks no driver
  const std::shared_ptr<BindingSet>& bindings() const { return bindings_; }
  const std::shared_ptr<Model>& model() const { return model_; }

  // Waits until terminal or `deadline_ns` (absolute). WAIT_TIMEOUT changes nothing. After an end it
  // returns OK for DONE and the job's own error otherwise, every time it is asked.
  Result<void> wait(uint64_t deadline_ns);
  // Best effort; the job still ends in exactly one terminal state.
  Result<void> cancel();
  Result<cald_timing> timing() const;  // INVALID_STATE before the end and when lost

 private:
  Job() = default;
  std::shared_ptr<Model> model_;
  std::shared_ptr<BindingSet> bindings_;
  std::shared_ptr<JobControl> control_;
  uint64_t job_seq_ = 0;
};

// A log line about a job, with its number and whom it serves; the job need not live any more.
void log_job(int32_t level, const char* component, uint64_t job_seq, const char* text);

// Completions that drivers sent for no running job (a second one, or an unknown tag): counted and
// dropped, since the process began.
uint64_t stray_completions();
// Answers of the driver that came after their job was lost, since the process began.
uint64_t late_completions();

}  // namespace calrt
