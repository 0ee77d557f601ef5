// SPDX-License-Identifier: Apache-2.0
// Several jobs in a session's queue at once, each with buffers of its own. One thread.
#pragma once

#include <deque>
#include <vector>

#include "conformance/player.h"

namespace calrt::conformance {

class QueueFill {
 public:
  // Jobs of the model's slowest graph, so that those behind wait.
  explicit QueueFill(Kit& kit);
  QueueFill(const QueueFill&) = delete;
  QueueFill& operator=(const QueueFill&) = delete;

  // Makes room and inputs for so many.
  void prepare(size_t count);
  // One more; its status. `jobs()` holds those that were accepted.
  cald_status add(const JobAsk& ask);
  void add_all(uint32_t count);  // with job_seq 1, 2, ...
  std::vector<Job>& jobs() { return jobs_; }
  GraphCall& call(size_t of_job) { return *calls_[of_job]; }
  Told* refused() const { return refused_; }  // of the last that was refused
  void wait_all();
  bool any_ended();

 private:
  Kit* kit_;
  Player player_;
  uint32_t graph_;
  std::vector<std::unique_ptr<GraphCall>> calls_;
  std::vector<Job> jobs_;  // go first: then nothing writes to the calls' buffers any more
  Told* refused_ = nullptr;
};

}  // namespace calrt::conformance
