// SPDX-License-Identifier: Apache-2.0
#include "engine/step_core.h"

#include <algorithm>
#include <new>
#include <utility>

namespace calrt::engine {

namespace {

constexpr size_t kEventsPerRequest = 4;  // STARTED, PREFILL, TOKEN, ENDED

// The code at least, if there is no memory for the words.
void keep(const Error& error, Error* out) noexcept {
  out->code = error.code;
  out->native_code = error.native_code;
  try {
    out->message = error.message;
  } catch (const std::bad_alloc&) {
    out->message.clear();
  }
}

}  // namespace

bool GraphShape::serves(uint32_t lane) const {
  if (lane_map == CALD_LANE_MAP_ANY) return true;
  return lane < (prefill ? 1 : size);  // row i is lane i; a prefill graph has one
}

StepCore::StepCore(std::vector<GraphShape> graphs, std::shared_ptr<kv::LaneTable> lanes,
                   const StepOptions& options)
    : lanes_(std::move(lanes)),
      options_(options),
      ticks_since_chunk_(options.decode_ticks_per_chunk) {
  for (const GraphShape& graph : graphs) {
    if (!graph.prefill) {
      decode_.push_back(graph);
    } else if (options.prefill_chunk == 0 || graph.size <= options.prefill_chunk) {
      prefill_.push_back(graph);
    }
  }
  records_.reserve(lanes_->lanes());
  ready_.reserve(lanes_->lanes());
  // Between two looks at them: those of two jobs that ended and of two that began.
  events_.reserve(4 * kEventsPerRequest * lanes_->lanes());
}

// ---- requests -----------------------------------------------------------------------------------

void StepCore::start(std::unique_ptr<Record> record) { records_.push_back(std::move(record)); }

void StepCore::cancel(uint64_t request, uint64_t now_ns) {
  for (const auto& record : records_) {
    if (record->start.request == request) end(record.get(), Finish::CANCELLED, {}, now_ns);
  }
  sweep();
}

void StepCore::cancel_all(uint64_t now_ns) {
  for (const auto& record : records_) end(record.get(), Finish::CANCELLED, {}, now_ns);
  sweep();
}

void StepCore::expire(uint64_t now_ns) {
  for (const auto& record : records_) {
    if (record->start.deadline_ns <= now_ns) end(record.get(), Finish::DEADLINE, {}, now_ns);
  }
  sweep();
}

uint64_t StepCore::next_deadline() const {
  uint64_t first = UINT64_MAX;
  for (const auto& record : records_) {
    if (record->state != RequestState::DRAINING) first = std::min(first, record->start.deadline_ns);
  }
  return first;
}

// ---- the next job -------------------------------------------------------------------------------

bool StepCore::next(JobPlan* plan) {
  blocked_ = false;
  if (alone_) return false;
  ready_.clear();
  const GraphShape* chunk = nullptr;
  Record* prompt = nullptr;
  for (const auto& record : records_) {
    if (record->prompting()) {
      const GraphShape* graph = chunk_for(*record);
      if (graph == nullptr) {
        ready_.push_back(record.get());
      } else if (prompt == nullptr) {
        prompt = record.get();
        chunk = graph;
      }
    } else if (record->state == RequestState::DECODE) {
      ready_.push_back(record.get());
    }
  }
  const bool decoding = ticks_in_flight_ > 0 || !ready_.empty();
  const bool turn = !decoding || ticks_since_chunk_ >= options_.decode_ticks_per_chunk;
  if (prompt != nullptr && turn) {
    plan_chunk(prompt, *chunk, plan);
    return true;
  }
  return !ready_.empty() && plan_tick(plan);
}

const GraphShape* StepCore::chunk_for(const Record& record) const {
  const uint32_t remaining = record.remaining();
  const GraphShape* largest = nullptr;
  for (const GraphShape& graph : prefill_) {
    if (!graph.serves(record.start.lane.lane)) continue;
    if (graph.size == remaining || (graph.size > remaining && graph.n_valid)) return &graph;
    if (graph.size < remaining) largest = &graph;
  }
  return largest;
}

void StepCore::plan_chunk(Record* record, const GraphShape& graph, JobPlan* plan) {
  plan->graph = graph;
  plan->n_valid = std::min(graph.size, record->remaining());
  plan->rows.clear();
  for (uint32_t i = 0; i < plan->n_valid; ++i) {
    plan->rows.push_back({static_cast<int32_t>(record->start.lane.lane),
                          record->start.tokens[record->done + i],
                          static_cast<int32_t>(record->position + i), record, false});
  }
  plan->rows.back().sample = plan->n_valid == record->remaining();
  // Padding repeats the last position: the number of valid rows says that it does not count.
  plan->rows.resize(graph.size, PlanRow{-1, 0, plan->rows.back().position, nullptr, false});
}

bool StepCore::plan_tick(JobPlan* plan) {
  const GraphShape* graph = choose_profile();
  if (graph == nullptr) return false;
  if (ticks_in_flight_ > 0 && ready_.size() < decode_.back().size) return false;
  plan->graph = *graph;
  plan->n_valid = static_cast<uint32_t>(ready_.size());
  plan->rows.clear();
  std::sort(ready_.begin(), ready_.end(), [](const Record* a, const Record* b) {
    return a->start.lane.lane < b->start.lane.lane;
  });
  if (graph->lane_map != CALD_LANE_MAP_ANY) return fill_identity(plan);
  for (Record* record : ready_) plan->rows.push_back(row_of(record));
  plan->rows.resize(graph->size);
  return true;
}

// The smallest profile that takes all ready lanes; else the largest, and ready_ is cut to those
// that were served longest ago.
const GraphShape* StepCore::choose_profile() {
  for (const GraphShape& graph : decode_) {
    const bool all = std::all_of(ready_.begin(), ready_.end(), [&](const Record* record) {
      return graph.serves(record->start.lane.lane);
    });
    if (all && ready_.size() <= graph.size) return &graph;
  }
  for (size_t i = decode_.size(); i-- > 0;) {
    const GraphShape& graph = decode_[i];
    const auto served = std::partition(ready_.begin(), ready_.end(), [&](const Record* record) {
      return graph.serves(record->start.lane.lane);
    });
    if (served == ready_.begin()) continue;
    ready_.erase(served, ready_.end());
    // Equally long ago: by lane, so that the choice does not depend on the order of the list.
    std::sort(ready_.begin(), ready_.end(), [](const Record* a, const Record* b) {
      return a->served != b->served ? a->served < b->served
                                    : a->start.lane.lane < b->start.lane.lane;
    });
    if (ready_.size() > graph.size) ready_.resize(graph.size);
    return &graph;
  }
  return nullptr;
}

// Row i is lane i, and a graph without a lanes input computes every row. A row without a request
// writes the next cell of its lane, which whoever continues the lane overwrites before reading.
// That is not possible on a full lane, nor while somebody else's job writes it; so such a tick runs
// beside no other job.
bool StepCore::wants_to_be_alone(const JobPlan& plan) {
  return !plan.graph.prefill && plan.graph.lane_map != CALD_LANE_MAP_ANY &&
         plan.n_valid < plan.graph.size;
}

bool StepCore::fill_identity(JobPlan* plan) {
  if (in_flight_ > 0 && wants_to_be_alone(*plan)) return false;
  size_t at = 0;
  for (uint32_t lane = 0; lane < plan->graph.size; ++lane) {
    if (at < ready_.size() && ready_[at]->start.lane.lane == lane) {
      plan->rows.push_back(row_of(ready_[at++]));
      continue;
    }
    const kv::LaneSnapshot snapshot = lanes_->snapshot(lane);
    if (snapshot.job_seq != 0 || snapshot.length >= lanes_->cells()) {
      blocked_ = true;
      return false;
    }
    plan->rows.push_back({-1, 0, static_cast<int32_t>(snapshot.length), nullptr, false});
  }
  return true;
}

PlanRow StepCore::row_of(Record* record) {
  const bool prompt = record->remaining() > 0;
  return {static_cast<int32_t>(record->start.lane.lane),
          prompt ? record->start.tokens[record->done] : record->token,
          static_cast<int32_t>(record->position), record, record->remaining() <= 1};
}

size_t StepCore::events_of(const JobPlan& plan) const {
  return kEventsPerRequest * (plan.graph.prefill ? 1 : plan.n_valid);
}

// ---- around the submit --------------------------------------------------------------------------

template <class Visit>
void StepCore::each_member(const JobPlan& plan, Visit visit) {
  if (plan.graph.prefill) {
    visit(plan.n_valid - 1, plan.n_valid);
    return;
  }
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    if (plan.rows[i].record != nullptr) visit(i, 1u);
  }
}

Result<void> StepCore::take_lanes(const JobPlan& plan, uint64_t tag, uint64_t now_ns) {
  Result<void> taken;
  each_member(plan, [&](size_t row, uint32_t n) {
    Record* record = plan.rows[row].record;
    auto began = lanes_->begin_job(record->start.lane, tag, n, record->remaining() > 0);
    if (began.ok()) return;
    end(record, Finish::FAILED, began.error(), now_ns);
    taken = std::move(began);
  });
  if (!taken.ok()) refused(plan, tag);
  sweep();
  return taken;
}

void StepCore::submitted(const JobPlan& plan, uint64_t now_ns) {
  ++jobs_;
  ++in_flight_;
  alone_ = wants_to_be_alone(plan);
  each_member(plan, [&](size_t row, uint32_t) {
    Record* record = plan.rows[row].record;
    if (record->state == RequestState::QUEUED) publish(EventKind::STARTED, *record, 0, now_ns);
    record->served = jobs_;
    apply(record, RequestEvent::SUBMIT, now_ns);
  });
  if (plan.graph.prefill) {
    ++statistics_.chunks;
    ticks_since_chunk_ = 0;
  } else {
    ++statistics_.ticks;
    ++ticks_in_flight_;
    ticks_since_chunk_ = std::min(ticks_since_chunk_ + 1, options_.decode_ticks_per_chunk);
  }
  statistics_.rows += plan.graph.size;
  statistics_.padded_rows += plan.graph.size - plan.n_valid;
}

void StepCore::refused(const JobPlan& plan, uint64_t tag) {
  each_member(plan, [&](size_t row, uint32_t) {
    const kv::LaneRef& lane = plan.rows[row].record->start.lane;
    const auto snapshot = lanes_->snapshot(lane);
    if (snapshot.ok() && snapshot->job_seq == tag) lanes_->end_job(lane, tag, false, false);
  });
}

void StepCore::refused_for_good(const JobPlan& plan, uint64_t tag, const Error& error,
                                uint64_t now_ns) {
  refused(plan, tag);
  each_member(plan, [&](size_t row, uint32_t) {
    end(plan.rows[row].record, Finish::FAILED, error, now_ns);
  });
  sweep();
}

// ---- the end of a job ---------------------------------------------------------------------------

bool StepCore::wants(const PlanRow& row) {
  return row.sample && row.record != nullptr && row.record->state != RequestState::DRAINING;
}

void StepCore::completed(const JobPlan& plan, uint64_t tag, std::vector<RowResult>& results,
                         uint64_t now_ns) {
  ended(plan);
  each_member(plan, [&](size_t row, uint32_t n) {
    Record* record = plan.rows[row].record;
    lanes_->end_job(record->start.lane, tag, true, true);
    advance(record, n, results[row], now_ns);
  });
  sweep();
}

void StepCore::ended(const JobPlan& plan) {
  --in_flight_;
  if (!plan.graph.prefill) --ticks_in_flight_;
  alone_ = false;
}

void StepCore::advance(Record* record, uint32_t n, RowResult& result, uint64_t now_ns) {
  const bool prompt = record->remaining() > 0;
  const bool last = record->remaining() <= n;
  const auto event = !prompt ? RequestEvent::TOKEN_DONE
                     : last  ? RequestEvent::PROMPT_DONE
                             : RequestEvent::CHUNK_DONE;
  apply(record, event, now_ns);
  if (record->state == RequestState::ENDED) return;
  record->position += n;
  if (prompt) {
    record->done += n;
    statistics_.prompt_tokens += n;
    publish(EventKind::PREFILL, *record, record->done, now_ns);
  }
  if (last) drew(record, result, now_ns);
}

void StepCore::drew(Record* record, RowResult& result, uint64_t now_ns) {
  const int32_t token = result.sampled.token;
  if (token < 0) {
    const Error error = fail(Status::INTERNAL,
                             "no finite logit at position %u of lane %u: the device's answer "
                             "cannot be right",
                             record->position - 1, record->start.lane.lane);
    return end(record, Finish::FAILED, error, now_ns);
  }
  if (record->stops_at(token)) return end(record, Finish::STOP, {}, now_ns);
  record->token = token;
  record->sampler.accept(token);
  ++record->generated;
  ++statistics_.tokens;
  publish(EventKind::TOKEN, *record, token, now_ns);
  events_.back().logprob = result.sampled.logprob;
  events_.back().top.swap(result.top);
  if (record->generated >= record->start.max_tokens) {
    end(record, Finish::LENGTH, {}, now_ns);
  } else if (record->position >= lanes_->cells()) {
    end(record, Finish::CONTEXT, {}, now_ns);
  }
}

void StepCore::failed(const JobPlan& plan, uint64_t tag, const Error& error, bool lost,
                      uint64_t now_ns) {
  ++statistics_.failed_jobs;
  ended(plan);
  each_member(plan, [&](size_t row, uint32_t) {
    Record* record = plan.rows[row].record;
    const kv::LaneRef lane = record->start.lane;
    if (lost)
      owed_.push_back({lane, tag});
    else
      lanes_->end_job(lane, tag, false, true);
    if (record->state != RequestState::DRAINING) {
      record->finish = Finish::FAILED;
      keep(error, &record->error);
    }
    apply(record, RequestEvent::JOB_FAILED, now_ns);
  });
  sweep();
}

void StepCore::answered(uint32_t lane) {
  const auto owed = std::find_if(owed_.begin(), owed_.end(),
                                 [lane](const Owed& one) { return one.lane.lane == lane; });
  if (owed == owed_.end()) return;
  lanes_->end_job(owed->lane, owed->tag, false, true);
  owed_.erase(owed);
}

void StepCore::fail_all(const Error& error, uint64_t now_ns) {
  for (const auto& record : records_) end(record.get(), Finish::FAILED, error, now_ns);
  sweep();
}

// ---- states -------------------------------------------------------------------------------------

void StepCore::apply(Record* record, RequestEvent event, uint64_t now_ns) {
  const RequestState before = record->state;
  if (auto applied = record->on(event); !applied.ok()) {
    // A fault of ours: this request must not hang for it.
    record->finish = Finish::FAILED;
    record->error = applied.error();
    record->state = RequestState::ENDED;
  }
  if (record->state == RequestState::ENDED && before != RequestState::ENDED) retire(record, now_ns);
}

void StepCore::end(Record* record, Finish finish, const Error& error, uint64_t now_ns) {
  if (record->state == RequestState::DRAINING || record->state == RequestState::ENDED) return;
  record->finish = finish;
  keep(error, &record->error);
  apply(record, RequestEvent::END, now_ns);
}

// The lane goes back first, so that it is free when ENDED is read.
void StepCore::retire(Record* record, uint64_t now_ns) {
  (void)lanes_->release(record->start.lane);
  publish(EventKind::ENDED, *record, static_cast<int64_t>(record->finish), now_ns);
  if (record->finish != Finish::FAILED) return;
  events_.back().status = static_cast<int32_t>(record->error.code);
  events_.back().native_code = record->error.native_code;
  events_.back().text.swap(record->error.message);
}

void StepCore::publish(EventKind kind, const Record& record, int64_t value, uint64_t now_ns) {
  Event event{};
  event.kind = kind;
  event.request = record.start.request;
  event.value = value;
  event.t_ns = now_ns;
  events_.push_back(std::move(event));
}

void StepCore::sweep() {
  std::erase_if(records_, [](const auto& record) { return record->state == RequestState::ENDED; });
}

RunnerStatistics StepCore::statistics() const {
  RunnerStatistics now = statistics_;
  now.active = static_cast<uint32_t>(records_.size());
  for (const auto& record : records_) {
    now.prefilling += record->prompting() || record->state == RequestState::PREFILL_BUSY;
    now.decoding +=
        record->state == RequestState::DECODE || record->state == RequestState::DECODE_BUSY;
  }
  return now;
}

Result<void> StepCore::check_invariants() const {
  if (records_.size() > lanes_->lanes()) {
    return fail(Status::INTERNAL, "%zu requests on %u lanes", records_.size(), lanes_->lanes());
  }
  for (const auto& record : records_) CALRT_TRY(record->check_invariants(lanes_->cells()));
  return lanes_->check_integrity();
}

}  // namespace calrt::engine
