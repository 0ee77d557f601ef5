// SPDX-License-Identifier: Apache-2.0
// Runs single graphs of a model by hand: checks a call against the graph and the lanes, fills a
// binding set, submits. What scripts use; the server's way is StepRunner.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/result.h"
#include "calrt/model.h"
#include "engine/binding_pool.h"
#include "engine/lane_job.h"
#include "engine/reserve.h"

namespace calrt::engine {

// The inputs of one run, by role. A prefill has one lane, a decode one lane per token.
struct GraphCall {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<kv::LaneRef> lanes;
  std::optional<uint32_t> n_valid;                 // prefill only; unset = all tokens
  std::optional<std::vector<int32_t>> logit_rows;  // prefill only; unset = the last valid row
  uint64_t deadline_ns = 0;
};

// Thread-safe. Methods may block in the driver.
class GraphRunner {
 public:
  static Result<std::shared_ptr<GraphRunner>> make(std::shared_ptr<Model> model);
  ~GraphRunner();
  GraphRunner(const GraphRunner&) = delete;
  GraphRunner& operator=(const GraphRunner&) = delete;

  const std::shared_ptr<Model>& model() const { return model_; }
  const std::shared_ptr<ReserveQueue>& queue() const { return queue_; }

  // Runs graph `graph` on a binding set from the pool.
  Result<std::shared_ptr<LaneJob>> submit(uint32_t graph, const GraphCall& call);
  // Runs on the caller's own set, whose tokens (all rows) the caller has filled.
  Result<std::shared_ptr<LaneJob>> submit_filled(std::shared_ptr<BindingSet> set,
                                                 const std::vector<kv::LaneRef>& lanes,
                                                 std::optional<uint32_t> n_valid,
                                                 uint64_t deadline_ns);

  // Forgets the jobs that have ended and frees the lanes of lost ones that were answered since.
  void sweep();

  // Refuses new runs, cancels those in flight and waits for them until `deadline_ns`, then closes
  // the model. Idempotent. WAIT_TIMEOUT if a job did not end: the model is closed all the same.
  Result<void> close(uint64_t deadline_ns);

 private:
  GraphRunner() = default;

  std::shared_ptr<Model> model_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<ReserveQueue> queue_;
  std::vector<std::shared_ptr<BindingPool>> pools_;  // by graph index
  std::mutex mutex_;
  // Held until their end, so that dropping a handle neither waits nor cancels.
  std::vector<std::shared_ptr<LaneJob>> in_flight_;
};

}  // namespace calrt::engine
