// SPDX-License-Identifier: Apache-2.0
// A submitted graph run or KV operation. The job owns its buffers until a terminal state.
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

// Told how a job ended, on a driver's or the runtime's thread or inside submit. Must not block or
// call back into the runtime.
class CompletionSink {
 public:
  // Exactly once, LOST too, also when the Job object is gone. The sink must live until this has
  // returned or wait() has seen the end; it is not touched afterwards, unless it awaits_answer().
  virtual void completed(uint64_t job_seq, JobState state, int32_t status) noexcept = 0;
  // Asked when a job is lost, before completed(). True: the sink lives on until it is told that
  // the driver has answered, which may never happen.
  virtual bool awaits_answer() const noexcept { return false; }
  // The driver has answered a lost job: what it held is free, what it wrote is undefined.
  virtual void answered(uint64_t /*job_seq*/) noexcept {}
  // Whom the job serves, for log lines about it; asked only when one is written.
  virtual std::vector<uint64_t> requests(uint64_t /*job_seq*/) noexcept { return {}; }

 protected:
  ~CompletionSink() = default;
};

// An operation on a lane's cells, as cald_kv_desc says (driver.h): one of CALD_KV_*, on cells
// [cell, cell + n) of `lane`, to `to_lane` and `to_cell` for copies, by `delta` for a rotation.
struct KvMove {
  uint32_t op = 0;
  uint32_t lane = 0, to_lane = 0;
  uint32_t cell = 0, to_cell = 0;
  uint32_t n = 0;
  int32_t delta = 0;
};
const char* kv_op_name(uint32_t op);  // "lane_copy"; "?" for what is not one operation

// Where KV_READ writes and KV_WRITE reads: n * bytes_per_cell of kv_info().
struct KvSpan {
  std::shared_ptr<Buffer> buffer;
  uint64_t offset = 0, bytes = 0;
};

class JobControl;
struct JobResources;
struct JobTerms;

// No job runs longer than this, whatever deadline it was given: then it is lost.
inline constexpr uint64_t kHardTimeoutNs = 600'000'000'000;

// Thread-safe. A Job may be dropped while it runs: what it holds lives until the driver has
// answered and is then given back on the runtime's own thread; no destructor waits. In a fork's
// child a parent's job is INVALID_STATE.
class Job {
 public:
  // Submits `bindings` (already filled) on the session. job_seq is unique in the process and
  // rises. deadline_ns: absolute, of the session's clock; the job is lost if it has not ended by
  // then. QUEUE_FULL at once when the session's queue is full; the bindings come back to the caller
  // then, as after every error. WAIT_TIMEOUT if the deadline has passed already. `job_seq`: one of
  // next_job_seq(), for a caller who has written it down before; 0 takes the next.
  static Result<std::shared_ptr<Job>> submit(const std::shared_ptr<Session>& session,
                                             std::shared_ptr<Model> model,
                                             std::shared_ptr<BindingSet> bindings,
                                             uint64_t deadline_ns, CompletionSink* sink = nullptr,
                                             uint64_t job_seq = 0);
  // The same for a KV operation; `span` for READ and WRITE only. UNSUPPORTED, naming the operation
  // and what the model can do; OUT_OF_RANGE and SHAPE_MISMATCH naming the field and the numbers.
  static Result<std::shared_ptr<Job>> submit_kv(const std::shared_ptr<Session>& session,
                                                std::shared_ptr<Model> model, const KvMove& move,
                                                KvSpan span, uint64_t deadline_ns,
                                                CompletionSink* sink = nullptr);
  static uint64_t next_job_seq();
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  uint64_t job_seq() const;
  JobState state() const;
  bool terminal() const;                                // asks no driver
  const std::shared_ptr<BindingSet>& bindings() const;  // null for a KV job
  const std::shared_ptr<Model>& model() const;

  // Waits until terminal or `deadline_ns` (absolute). WAIT_TIMEOUT changes nothing. After an end it
  // returns OK for DONE and the job's own error otherwise, every time it is asked. On a session of
  // virtual time waiting is what moves time: the device is polled from one time it asks for to the
  // next, up to `deadline_ns` or the job's own deadline.
  Result<void> wait(uint64_t deadline_ns);
  // Best effort: it still ends once. UNSUPPORTED if the driver, or the load, has no cancel.
  Result<void> cancel();
  Result<cald_timing> timing() const;  // INVALID_STATE before the end and when lost

 private:
  Job() = default;
  static Result<uint64_t> check_deadline(const Session& session, uint64_t deadline_ns);
  // `call`: the driver's entry, (cald_job** out, cald_error* detail).
  template <class Call>
  static Result<std::shared_ptr<Job>> start(const JobTerms& terms, JobResources resources,
                                            Call&& call);
  Result<void> check_process(const char* what) const;

  std::shared_ptr<JobControl> control_;
};

// A log line about a job, with its number and whom it serves; the job need not live any more.
void log_job(int32_t level, const char* component, uint64_t job_seq, const char* text);

// Completions that drivers sent for no running job (a second one, or an unknown tag): counted and
// dropped, since the process began.
uint64_t stray_completions();
// Answers of the driver that came after their job was lost, since the process began.
uint64_t late_completions();

}  // namespace calrt
