// SPDX-License-Identifier: Apache-2.0
// StepRunner: keeps the device busy without Python. One native thread that repeats the plan:
//   reap completions -> sample ready lanes -> stop tokens and budgets -> fill inputs -> submit ->
//   publish
// One request's way through the files: plan.h (Start) -> check.cpp -> step_core.cpp (which lane
// does what next) -> submitter.cpp (fill, submit, reap) -> device -> sampler -> step_core.cpp ->
// ring.h.
#pragma once

#include <memory>
#include <vector>

#include "base/result.h"
#include "calrt/model.h"
#include "engine/plan.h"
#include "kv/lanes.h"

namespace calrt::engine {

struct RunnerOptions {
  uint32_t max_events = 8192;  // ring capacity; when full the runner waits for the reader
  uint32_t prefill_chunk = 0;  // largest chunk used, 0 = the largest of the model
  // Decode ticks between two prefill chunks while any lane decodes.
  uint32_t decode_ticks_per_chunk = 1;
  uint64_t job_timeout_ns = 60'000'000'000;
  // Jobs submitted and not reaped, 1 or 2, of different lanes. With 2 the host samples for one
  // while the device runs the other; whether that gains is for the device to show (calrt bench ab).
  uint32_t in_flight = 1;
};

class StepRunner {
 public:
  static Result<std::unique_ptr<StepRunner>> make(std::shared_ptr<Model> model,
                                                  std::shared_ptr<kv::LaneTable> lanes,
                                                  const RunnerOptions& options);
  ~StepRunner();  // close(): never waits longer than the job timeout

  // Adds a request to the plan. Thread-safe, never waits. The lane is the runner's from here on if
  // OK; on error it stays the caller's. INVALID_STATE after close().
  Result<void> start(Start start);
  // The request ends with CANCELLED at the next tick; unknown or ended requests are ignored.
  void cancel(uint64_t request);

  // Readable when events are pending (eventfd; a pipe elsewhere).
  int fd() const;
  // All pending events, oldest first. Never waits. One reader.
  std::vector<Event> drain();
  RunnerStatistics statistics() const;

  // Cancels what runs, waits for what is in flight until deadline_ns, joins the thread.
  Result<void> close(uint64_t deadline_ns);

 private:
  struct Impl;
  explicit StepRunner(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace calrt::engine
