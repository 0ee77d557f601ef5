// SPDX-License-Identifier: Apache-2.0
// A graph run together with the lanes it writes: their bookkeeping follows the job to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "calrt/job.h"
#include "engine/completion_fd.h"
#include "engine/reserve.h"
#include "kv/lanes.h"

namespace calrt::engine {

// Cells [length, length + cells) of a lane, as one job writes them.
struct LaneWrite {
  kv::LaneRef lane;
  uint32_t position = 0;  // must be the lane's length
  uint32_t cells = 1;
};

// Thread-safe. May be dropped at any time: the lanes' bookkeeping does not depend on it.
class LaneJob {
  struct Private {};

 public:
  explicit LaneJob(Private) {}
  // Books `writes` in the table, submits, and ends the booking when the job ends: the lane's length
  // grows if the job is done, the lane is poisoned if it failed, and stays as it was if the job was
  // cancelled. The lanes of a lost job stay busy until the driver answers: they are poisoned then.
  // Nothing is booked if this fails.
  static Result<std::shared_ptr<LaneJob>> submit(const std::shared_ptr<Session>& session,
                                                 std::shared_ptr<Model> model,
                                                 const std::shared_ptr<ReserveQueue>& queue,
                                                 std::shared_ptr<BindingSet> bindings,
                                                 std::vector<LaneWrite> writes, bool prefill,
                                                 uint32_t output_rows, uint64_t deadline_ns);

  const std::shared_ptr<Job>& job() const { return job_; }
  uint32_t output_rows() const { return output_rows_; }  // rows of logits that have a meaning
  uint64_t deadline_ns() const { return deadline_ns_; }  // as given; see kHardTimeoutNs
  // Posts `tag` to `fd` when the job has ended, at once if it has already.
  void notify(std::shared_ptr<CompletionFd> fd, uint64_t tag);

 private:
  class Sink;
  std::shared_ptr<Job> job_;
  std::shared_ptr<Sink> sink_;
  uint32_t output_rows_ = 0;
  uint64_t deadline_ns_ = 0;
};

}  // namespace calrt::engine
