// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/model.h"

#include <algorithm>
#include <cstring>

namespace calrt::cpu {
namespace {

constexpr uint32_t kMostLanes = 4096;
constexpr uint32_t kMostCells = 1u << 22;
constexpr uint32_t kMostRows = 8192;  // of one job
constexpr uint64_t kAlign = 64;

Result<bool> is_bf16(const char* name, int32_t dtype) {
  if (dtype == CALD_BF16) return true;
  if (dtype == CALD_F32) return false;
  return fail(Status::UNSUPPORTED, "%s=%d: this driver offers f32 (1) and bf16 (2)", name, dtype);
}

Result<void> in_range(const char* name, uint64_t value, uint64_t limit) {
  if (value >= 1 && value <= limit) return {};
  return fail(Status::OUT_OF_RANGE, "%s=%llu: 1 to %llu expected", name,
              static_cast<unsigned long long>(value), static_cast<unsigned long long>(limit));
}

Result<std::vector<uint32_t>> row_counts(const char* name, const uint32_t* values, uint32_t n) {
  std::vector<uint32_t> counts;
  if (n > 64) return fail(Status::OUT_OF_RANGE, "%u %s: at most 64 expected", n, name);
  if (n != 0 && values == nullptr) return fail(Status::INVALID_ARGUMENT, "%s is null", name);
  for (uint32_t i = 0; i < n; ++i) {
    CALRT_TRY(in_range(name, values[i], kMostRows));
    if (i > 0 && values[i] <= values[i - 1])
      return fail(Status::INVALID_ARGUMENT, "%s: %u after %u; rising numbers expected", name,
                  values[i], values[i - 1]);
    counts.push_back(values[i]);
  }
  return counts;
}

void describe_io(cald_io* io, int32_t role, int32_t dtype, std::initializer_list<uint64_t> shape,
                 bool optional) {
  *io = {};
  io->struct_size = sizeof *io;
  io->role = role;
  io->dtype = dtype;
  io->align = kAlign;
  io->domains = CALD_DOMAIN_HOST;
  io->optional = optional ? 1 : 0;
  uint64_t bytes = dtype == CALD_BF16 ? 2 : 4;
  for (uint64_t extent : shape) {
    cald_axis& axis = io->layout.axes[io->rank];
    axis.dim = io->rank;
    axis.divisor = 1;
    axis.extent = extent;
    io->shape[io->rank++] = extent;
  }
  io->layout.n_axes = io->rank;
  for (uint32_t d = io->rank; d-- > 0;) {
    io->layout.axes[d].stride = bytes;
    bytes *= io->shape[d];
  }
  io->layout.bytes = bytes;
}

std::unique_ptr<GraphStorage> describe_graph(const LoadPlan& plan, int32_t kind, uint32_t rows) {
  auto g = std::make_unique<GraphStorage>();
  const bool decode = kind == CALD_GRAPH_DECODE;
  g->name = (decode ? "decode_b" : "prefill_t") + std::to_string(rows);
  describe_io(&g->inputs[0], CALD_ROLE_TOKENS, CALD_I32, {rows}, false);
  describe_io(&g->inputs[1], CALD_ROLE_POSITIONS, CALD_I32, {rows}, false);
  describe_io(&g->inputs[2], CALD_ROLE_LANES, CALD_I32, {decode ? rows : 1}, false);
  uint32_t inputs = 3;
  if (!decode) {
    describe_io(&g->inputs[inputs++], CALD_ROLE_N_VALID, CALD_I32, {1}, false);
    describe_io(&g->inputs[inputs++], CALD_ROLE_LOGIT_ROWS, CALD_I32, {rows}, true);
  }
  describe_io(&g->output, CALD_ROLE_LOGITS, plan.logits_bf16 ? CALD_BF16 : CALD_F32,
              {rows, plan.shape.vocab}, false);
  for (uint32_t i = 0; i < inputs; ++i) g->input_list[i] = &g->inputs[i];
  g->output_list[0] = &g->output;
  g->graph.struct_size = sizeof g->graph;
  g->graph.kind = kind;
  g->graph.name = g->name.c_str();
  g->graph.batch = decode ? rows : 1;
  g->graph.chunk = decode ? 0 : rows;
  g->graph.lane_map = CALD_LANE_MAP_ANY;
  g->graph.n_inputs = inputs;
  g->graph.inputs = g->input_list;
  g->graph.n_outputs = 1;
  g->graph.outputs = g->output_list;
  g->graph.share_group = "main";
  return g;
}

}  // namespace

Result<LoadPlan> plan_load(const cald_device& device, const cald_package* package,
                           const cald_load_options* options) {
  CALRT_TRY(check_struct(package, "package"));
  CALRT_TRY(check_struct(options, "options"));
  LoadPlan plan{};
  CALRT_TRY_ASSIGN(plan.shape, read_shape(*package));
  CALRT_TRY(in_range("lanes", options->lanes, kMostLanes));
  CALRT_TRY(in_range("cells", options->cells, kMostCells));
  if (options->compute != CALD_COMPUTE_F32 && options->compute != CALD_COMPUTE_BF16)
    return fail(Status::UNSUPPORTED, "compute=%d: this driver offers f32 (1) and bf16 (2)",
                options->compute);
  const char* parallel = options->parallel == nullptr ? "none" : options->parallel;
  if (std::strcmp(parallel, "none") != 0)
    return fail(Status::UNSUPPORTED, "parallel=%.40s: cpu is one chip; use none", parallel);
  const char* placement = options->placement == nullptr ? "any" : options->placement;
  if (std::strcmp(placement, "any") != 0 && std::strcmp(placement, "chip:0") != 0)
    return fail(Status::UNSUPPORTED, "placement=%.40s: cpu is one chip; use any or chip:0",
                placement);
  plan.lanes = options->lanes;
  plan.cells = options->cells;
  plan.threads = device.threads;
  plan.linear_bf16 = options->compute == CALD_COMPUTE_BF16;
  CALRT_TRY_ASSIGN(plan.kv_bf16, is_bf16("kv_dtype", options->kv_dtype));
  CALRT_TRY_ASSIGN(plan.logits_bf16, is_bf16("logits_dtype", options->logits_dtype));
  CALRT_TRY_ASSIGN(plan.profiles, row_counts("profiles", options->profiles, options->n_profiles));
  CALRT_TRY_ASSIGN(plan.chunks, row_counts("chunks", options->chunks, options->n_chunks));
  if (plan.profiles.empty() && plan.chunks.empty())
    return fail(Status::INVALID_ARGUMENT, "profiles and chunks are both empty: nothing could run");
  for (uint32_t rows : plan.profiles) plan.max_rows = std::max(plan.max_rows, rows);
  for (uint32_t rows : plan.chunks) plan.max_rows = std::max(plan.max_rows, rows);
  return plan;
}

}  // namespace calrt::cpu

using calrt::Result;
using namespace calrt::cpu;

Result<std::unique_ptr<cald_model>> cald_model::load(cald_device* device,
                                                     const cald_package* package,
                                                     const cald_load_options* options) {
  auto model = std::make_unique<cald_model>();
  model->device = device;
  CALRT_TRY_ASSIGN(model->plan, plan_load(*device, package, options));
  const LoadPlan& plan = model->plan;
  // Lanes and scratch first: what cannot fit should fail before minutes of reading.
  CALRT_TRY_ASSIGN(KvArena kv, KvArena::make(plan.shape, plan.lanes, plan.cells, plan.kv_bf16));
  model->kv = std::make_unique<KvArena>(std::move(kv));
  Compute compute{};
  compute.kernels = device->kernels;
  compute.linear = plan.linear_bf16 ? Format::BF16 : Format::F32;
  compute.attention = !plan.kv_bf16 ? Format::F32 : plan.linear_bf16 ? Format::BF16 : Format::MIXED;
  compute.logits_bf16 = plan.logits_bf16;
  CALRT_TRY_ASSIGN(Forward forward, Forward::make(plan.shape, model->weights, *model->kv, compute,
                                                  plan.max_rows, plan.cells, plan.threads));
  model->forward = std::make_unique<Forward>(std::move(forward));
  CALRT_TRY_ASSIGN(model->weights, Weights::load(*package, plan.shape, plan.linear_bf16, *options));
  for (uint32_t rows : plan.profiles)
    model->graphs.push_back(describe_graph(plan, CALD_GRAPH_DECODE, rows));
  for (uint32_t rows : plan.chunks)
    model->graphs.push_back(describe_graph(plan, CALD_GRAPH_PREFILL, rows));
  for (const auto& graph : model->graphs) model->graph_list.push_back(&graph->graph);
  return model;
}

void cald_model::describe(cald_model_info* out) const {
  const uint32_t size = out->struct_size;
  *out = {};
  out->struct_size = size;
  out->n_graphs = static_cast<uint32_t>(graph_list.size());
  out->graphs = graph_list.data();
  out->lanes = plan.lanes;
  out->cells = plan.cells;
  out->vocab = plan.shape.vocab;
  out->compute = plan.linear_bf16 ? CALD_COMPUTE_BF16 : CALD_COMPUTE_F32;
  out->kv_dtype = plan.kv_bf16 ? CALD_BF16 : CALD_F32;
  out->logits_dtype = plan.logits_bf16 ? CALD_BF16 : CALD_F32;
  out->weight_bytes = plan.weight_bytes();
  out->kv_bytes = kv->bytes();
}
