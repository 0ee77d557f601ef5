// SPDX-License-Identifier: Apache-2.0
// One turn of the runner, single-threaded: reap -> sample -> stops and budgets -> submit. The
// runner's thread calls it with the real clock, tests with a virtual one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/step_core.h"
#include "engine/submitter.h"

namespace calrt::engine {

class TickLoop {
 public:
  // Ends that may wait to be reaped without an allocation: far more than there are jobs.
  static constexpr size_t kCompletionRoom = 64;

  // `clock`: ns since any fixed moment; the deadlines of requests and jobs are on it.
  // `recover`: tries the poisoned lanes that nobody owns, waiting for the device; DEVICE_LOST if
  // too few lanes of the model are left to go on with. `in_flight`: jobs submitted and not reaped,
  // at most; the host works for one while the device runs the other.
  TickLoop(StepCore core, Submitter* submitter, uint64_t job_timeout_ns,
           std::function<uint64_t()> clock, std::function<Result<void>()> recover,
           uint32_t in_flight = 1);

  StepCore& core() { return core_; }
  // A job ended; anything but a job in flight is counted and dropped.
  void completed(uint64_t job_seq) { completions_.push_back(job_seq); }
  // Reaps, expires, samples and submits what fits into `room` events.
  void step(size_t room);
  // When step() must be called again although nothing happened; UINT64_MAX: not needed.
  uint64_t wake_at() const;
  // Ends all requests; what is in flight is asked to stop.
  void cancel_all();
  bool idle() const { return !busy() && core_.active() == 0; }
  bool waits_for_room() const { return waits_for_room_; }
  RunnerStatistics statistics() const;

 private:
  struct Flight {
    JobPlan plan;
    uint64_t tag = 0, submitted_ns = 0;
    std::optional<uint64_t> job_seq;  // none: free, its plan is scratch
  };
  bool busy() const;
  Flight* find(const std::optional<uint64_t>& job_seq);
  size_t events_owed() const;
  void reap();
  Result<void> sample(const JobPlan& plan);
  void submit(size_t room);
  bool submit(Flight* flight);
  void refused(const Flight& flight, const Error& error);
  bool recovery_due();
  void recover();

  StepCore core_;
  Submitter* submitter_;
  const uint64_t job_timeout_ns_;
  const std::function<uint64_t()> clock_;
  const std::function<Result<void>()> recover_;
  std::vector<Flight> flights_;
  std::vector<RowResult> results_;
  std::vector<uint64_t> completions_;
  uint64_t ended_ns_ = 0, idle_since_ns_ = 0;
  uint64_t retry_ns_ = 0, backoff_ns_ = 0, refused_since_ns_ = 0;
  uint32_t refusals_ = 0;
  uint32_t poisoned_ = 0;  // lanes that were, when they were tried last
  uint64_t recover_ns_ = 0;
  bool waits_for_room_ = false;
  uint64_t stale_ = 0, device_ns_ = 0, sample_ns_ = 0, idle_ns_ = 0;
};

}  // namespace calrt::engine
