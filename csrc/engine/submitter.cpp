// SPDX-License-Identifier: Apache-2.0
#include "engine/submitter.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/out_of_memory.h"
#include "base/sha256.h"
#include "layout/layout.h"
#include "layout/pack.h"

namespace calrt::engine {

namespace {

uint64_t element_bytes(int32_t dtype) { return dtype == CALD_F32 ? 4 : dtype == CALD_BF16 ? 2 : 0; }

bool plain(const cald_axis& axis, uint32_t dim) {
  return axis.dim == dim && axis.divisor <= 1 && axis.modulus == 0;
}

// Bytes between rows of dense [rows, V] logits, 0 if they are laid out otherwise.
uint64_t dense_row_stride(const cald_io& io) {
  const cald_layout& layout = io.layout;
  const bool dense = io.rank == 2 && layout.n_axes == 2 && plain(layout.axes[0], 0) &&
                     plain(layout.axes[1], 1) && layout.axes[1].stride == element_bytes(io.dtype);
  return dense ? layout.axes[0].stride : 0;
}

std::vector<uint32_t> lanes_of(const JobPlan& plan) {
  std::vector<uint32_t> lanes;
  for (const PlanRow& row : plan.rows) {
    const auto lane = static_cast<uint32_t>(row.lane);
    if (row.lane >= 0 && (lanes.empty() || lanes.back() != lane)) lanes.push_back(lane);
  }
  return lanes;
}

const cald_io* find_io(const cald_io* const* list, uint32_t n, int32_t role) {
  for (uint32_t i = 0; i < n; ++i) {
    if (list[i]->role == role) return list[i];
  }
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<JobSubmitter>> JobSubmitter::make(std::shared_ptr<Model> model,
                                                         CompletionSink* sink, uint32_t in_flight) {
  std::unique_ptr<JobSubmitter> made(new JobSubmitter);
  made->sink_ = sink;
  made->tokens_ = model->info().vocab;
  const auto& manifest = model->package().manifest();
  if (manifest.tokenizer_vocab) {
    made->tokens_ = static_cast<uint32_t>(
        std::min<uint64_t>(made->tokens_, std::max<uint64_t>(*manifest.tokenizer_vocab, 1)));
  }
  CALRT_TRY_ASSIGN(made->session_, model->device()->session(model->session_index()));
  made->model_ = std::move(model);
  made->graphs_.resize(made->model_->info().n_graphs);
  made->flights_.reserve(in_flight);
  made->serving_.resize(in_flight);
  for (Serving& serving : made->serving_) serving.requests.reserve(made->model_->info().lanes);
  for (const uint32_t index : made->model_->decode_graphs()) CALRT_TRY(made->add_graph(index));
  for (const uint32_t index : made->model_->prefill_graphs()) CALRT_TRY(made->add_graph(index));
  return made;
}

Result<void> JobSubmitter::add_graph(uint32_t index) {
  const cald_graph& of = model_->graph(index);
  Graph& graph = graphs_[index];
  for (uint32_t i = 0; i < of.n_inputs; ++i) {
    if (of.inputs[i]->optional == 0) CALRT_TRY(check_input(of, *of.inputs[i]));
  }
  graph.logits = find_io(of.outputs, of.n_outputs, CALD_ROLE_LOGITS);
  if (graph.logits == nullptr || element_bytes(graph.logits->dtype) == 0 ||
      graph.logits->rank != 2 || graph.logits->layout.undetermined != 0) {
    return fail(Status::UNSUPPORTED,
                "graph %s: the runner needs logits [rows, vocabulary] in F32 or BF16 with a known "
                "layout",
                of.name);
  }
  graph.row_stride = dense_row_stride(*graph.logits);
  const cald_io* rows = find_io(of.inputs, of.n_inputs, CALD_ROLE_LOGIT_ROWS);
  graph.must_bind_rows = rows != nullptr && rows->optional == 0;
  graph.row_per_input = of.kind == CALD_GRAPH_DECODE ||
                        (rows == nullptr && of.chunk > 1 && graph.logits->shape[0] == of.chunk);
  const cald_io* lanes = find_io(of.inputs, of.n_inputs, CALD_ROLE_LANES);
  graph.lane_inputs = lanes != nullptr ? static_cast<uint32_t>(lanes->shape[0]) : 0;
  if (of.lane_map == CALD_LANE_MAP_ANY && (lanes == nullptr || lanes->optional != 0)) {
    return fail(Status::UNSUPPORTED, "graph %s: lane_map any needs a lanes input", of.name);
  }
  for (size_t set = 0; set < serving_.size(); ++set) {
    CALRT_TRY_ASSIGN(auto bindings, model_->make_bindings(index));
    graph.free.push_back(std::move(bindings));
  }
  return {};
}

Result<void> JobSubmitter::check_input(const cald_graph& graph, const cald_io& input) const {
  const bool known = input.role >= CALD_ROLE_TOKENS && input.role <= CALD_ROLE_LOGIT_ROWS;
  const bool dense = input.rank == 1 && input.layout.n_axes == 1 &&
                     plain(input.layout.axes[0], 0) && input.layout.axes[0].stride == 4;
  if (known && dense && input.dtype == CALD_I32) return {};
  return fail(Status::UNSUPPORTED,
              "graph %s, input role %d: the runner fills dense I32 inputs with the roles tokens, "
              "positions, lanes, n_valid and logit_rows",
              graph.name, input.role);
}

std::vector<GraphShape> JobSubmitter::shapes() const {
  std::vector<GraphShape> shapes;
  const auto add = [&](uint32_t index, bool prefill) {
    const cald_graph& of = model_->graph(index);
    const bool n_valid = graphs_[index].free.front()->buffer(CALD_ROLE_N_VALID) != nullptr;
    shapes.push_back({index, prefill, prefill ? of.chunk : of.batch, of.lane_map, n_valid});
  };
  for (const uint32_t index : model_->decode_graphs()) add(index, false);
  for (const uint32_t index : model_->prefill_graphs()) add(index, true);
  return shapes;
}

uint64_t JobSubmitter::next_tag() {
  const auto in_flight = [&](const Serving& serving) {
    return std::any_of(flights_.begin(), flights_.end(), [&](const Flight& flight) {
      return flight.job->job_seq() == serving.job_seq;
    });
  };
  const std::lock_guard lock(serving_mutex_);
  next_ = &*std::find_if_not(serving_.begin(), serving_.end() - 1, in_flight);
  next_->requests.clear();
  return next_->job_seq = Job::next_job_seq();
}

void JobSubmitter::note(const JobPlan& plan) {
  const std::lock_guard lock(serving_mutex_);
  std::vector<uint64_t>& requests = next_->requests;
  for (const PlanRow& row : plan.rows) {
    if (row.record == nullptr) continue;
    const uint64_t request = row.record->start.request;
    if (requests.empty() || requests.back() != request) requests.push_back(request);
  }
}

std::vector<uint64_t> JobSubmitter::serves(uint64_t job_seq) const {
  const std::lock_guard lock(serving_mutex_);
  for (const Serving& serving : serving_) {
    if (serving.job_seq == job_seq) return serving.requests;
  }
  return {};
}

// The set of the job finished last may be used again: its logits have been read.
void JobSubmitter::put_back() {
  if (finished_ != nullptr) graphs_[finished_graph_].free.push_back(std::move(finished_));
}

Result<uint64_t> JobSubmitter::submit(const JobPlan& plan, uint64_t deadline_ns) {
  put_back();
  Graph& graph = graphs_[plan.graph.index];
  if (graph.free.empty()) {  // held by a lost job
    CALRT_TRY_ASSIGN(auto made, model_->make_bindings(plan.graph.index));
    graph.free.push_back(std::move(made));
  }
  const std::shared_ptr<BindingSet>& bindings = graph.free.back();
  CALRT_TRY(fill(plan, graph, *bindings));
  note(plan);
  std::vector<uint32_t> lanes = lanes_of(plan);
  lost_.reserve(lost_.size() + flights_.size() + 1);  // finish() has to have a place
  CALRT_TRY_ASSIGN(auto job,
                   Job::submit(session_, model_, bindings, deadline_ns, sink_, next_->job_seq));
  flights_.push_back({std::move(job), bindings, std::move(lanes)});
  graph.free.pop_back();
  return next_->job_seq;
}

Result<void> JobSubmitter::write(const BindingSet& bindings, int32_t role, size_t n) {
  Buffer* buffer = bindings.buffer(role);
  if (buffer == nullptr) return {};
  const uint64_t bytes = n * sizeof(int32_t);
  if (buffer->data() == nullptr) return buffer->write(0, ints_.data(), bytes);
  std::memcpy(buffer->data(), ints_.data(), bytes);
  return {};
}

Result<void> JobSubmitter::fill(const JobPlan& plan, const Graph& graph, BindingSet& bindings) {
  const size_t rows = plan.rows.size();
  ints_.resize(std::max(rows, static_cast<size_t>(graph.lane_inputs)));
  for (size_t i = 0; i < rows; ++i) ints_[i] = plan.rows[i].token;
  CALRT_TRY(write(bindings, CALD_ROLE_TOKENS, rows));
  for (size_t i = 0; i < rows; ++i) ints_[i] = plan.rows[i].position;
  CALRT_TRY(write(bindings, CALD_ROLE_POSITIONS, rows));
  for (uint32_t i = 0; i < graph.lane_inputs; ++i) {
    ints_[i] = plan.rows[plan.graph.prefill ? 0 : i].lane;
  }
  CALRT_TRY(write(bindings, CALD_ROLE_LANES, graph.lane_inputs));
  ints_[0] = static_cast<int32_t>(plan.n_valid);
  CALRT_TRY(write(bindings, CALD_ROLE_N_VALID, 1));
  bindings.bind_rows(graph.must_bind_rows ? 1 : 0);
  if (!graph.must_bind_rows) return {};
  ints_[0] = static_cast<int32_t>(plan.n_valid) - 1;
  return write(bindings, CALD_ROLE_LOGIT_ROWS, 1);
}

Submitter::End JobSubmitter::finish(const JobPlan& plan, uint64_t job_seq) {
  put_back();
  const auto found = std::find_if(flights_.begin(), flights_.end(), [&](const Flight& flight) {
    return flight.job->job_seq() == job_seq;
  });
  if (found == flights_.end()) {
    return {fail(Status::INTERNAL, "job %llu is not in flight",
                 static_cast<unsigned long long>(job_seq))};
  }
  Flight flight = std::move(*found);
  flights_.erase(found);
  const bool lost = flight.job->state() == JobState::LOST;
  End end{or_out_of_memory([&] { return flight.job->wait(0); }), lost};
  if (lost) {
    lost_.push_back({std::move(flight.bindings), std::move(flight.lanes)});
    return end;
  }
  finished_ = std::move(flight.bindings);
  finished_graph_ = plan.graph.index;
  finished_seq_ = job_seq;
  return end;
}

Result<LogitsView> JobSubmitter::logits(const JobPlan& plan, uint32_t row) {
  const Graph& graph = graphs_[plan.graph.index];
  const cald_io& io = *graph.logits;
  const Buffer* buffer = finished_->buffer(CALD_ROLE_LOGITS);
  const void* data = buffer->data();
  if (data == nullptr) {
    if (fetched_of_ != finished_seq_) {  // once for all rows of a job
      fetched_.resize(io.layout.bytes);
      CALRT_TRY(buffer->read(0, fetched_.data(), fetched_.size()));
      fetched_of_ = finished_seq_;
    }
    data = fetched_.data();
  }
  const uint64_t at = graph.row_per_input ? row : 0;
  const uint32_t vocab = model_->info().vocab;
  if (graph.row_stride != 0) {
    const auto* bytes = static_cast<const uint8_t*>(data) + at * graph.row_stride;
    return LogitsView{bytes, io.dtype == CALD_BF16, vocab, tokens_};
  }
  const LayoutRow lies = layout_row(io.layout, at);
  unpacked_.resize(vocab);
  CALRT_TRY(unpack_f32(lies.layout, io.dtype, io.shape + 1, io.rank - 1,
                       static_cast<const uint8_t*>(data) + lies.offset, unpacked_.data()));
  return LogitsView{unpacked_.data(), false, vocab, tokens_};
}

Result<std::array<uint8_t, 32>> JobSubmitter::probe(uint32_t lane, uint64_t deadline_ns) {
  JobPlan plan;
  bool found = false;
  for (const GraphShape& shape : shapes()) {
    // Padding needs rows that say so, or a count of valid ones.
    const bool alone = shape.prefill ? shape.n_valid || shape.size == 1
                                     : shape.size == 1 || graphs_[shape.index].lane_inputs > 0;
    if (!shape.serves(lane) || !alone) continue;
    plan.graph = shape;
    found = true;
    break;
  }
  if (!found)
    return fail(Status::UNSUPPORTED, "no graph of this package serves lane %u alone", lane);
  plan.rows.resize(plan.graph.size);
  plan.n_valid = plan.graph.prefill ? 1 : plan.graph.size;
  const uint32_t row =
      !plan.graph.prefill && plan.graph.lane_map == CALD_LANE_MAP_IDENTITY ? lane : 0;
  plan.rows[row].lane = static_cast<int32_t>(lane);
  // A device that writes nothing gives the same each time too.
  put_back();
  Buffer* outputs = graphs_[plan.graph.index].free.back()->buffer(CALD_ROLE_LOGITS);
  const std::vector<uint8_t> nothing(outputs->bytes());
  CALRT_TRY(outputs->write(0, nothing.data(), nothing.size()));
  const uint64_t job_seq = next_tag();
  CALRT_TRY(submit(plan, deadline_ns));
  CALRT_TRY(flights_.back().job->wait(deadline_ns));
  CALRT_TRY(finish(plan, job_seq).result);
  CALRT_TRY_ASSIGN(const LogitsView view, logits(plan, row));
  Sha256 sum;
  sum.update(view.data, uint64_t{view.vocab} * (view.bf16 ? 2 : 4));
  return sum.digest();
}

void JobSubmitter::cancel() {
  for (const Flight& flight : flights_) (void)flight.job->cancel();
}

std::vector<uint32_t> JobSubmitter::answered() {
  std::vector<uint32_t> lanes;
  size_t most = 0;
  for (const Lost& lost : lost_) most += lost.lanes.size();
  lanes.reserve(most);  // before anything is forgotten
  std::erase_if(lost_, [&](const Lost& lost) {
    // The runtime holds the buffers until the driver has answered.
    if (lost.bindings.use_count() > 1) return false;
    lanes.insert(lanes.end(), lost.lanes.begin(), lost.lanes.end());
    return true;
  });
  return lanes;
}

}  // namespace calrt::engine
