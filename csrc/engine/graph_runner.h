// SPDX-License-Identifier: Apache-2.0
// Runs single graphs of a model by hand: checks a call against the graph and the lanes, fills a
// binding set, submits. What scripts use; the server's way is StepRunner.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "calrt/model.h"
#include "engine/binding_pool.h"
#include "engine/kv_mover.h"
#include "engine/lane_job.h"
#include "engine/lane_scrub.h"
#include "engine/prefix_cache.h"
#include "engine/reserve.h"

namespace calrt::engine {

// The inputs of one run, by role. A prefill has one lane, a decode one lane per token. The memory
// is the caller's; it may change during the call: it is copied once, and what was copied is
// checked.
struct GraphCall {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;
  std::span<const kv::LaneRef> lanes;
  std::optional<uint32_t> n_valid;                     // prefill only; unset = all tokens
  std::optional<std::span<const int32_t>> logit_rows;  // prefill only; unset = the last valid row
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

  const std::shared_ptr<KvMover>& mover() const { return mover_; }
  const std::shared_ptr<LaneScrubber>& scrubber() const { return scrubber_; }
  // Made by the first call. How is said once, before the first lane is parked: a key every so many
  // tokens (unset: the smallest chunk), bytes on the host. INVALID_STATE later.
  Result<std::shared_ptr<PrefixCache>> prefixes(std::optional<uint32_t> every = std::nullopt,
                                                uint64_t host_bytes = 0);

  // Runs graph `graph` on a binding set from the pool.
  Result<std::shared_ptr<LaneJob>> submit(uint32_t graph, const GraphCall& call);
  // Runs on the caller's own set, whose tokens (all rows) the caller has filled.
  Result<std::shared_ptr<LaneJob>> submit_filled(std::shared_ptr<BindingSet> set,
                                                 std::span<const kv::LaneRef> lanes,
                                                 std::optional<uint32_t> n_valid,
                                                 uint64_t deadline_ns);

  // Forgets the jobs that have ended.
  void sweep();

  // Refuses new runs, cancels those in flight and waits for them until `deadline_ns`, then closes
  // the model. Idempotent. WAIT_TIMEOUT if a job did not end: the model is closed all the same.
  Result<void> close(uint64_t deadline_ns);

 private:
  GraphRunner() = default;
  // Fills the set, checks what was filled in, submits.
  Result<std::shared_ptr<LaneJob>> run(std::shared_ptr<BindingSet> set, const GraphCall& call);

  std::shared_ptr<Model> model_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<LaneScrubber> scrubber_;
  std::shared_ptr<ReserveQueue> queue_;
  std::shared_ptr<KvMover> mover_;
  RankedMutex prefixes_mutex_{LockRank::TABLE, "prefixes"};
  std::shared_ptr<PrefixCache> prefixes_;
  bool prefixes_said_ = false;                       // how
  std::vector<std::shared_ptr<BindingPool>> pools_;  // by graph index
  RankedMutex mutex_{LockRank::POOL, "graph runner"};
  // Those that had not ended when submit returned: held until their end, so that dropping a handle
  // neither waits nor cancels.
  std::vector<std::shared_ptr<LaneJob>> in_flight_;
};

}  // namespace calrt::engine
