// SPDX-License-Identifier: Apache-2.0
// A plan becomes a job: fill the inputs, submit, hand back the logits. Used by one thread; only the
// completion comes from elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "calrt/job.h"
#include "calrt/model.h"
#include "engine/step_core.h"
#include "sampling/logits_view.h"

namespace calrt::engine {

class Submitter {
 public:
  virtual ~Submitter() = default;
  // A number above all earlier ones in the process, to mark lanes with.
  virtual uint64_t next_tag() = 0;
  // The job_seq whose completion will be told. After an error there is no such job.
  virtual Result<uint64_t> submit(const JobPlan& plan, uint64_t deadline_ns) = 0;
  // After the completion of job `job_seq`: OK, or why it failed. `lost`: the driver may still write
  // its lanes.
  struct End {
    Result<void> result;
    bool lost = false;
  };
  // Does not run out of memory.
  virtual End finish(const JobPlan& plan, uint64_t job_seq) = 0;
  // Logits of a row of the job that was finished last, valid until the next finish or submit.
  virtual Result<LogitsView> logits(const JobPlan& plan, uint32_t row) = 0;
  virtual void cancel() = 0;  // of all that is in flight, best effort; jobs still end
  // Lanes of lost jobs whose driver has answered since the last call; and whether more are owed.
  virtual std::vector<uint32_t> answered() = 0;
  virtual bool owed() const = 0;
};

class JobSubmitter final : public Submitter {
 public:
  // Preallocates `in_flight` sets of bindings for every graph. `sink` outlives this.
  static Result<std::unique_ptr<JobSubmitter>> make(std::shared_ptr<Model> model,
                                                    CompletionSink* sink, uint32_t in_flight = 1);
  // The graphs as the core needs them.
  std::vector<GraphShape> shapes() const;

  uint64_t next_tag() override;
  Result<uint64_t> submit(const JobPlan& plan, uint64_t deadline_ns) override;
  End finish(const JobPlan& plan, uint64_t job_seq) override;
  Result<LogitsView> logits(const JobPlan& plan, uint32_t row) override;
  void cancel() override;
  std::vector<uint32_t> answered() override;
  bool owed() const override { return !lost_.empty(); }
  // Runs token 0 alone at position 0 of `lane` and waits: the SHA-256 of its logits, which depend
  // on nothing else. Not while a job is in flight. UNSUPPORTED if no graph serves one lane alone.
  Result<std::array<uint8_t, 32>> probe(uint32_t lane, uint64_t deadline_ns);
  // Requests that job `job_seq` serves, until another one takes its place. Thread-safe.
  std::vector<uint64_t> serves(uint64_t job_seq) const;

 private:
  JobSubmitter() = default;
  struct Graph {
    std::vector<std::shared_ptr<BindingSet>> free;  // sets that no job uses
    const cald_io* logits = nullptr;
    bool row_per_input = false;  // logits of every row, not only of the last valid one
    uint64_t row_stride = 0;     // bytes; 0: rows are not dense and are unpacked
    uint32_t lane_inputs = 0;    // elements of the lanes input
    bool must_bind_rows = false;
  };
  struct Flight {
    std::shared_ptr<Job> job;
    std::shared_ptr<BindingSet> bindings;
    std::vector<uint32_t> lanes;  // that it writes
  };
  struct Serving {
    uint64_t job_seq = 0;
    std::vector<uint64_t> requests;
  };
  struct Lost {
    std::shared_ptr<BindingSet> bindings;
    std::vector<uint32_t> lanes;
  };
  void note(const JobPlan& plan);
  Result<void> add_graph(uint32_t index);
  Result<void> check_input(const cald_graph& graph, const cald_io& input) const;
  void put_back();
  Result<void> fill(const JobPlan& plan, const Graph& graph, BindingSet& bindings);
  Result<void> write(const BindingSet& bindings, int32_t role, size_t n);

  std::shared_ptr<Model> model_;
  std::shared_ptr<Session> session_;
  CompletionSink* sink_ = nullptr;
  uint32_t tokens_ = 0;  // columns of the logits that have a token
  std::vector<Graph> graphs_;
  std::vector<Flight> flights_;
  std::shared_ptr<BindingSet> finished_;  // of the job that was finished last
  uint32_t finished_graph_ = 0;
  uint64_t finished_seq_ = 0;
  std::vector<Lost> lost_;
  mutable RankedMutex serving_mutex_{LockRank::LEAF, "submitter"};  // a driver's thread may ask
  std::vector<Serving> serving_;                                    // one for each job in flight
  Serving* next_ = nullptr;                                         // of the job to be submitted
  std::vector<int32_t> ints_;                                       // scratch of fill()
  std::vector<float> unpacked_;                                     // the row asked for last
  std::vector<uint8_t> fetched_;                                    // logits the host cannot see
  uint64_t fetched_of_ = 0;                                         // their job_seq
};

}  // namespace calrt::engine
