// SPDX-License-Identifier: Apache-2.0
// The tick machine without I/O: which lane does what next. No thread, clock, session or device;
// time is an argument, results of jobs are told, events are collected. Not thread-safe.
//
// Order: while any lane decodes, at most one prefill chunk between two decode ticks; prompts in the
// order of their start; more ready lanes than the largest decode profile take turns, the one served
// longest ago first. A prompt that no prefill graph can take is fed through decode ticks.
// More than one job may be in flight, of different lanes. Beside a tick only one that fills the
// largest profile is begun, as lanes that decode apart would share no tick any more; and nothing
// beside one that writes lanes nobody asked for.
//
// What ends a job or a request allocates nothing: a host that runs out of memory owes no event.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"
#include "engine/lane_table.h"
#include "engine/plan.h"
#include "kv/lanes.h"

namespace calrt::engine {

// What the machine needs to know of a graph.
struct GraphShape {
  uint32_t index = 0;  // of the model's graphs
  bool prefill = false;
  uint32_t size = 0;  // B or T
  int32_t lane_map = 0;
  bool n_valid = false;  // a chunk may be padded
  // The lane can be a row of it.
  bool serves(uint32_t lane) const;
};

struct PlanRow {
  int32_t lane = -1;  // -1: padding
  int32_t token = 0;
  int32_t position = 0;
  Record* record = nullptr;  // null: padding
  bool sample = false;       // its logits give a token
};

// One job. Rows of a decode graph are lanes; rows of a prefill graph are one lane's next tokens.
struct JobPlan {
  GraphShape graph;
  std::vector<PlanRow> rows;  // graph.size of them
  uint32_t n_valid = 0;       // rows that are not padding
};

struct RowResult {
  Sampled sampled;
  std::vector<TokenProb> top;
};

struct StepOptions {
  uint32_t prefill_chunk = 0;  // largest chunk used, 0 = any
  uint32_t decode_ticks_per_chunk = 1;
};

class StepCore {
 public:
  // `graphs` ascending by size within each kind.
  StepCore(std::vector<GraphShape> graphs, std::shared_ptr<kv::LaneTable> lanes,
           const StepOptions& options);

  void start(std::unique_ptr<Record> record);
  void cancel(uint64_t request, uint64_t now_ns);
  void cancel_all(uint64_t now_ns);
  // Ends what has passed its deadline.
  void expire(uint64_t now_ns);
  uint64_t next_deadline() const;

  // Decides the next job. False: nothing to do (or, with blocked(), nothing that may be done now).
  bool next(JobPlan* plan);
  bool blocked() const { return blocked_; }
  // Events that the end of such a job may produce at most.
  size_t events_of(const JobPlan& plan) const;

  // Around the submit: the lanes are taken by job `tag` first; then the job was accepted, was
  // refused for now (nothing happened), or was refused for good (its requests fail).
  Result<void> take_lanes(const JobPlan& plan, uint64_t tag, uint64_t now_ns);
  void submitted(const JobPlan& plan, uint64_t now_ns);
  void refused(const JobPlan& plan, uint64_t tag);
  void refused_for_good(const JobPlan& plan, uint64_t tag, const Error& error, uint64_t now_ns);

  // True for a row whose result completed() will use.
  static bool wants(const PlanRow& row);
  // The end of the job. results[i] belongs to rows[i]. The plan's records may be gone afterwards.
  void completed(const JobPlan& plan, uint64_t tag, std::vector<RowResult>& results,
                 uint64_t now_ns);
  // Its requests fail and its lanes are poisoned; those of a lost job stay busy until answered().
  void failed(const JobPlan& plan, uint64_t tag, const Error& error, bool lost, uint64_t now_ns);
  void answered(uint32_t lane);  // the driver can write it no more
  uint32_t poisoned_lanes() const { return lanes_->poisoned_lanes(); }
  // The device is gone: every request fails.
  void fail_all(const Error& error, uint64_t now_ns);

  std::vector<Event>& events() { return events_; }
  size_t active() const { return records_.size(); }
  RunnerStatistics statistics() const;
  Result<void> check_invariants() const;

 private:
  // visit(row, tokens) for each request of the job; the row is its last.
  template <class Visit>
  static void each_member(const JobPlan& plan, Visit visit);
  const GraphShape* chunk_for(const Record& record) const;
  void plan_chunk(Record* record, const GraphShape& graph, JobPlan* plan);
  bool plan_tick(JobPlan* plan);
  const GraphShape* choose_profile();
  bool fill_identity(JobPlan* plan);
  static PlanRow row_of(Record* record);
  static bool wants_to_be_alone(const JobPlan& plan);
  void ended(const JobPlan& plan);
  void advance(Record* record, uint32_t n, RowResult& result, uint64_t now_ns);
  void drew(Record* record, RowResult& result, uint64_t now_ns);
  void apply(Record* record, RequestEvent event, uint64_t now_ns);
  void end(Record* record, Finish finish, const Error& error, uint64_t now_ns);
  void retire(Record* record, uint64_t now_ns);
  void publish(EventKind kind, const Record& record, int64_t value, uint64_t now_ns);
  void sweep();

  std::vector<GraphShape> decode_, prefill_;
  std::shared_ptr<kv::LaneTable> lanes_;
  StepOptions options_;
  std::vector<std::unique_ptr<Record>> records_;  // in order of start
  std::vector<Record*> ready_;                    // scratch
  std::vector<Event> events_;
  RunnerStatistics statistics_;
  uint64_t jobs_ = 0;
  uint32_t ticks_since_chunk_;
  uint32_t in_flight_ = 0, ticks_in_flight_ = 0;
  bool alone_ = false;  // what is in flight wants to be
  bool blocked_ = false;
  struct Owed {
    kv::LaneRef lane;
    uint64_t tag;
  };
  std::vector<Owed> owed_;  // lanes of lost jobs
};

}  // namespace calrt::engine
