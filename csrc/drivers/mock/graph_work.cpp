// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "drivers/mock/work.h"
#include "layout/roles.h"

namespace calrt::mock {
namespace {

struct Bound {
  cald_buffer* buffer = nullptr;
  unsigned char* data = nullptr;
  uint64_t bytes = 0;

  int32_t operator[](uint32_t i) const { return reinterpret_cast<const int32_t*>(data)[i]; }
  explicit operator bool() const { return data != nullptr; }
};

struct Row {
  uint32_t token, position, lane;
  int32_t out;  // row of the logits, -1: none
};

Result<void> check_binding(const Graph& graph, const cald_binding& binding,
                           const cald_device& device) {
  const char* name = graph.name.c_str();
  const char* role = role_name(binding.role);
  const cald_io* io = graph.find(binding.role);
  if (io == nullptr)
    return fail(Status::INVALID_ARGUMENT, "%s has no role %s (%d)", name, role, binding.role);
  const cald_buffer* buffer = binding.buffer;
  if (buffer == nullptr)
    return fail(Status::INVALID_HANDLE, "%s: %s is bound to no buffer", name, role);
  if (buffer->device != &device)
    return fail(Status::INVALID_HANDLE, "%s: the buffer of %s is another device's", name, role);
  if (!buffer->holds(binding.offset, binding.bytes))
    return fail(Status::OUT_OF_RANGE, "%s: %s binds %llu bytes at %llu of a buffer of %llu", name,
                role, static_cast<ull>(binding.bytes), static_cast<ull>(binding.offset),
                static_cast<ull>(buffer->bytes));
  if ((buffer->domain & io->domains) == 0)
    return fail(Status::INVALID_ARGUMENT, "%s: %s lies in domain %u, one of %#x is allowed", name,
                role, buffer->domain, io->domains);
  if (reinterpret_cast<uintptr_t>(buffer->data + binding.offset) % io->align != 0)
    return fail(Status::INVALID_ARGUMENT, "%s: %s must be aligned to %llu bytes, offset is %llu",
                name, role, static_cast<ull>(io->align), static_cast<ull>(binding.offset));
  const bool by_rows = io->role == CALD_ROLE_LOGIT_ROWS || io->role == CALD_ROLE_LOGITS;
  if (!by_rows && binding.bytes < io->layout.bytes)
    return fail(Status::SHAPE_MISMATCH, "%s: %s binds %llu bytes, %llu are needed", name, role,
                static_cast<ull>(binding.bytes), static_cast<ull>(io->layout.bytes));
  return {};
}

// A job that names a set binds nothing that the set has not.
Result<void> check_set(const Graph& graph, const cald_job_desc& desc) {
  if (desc.set == nullptr) return {};
  if (desc.set->model != desc.model || desc.set->graph != desc.graph)
    return fail(Status::INVALID_ARGUMENT, "%s: the binding set is of another graph",
                graph.name.c_str());
  for (uint32_t b = 0; b < desc.n_bindings; ++b) {
    const cald_binding& binding = desc.bindings[b];
    const auto covers = [&](const cald_binding& known) {
      return known.role == binding.role && known.buffer == binding.buffer &&
             known.offset <= binding.offset &&
             binding.offset + binding.bytes <= known.offset + known.bytes;
    };
    const auto& known = desc.set->bindings;
    if (std::none_of(known.begin(), known.end(), covers))
      return fail(Status::INVALID_ARGUMENT, "%s: %s is bound to what the binding set has not",
                  graph.name.c_str(), role_name(binding.role));
  }
  return {};
}

class GraphWork final : public Work {
 public:
  GraphWork(cald_model* model, const Graph& graph)
      : Work(model, graph.decodes() ? "decode" : "prefill"), graph_(graph) {}

  Result<void> bind(const cald_job_desc& desc) {
    for (uint32_t b = 0; b < desc.n_bindings; ++b) {
      const cald_binding& binding = desc.bindings[b];
      CALRT_TRY(check_binding(graph_, binding, *model_->device));
      Bound& bound = by_role(binding.role);
      if (bound) return wrong("%s is bound twice", role_name(binding.role));
      bound = {binding.buffer, binding.buffer->data + binding.offset, binding.bytes};
      if (binding.role == CALD_ROLE_LOGITS)
        count_out(binding.buffer, binding.bytes);
      else
        count_in(*binding.buffer, binding.bytes);
    }
    for (const auto& io : graph_.ios)
      if (io->optional == 0 && !by_role(io->role))
        return wrong("%s is not bound", role_name(io->role));
    const Bound& rows = by_role(CALD_ROLE_LOGIT_ROWS);
    if (rows && (rows.bytes == 0 || rows.bytes % 4 != 0 || rows.bytes / 4 > graph_.size()))
      return fail(Status::SHAPE_MISMATCH, "%s: logit_rows binds %llu bytes; 1 to %u i32 expected",
                  graph_.name.c_str(), static_cast<ull>(rows.bytes), graph_.size());
    const uint64_t wanted = graph_.decodes()       ? graph_.size()
                            : rows                 ? rows.bytes / 4
                            : graph_.row_per_token ? graph_.size()
                                                   : 1;
    const Bound& logits = by_role(CALD_ROLE_LOGITS);
    if (logits.bytes < graph_.logits.bytes_of(wanted))
      return fail(Status::SHAPE_MISMATCH, "%s: logits binds %llu bytes, %llu rows need %llu",
                  graph_.name.c_str(), static_cast<ull>(logits.bytes), static_cast<ull>(wanted),
                  static_cast<ull>(graph_.logits.bytes_of(wanted)));
    const Timing& timing = model_->device->preset->timing;
    set_stages(pace_ns(graph_.decodes() ? timing.ticks : timing.chunks, graph_.size()));
    return begin();
  }

  Result<void> begin() override {
    rows_.clear();
    return graph_.decodes() ? read_decode() : read_prefill();
  }

  void finish() override {
    Cells& cells = model_->cells;
    for (const Row& row : rows_)
      cells.write(row.lane, row.position, row.token, static_cast<int32_t>(row.position));
    Counters& counters = model_->device->counters;
    unsigned char* logits = by_role(CALD_ROLE_LOGITS).data;
    const auto give = [&](const Row& row, uint32_t out) {
      const Sums sums = cells.fold(model_->device->fold, row.lane, row.position + 1);
      graph_.logits.write(logits, out, sums, model_->noise);
      counters.cells_read += row.position + 1;
      counters.cells_displaced += sums.displaced;
    };
    for (const Row& row : rows_)
      if (row.out >= 0) give(row, static_cast<uint32_t>(row.out));
    if (!rows_.empty())
      for (uint32_t r = 0; r < chosen_.size(); ++r) give(rows_[chosen_[r]], r);
    counters.tokens += rows_.size();
    counters.cells_written += rows_.size();
  }

 private:
  Bound& by_role(int32_t role) { return bound_[static_cast<size_t>(role)]; }

  template <class... Args>
  Error wrong(const char* format, Args... args) const {
    char text[160];
    std::snprintf(text, sizeof text, format, args...);
    return fail(Status::INVALID_ARGUMENT, "%s: %s", graph_.name.c_str(), text);
  }

  Result<void> check_value(const char* name, uint32_t index, int64_t value, int64_t low,
                           int64_t high) const {
    if (value >= low && value <= high) return {};
    return fail(Status::OUT_OF_RANGE, "%s: %s[%u]=%lld, %lld to %lld expected", graph_.name.c_str(),
                name, index, static_cast<long long>(value), static_cast<long long>(low),
                static_cast<long long>(high));
  }

  Result<void> add_row(uint32_t i, int32_t lane, int32_t out) {
    const int32_t token = by_role(CALD_ROLE_TOKENS)[i], at = by_role(CALD_ROLE_POSITIONS)[i];
    CALRT_TRY(check_value("tokens", i, token, 0, int64_t{model_->plan.vocab} - 1));
    CALRT_TRY(check_value("positions", i, at, 0, int64_t{model_->plan.cells} - 1));
    rows_.push_back({static_cast<uint32_t>(token), static_cast<uint32_t>(at),
                     static_cast<uint32_t>(lane), out});
    return {};
  }

  Result<void> read_decode() {
    const Bound& lanes = by_role(CALD_ROLE_LANES);
    for (uint32_t i = 0; i < graph_.size(); ++i) {
      const int32_t lane = lanes ? lanes[i] : static_cast<int32_t>(i);
      CALRT_TRY(check_value("lanes", i, lane, -1, int64_t{model_->plan.lanes} - 1));
      if (lane < 0) continue;
      for (const Row& other : rows_)
        if (other.lane == static_cast<uint32_t>(lane))
          return wrong("rows %d and %u are both on lane %d", other.out, i, lane);
      CALRT_TRY(add_row(i, lane, static_cast<int32_t>(i)));
    }
    return {};
  }

  Result<void> read_prefill() {
    const Bound& lanes = by_role(CALD_ROLE_LANES);
    const Bound& valid = by_role(CALD_ROLE_N_VALID);
    const Bound& wanted = by_role(CALD_ROLE_LOGIT_ROWS);
    const int32_t lane = lanes ? lanes[0] : 0;
    CALRT_TRY(check_value("lanes", 0, lane, -1, int64_t{model_->plan.lanes} - 1));
    const int32_t n = valid ? valid[0] : static_cast<int32_t>(graph_.size());
    CALRT_TRY(check_value("n_valid", 0, n, 1, graph_.size()));
    const bool last_only = !wanted && !graph_.row_per_token;
    for (int32_t i = 0; i < n; ++i) {
      const int32_t out = graph_.row_per_token ? i : last_only && i == n - 1 ? 0 : -1;
      CALRT_TRY(add_row(static_cast<uint32_t>(i), lane, out));
      const uint32_t due = rows_.front().position + static_cast<uint32_t>(i);
      if (rows_.back().position != due)
        return wrong("positions[%d]=%u; a chunk fills neighbouring cells: %u is due", i,
                     rows_.back().position, due);
    }
    chosen_.clear();
    for (uint32_t r = 0; wanted && r < wanted.bytes / 4; ++r) {
      CALRT_TRY(check_value("logit_rows", r, wanted[r], 0, n - 1));
      chosen_.push_back(static_cast<uint32_t>(wanted[r]));
    }
    if (lane < 0) rows_.clear();  // the whole chunk is padding
    return {};
  }

  const Graph& graph_;
  std::array<Bound, CALD_ROLE_LOGITS + 1> bound_{};  // by role
  std::vector<Row> rows_;                            // without padding
  std::vector<uint32_t> chosen_;                     // by logit_rows
};

Result<const Graph*> graph_of(const cald_model& model, uint32_t index) {
  if (index < model.graphs.size()) return model.graphs[index].get();
  return fail(Status::OUT_OF_RANGE, "graph=%u: the model has %zu", index, model.graphs.size());
}

}  // namespace

void Work::count_in(const cald_buffer& buffer, uint64_t bytes) {
  bytes_in_ += bytes;
  if (buffer.domain != CALD_DOMAIN_DEVICE) link_in_ += bytes;
}

void Work::count_out(cald_buffer* buffer, uint64_t bytes) {
  bytes_out_ += bytes;
  if (buffer->domain != CALD_DOMAIN_DEVICE) link_out_ += bytes;
  output_ = buffer;
}

void Work::set_stages(uint64_t run_ns) {
  const Timing& timing = model_->device->preset->timing;
  stages_ = {timing.to_device.ns(link_in_), run_ns, timing.to_host.ns(link_out_)};
}

Result<std::unique_ptr<Work>> make_graph_work(const cald_device& device,
                                              const cald_job_desc& desc) {
  CALRT_TRY(check_handle(desc.model, "model"));
  if (desc.model->device != &device)
    return fail(Status::INVALID_HANDLE, "the model is another device's");
  CALRT_TRY_ASSIGN(const Graph* graph, graph_of(*desc.model, desc.graph));
  if (desc.n_bindings != 0 && desc.bindings == nullptr)
    return fail(Status::INVALID_ARGUMENT, "%s: bindings is null", graph->name.c_str());
  auto work = std::make_unique<GraphWork>(desc.model, *graph);
  CALRT_TRY(work->bind(desc));
  CALRT_TRY(check_set(*graph, desc));
  return std::unique_ptr<Work>(std::move(work));
}

Result<std::unique_ptr<cald_binding_set>> make_binding_set(cald_model* model, uint32_t graph,
                                                           const cald_binding* bindings,
                                                           uint32_t n_bindings) {
  CALRT_TRY(check_handle(model, "model"));
  CALRT_TRY_ASSIGN(const Graph* of, graph_of(*model, graph));
  if (n_bindings != 0 && bindings == nullptr)
    return fail(Status::INVALID_ARGUMENT, "%s: bindings is null", of->name.c_str());
  auto set = std::make_unique<cald_binding_set>();
  set->model = model;
  set->graph = graph;
  for (uint32_t b = 0; b < n_bindings; ++b) {
    CALRT_TRY(check_binding(*of, bindings[b], *model->device));
    set->bindings.push_back(bindings[b]);
  }
  return set;
}

}  // namespace calrt::mock
