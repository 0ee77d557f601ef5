// SPDX-License-Identifier: Apache-2.0
#include "engine/graph_runner.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/graph_call.h"

namespace calrt::engine {

namespace {
constexpr uint32_t kMostWaiters = 64;  // for a lane
}  // namespace

Result<std::shared_ptr<GraphRunner>> GraphRunner::make(std::shared_ptr<Model> model) {
  // What may fail comes first: a runner that exists is whole, its destructor closes the model.
  CALRT_TRY_ASSIGN(std::shared_ptr<Session> session,
                   model->device()->session(model->session_index()));
  std::shared_ptr<GraphRunner> made(new GraphRunner);
  made->session_ = std::move(session);
  const cald_model_info& info = model->info();
  auto table = kv::LaneTable::make(
      info.lanes, info.cells, static_cast<uint32_t>(model->generation()), KvMover::caps_of(*model));
  made->scrubber_ = std::make_shared<LaneScrubber>(model, made->session_, table);
  made->queue_ = std::make_shared<ReserveQueue>(std::move(table), kMostWaiters, made->scrubber_,
                                                [model] { return model->check_alive(); });
  CALRT_TRY_ASSIGN(made->mover_, KvMover::make(model, made->session_, made->queue_));
  for (uint32_t graph = 0; graph < info.n_graphs; ++graph)
    made->pools_.push_back(make_binding_pool(model, graph));
  made->model_ = std::move(model);
  return made;
}

GraphRunner::~GraphRunner() {
  // Nobody is left to be told of a job that does not end; its buffers stay with the job.
  (void)close(model_->device()->now_ns() + 5'000'000'000).ok();
}

Result<std::shared_ptr<PrefixCache>> GraphRunner::prefixes(std::optional<uint32_t> every,
                                                           uint64_t host_bytes) {
  CALRT_TRY(model_->check_open());
  std::lock_guard lock(prefixes_mutex_);
  const bool says = every || host_bytes != 0;
  if (says && prefixes_said_)
    return fail(Status::INVALID_STATE, "enable_prefixes: how prefixes are kept was said before");
  if (prefixes_ == nullptr || says) {
    // A key where a chunk ends: what is reused is computed in whole chunks.
    const auto& chunks = model_->prefill_graphs();
    const uint32_t chunk = chunks.empty() ? 16 : model_->graph(chunks.front()).chunk;
    CALRT_TRY_ASSIGN(prefixes_, PrefixCache::make(mover_, every.value_or(chunk), host_bytes));
    prefixes_said_ = says;
  }
  return prefixes_;
}

Result<std::shared_ptr<LaneJob>> GraphRunner::submit(uint32_t graph, const GraphCall& call) {
  CALRT_TRY(model_->check_open());
  CALRT_TRY(check_counts(model_->graph(graph), call));
  sweep();
  CALRT_TRY_ASSIGN(std::shared_ptr<BindingSet> set, pools_[graph]->acquire(0));
  return run(std::move(set), call);
}

Result<std::shared_ptr<LaneJob>> GraphRunner::submit_filled(std::shared_ptr<BindingSet> set,
                                                            std::span<const kv::LaneRef> lanes,
                                                            std::optional<uint32_t> n_valid,
                                                            uint64_t deadline_ns) {
  CALRT_TRY(model_->check_open());
  sweep();
  if (set->busy())
    return fail(Status::INVALID_STATE,
                "the buffers of this slot are quarantined: its job was lost, and the device has "
                "not answered yet; use another slot");
  const cald_graph& graph = model_->graph(set->graph());
  const int32_t* tokens = set->ints(CALD_ROLE_TOKENS);
  if (tokens == nullptr)
    return fail(Status::UNSUPPORTED, "the host cannot address the inputs of graph %s", graph.name);
  const bool prefill = graph.kind == CALD_GRAPH_PREFILL;
  const uint32_t room = prefill ? graph.chunk : graph.batch;
  const uint32_t n = prefill ? n_valid.value_or(room) : static_cast<uint32_t>(lanes.size());
  if (n > room)
    return fail(Status::SHAPE_MISMATCH, "%s: %u given, but graph %s takes at most %u",
                prefill ? "n_valid" : "lanes", n, graph.name, room);
  // A lane has one right next position; the caller need not know it.
  std::vector<int32_t> positions;
  positions.reserve(n);
  for (const kv::LaneRef& lane : lanes.first(std::min<size_t>(n, lanes.size()))) {
    CALRT_TRY_ASSIGN(const kv::LaneSnapshot now, queue_->table()->snapshot(lane));
    positions.push_back(static_cast<int32_t>(now.length));
  }
  if (prefill && lanes.size() == 1)
    while (positions.size() < n) positions.push_back(positions.back() + 1);
  GraphCall call;
  call.tokens = {tokens, n};
  call.positions = positions;
  call.lanes = lanes;
  call.deadline_ns = deadline_ns;
  if (!prefill) call.n_valid = n_valid;  // refused by the check
  CALRT_TRY(check_counts(graph, call));
  return run(std::move(set), call);
}

Result<std::shared_ptr<LaneJob>> GraphRunner::run(std::shared_ptr<BindingSet> set,
                                                  const GraphCall& call) {
  CALRT_TRY_ASSIGN(CheckedCall checked, fill_and_check(*set, call));
  CALRT_TRY_ASSIGN(
      std::shared_ptr<LaneJob> job,
      LaneJob::submit(session_, model_, queue_, std::move(set), std::move(checked.writes),
                      checked.prefill, checked.output_rows, call.deadline_ns));
  if (!job->job()->terminal()) {
    std::lock_guard lock(mutex_);
    in_flight_.push_back(job);
  }
  return job;
}

void GraphRunner::sweep() {
  std::vector<std::shared_ptr<LaneJob>> ended;  // destroyed outside the lock: that calls the driver
  std::lock_guard lock(mutex_);
  size_t kept = 0;
  for (std::shared_ptr<LaneJob>& job : in_flight_) {
    if (job->job()->terminal())
      ended.push_back(std::move(job));
    else
      in_flight_[kept++].swap(job);
  }
  in_flight_.resize(kept);
}

Result<void> GraphRunner::close(uint64_t deadline_ns) {
  model_->close();
  if (model_->device()->inherited()) return {};  // its jobs and its waiters are another process's
  queue_->close();
  std::vector<std::shared_ptr<LaneJob>> jobs;
  {
    std::lock_guard lock(mutex_);
    jobs.swap(in_flight_);
  }
  for (const auto& job : jobs)
    if (!job->job()->terminal()) (void)job->job()->cancel().ok();
  Result<void> answer;
  for (const auto& job : jobs) {
    Result<void> ended = job->job()->wait(deadline_ns);
    if (!ended.ok() && ended.error().code == Status::WAIT_TIMEOUT)
      answer = fail(Status::WAIT_TIMEOUT,
                    "job %llu did not end in time; the model is closed all the same, and the job's "
                    "buffers stay quarantined until the driver answers",
                    static_cast<unsigned long long>(job->job()->job_seq()));
  }
  for (const auto& pool : pools_) pool->close();
  return answer;
}

}  // namespace calrt::engine
