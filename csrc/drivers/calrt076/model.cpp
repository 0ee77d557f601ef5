// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/model.h"

#include <cstring>

namespace calrt::calrt076 {
namespace {

using ull = unsigned long long;

bool is(const char* word, const char* wanted) {
  return word != nullptr && std::strcmp(word, wanted) == 0;
}

// What can be said before the load. The SDK computes as the files were compiled: there is no
// choice.
Result<void> check_options(const cald_load_options& options) {
  if (options.lanes == 0 || options.cells == 0)
    return fail(Status::OUT_OF_RANGE, "lanes=%u, cells=%u: at least 1 each expected", options.lanes,
                options.cells);
  if (!is(options.parallel, "none") && !is(options.parallel, "tensor"))
    return fail(Status::UNSUPPORTED, "parallel=%.40s: calrt076 has none and tensor",
                options.parallel != nullptr ? options.parallel : "(null)");
  if (!is(options.placement, "any") && !is(options.placement, "chips:0+1"))
    return fail(Status::UNSUPPORTED,
                "placement=%.40s: the VirtualDevice's chiplets are one device (any, chips:0+1); a "
                "chiplet by itself needs the vendor (C3)",
                options.placement != nullptr ? options.placement : "(null)");
  if (options.compute != CALD_COMPUTE_PACKAGE && options.compute != CALD_COMPUTE_BF16)
    return fail(Status::UNSUPPORTED, "compute=%d: calrt076 computes as compiled, in bf16 (%d)",
                options.compute, CALD_COMPUTE_BF16);
  const bool null = (options.n_profiles != 0 && options.profiles == nullptr) ||
                    (options.n_chunks != 0 && options.chunks == nullptr);
  if (null) return fail(Status::INVALID_ARGUMENT, "profiles or chunks is null");
  if (options.n_profiles == 0 && options.n_chunks == 0)
    return fail(Status::INVALID_ARGUMENT, "profiles and chunks are both empty: nothing could run");
  return {};
}

// What the loaded model has to agree with.
Result<void> check_facts(const sdk::ModelFacts& is, const cald_package& package,
                         const cald_load_options& options) {
  if (package.arch != nullptr && is.vocab != package.arch->vocab)
    return fail(Status::PACKAGE_REJECTED, "vocab is %u in the model, %u in the package", is.vocab,
                package.arch->vocab);
  if (options.lanes > is.sequences)
    return fail(Status::OUT_OF_RANGE, "lanes=%u: the model has %u sequences", options.lanes,
                is.sequences);
  if (options.cells > is.context)
    return fail(Status::OUT_OF_RANGE, "cells=%u: the model's context is %u", options.cells,
                is.context);
  // So that no lane can ever find the arena full: then the SDK would spin for ever.
  if (uint64_t{options.lanes} * options.cells > is.cells)
    return fail(Status::OUT_OF_DEVICE_MEMORY,
                "%u lanes of %u cells are %llu: the model's KV arena has %u; take fewer of either",
                options.lanes, options.cells, static_cast<ull>(options.lanes) * options.cells,
                is.cells);
  // Cells of no float are opaque: nothing of calrt interprets them, whatever the package calls
  // them.
  const bool floats =
      is.kv_dtype == CALD_BF16 || is.kv_dtype == CALD_F16 || is.kv_dtype == CALD_F32;
  if (floats && options.kv_dtype != is.kv_dtype)
    return fail(Status::UNSUPPORTED, "kv_dtype=%d: the model was compiled with %d",
                options.kv_dtype, is.kv_dtype);
  return {};
}

const char* package_name(const cald_package& package, int32_t kind, uint32_t rows) {
  for (uint32_t i = 0; i < package.n_graphs; ++i) {
    const cald_graph& graph = *package.graphs[i];
    const uint32_t has = graph.kind == CALD_GRAPH_DECODE ? graph.batch : graph.chunk;
    if (graph.kind == kind && has == rows) return graph.name;
  }
  return nullptr;
}

Result<void> add_graphs(cald_model* model, const cald_package& package, int32_t kind,
                        const uint32_t* asked, uint32_t n, int32_t logits_dtype) {
  const sdk::ModelFacts& facts = model->facts;
  const char* word = kind == CALD_GRAPH_DECODE ? "decode graph of batch" : "prefill graph of chunk";
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t g = 0;
    while (g < facts.graphs.size() &&
           (facts.graphs[g].kind != kind || facts.graphs[g].rows != asked[i]))
      ++g;
    const char* name = package_name(package, kind, asked[i]);
    // One sequence for all rows of a run: a batch of several is not to be had with these files.
    const bool wide = kind == CALD_GRAPH_DECODE && asked[i] != 1;
    if (g == facts.graphs.size() || name == nullptr || wide)
      return fail(Status::UNSUPPORTED,
                  "the model's files have no %s %u: another one needs the vendor's compiler (C3)",
                  word, asked[i]);
    CALRT_TRY_ASSIGN(auto made, describe_graph(facts.graphs[g], g, name, facts.vocab));
    if (made->logits().dtype != logits_dtype)
      return fail(Status::UNSUPPORTED, "logits_dtype=%d: %s was compiled with %d", logits_dtype,
                  name, made->logits().dtype);
    if (made->graph.lane_map == CALD_LANE_MAP_NONE && model->lanes != 1)
      return fail(Status::UNSUPPORTED, "lanes=%u: %s is not told its sequence", model->lanes, name);
    model->graph_list.push_back(&made->graph);
    model->graphs.push_back(std::move(made));
  }
  return {};
}

bool go_on(const cald_load_options& options, uint64_t done, uint64_t total) {
  return options.progress == nullptr || options.progress(options.user, done, total) == 0;
}

}  // namespace
}  // namespace calrt::calrt076

using calrt::fail;
using calrt::Result;
using calrt::Status;
using namespace calrt::calrt076;

// The SDK's load tells no progress and cannot be stopped: it can be called off before alone.
Result<std::unique_ptr<cald_model>> cald_model::load(cald_device* device,
                                                     const cald_package* package,
                                                     const cald_load_options* options) {
  CALRT_TRY(check_struct(package, "package"));
  CALRT_TRY(check_struct(options, "options"));
  CALRT_TRY(check_options(*options));
  CALRT_TRY_ASSIGN(const std::string directory, package_directory(*package));
  uint64_t total = 0;
  for (uint32_t i = 0; i < package->n_artifacts; ++i) total += package->artifacts[i]->bytes;
  if (!go_on(*options, 0, total)) return fail(Status::CANCELLED, "called off before the load");

  auto model = std::make_unique<cald_model>();
  model->lanes = options->lanes;
  model->cells = options->cells;
  model->kv_dtype = options->kv_dtype;
  {
    std::lock_guard lock(device->vdev_mutex);
    if (device->models != 0)
      return fail(Status::OUT_OF_DEVICE_MEMORY,
                  "a model is loaded, and one may be resident: unload it first");
    const bool tensor = is(options->parallel, "tensor");
    CALRT_TRY(told(sdk::load(device->vdev, tensor, directory, &model->handle), directory.c_str()));
    device->models = 1;
    model->device = device;  // from here on the destructor unloads
  }
  CALRT_TRY(told(sdk::describe(model->handle, &model->facts), "describing the model"));
  CALRT_TRY(check_facts(model->facts, *package, *options));
  CALRT_TRY(add_graphs(model.get(), *package, CALD_GRAPH_DECODE, options->profiles,
                       options->n_profiles, options->logits_dtype));
  CALRT_TRY(add_graphs(model.get(), *package, CALD_GRAPH_PREFILL, options->chunks,
                       options->n_chunks, options->logits_dtype));
  if (!go_on(*options, total, total)) return fail(Status::CANCELLED, "called off after the load");
  return model;
}

cald_model::~cald_model() {
  if (device == nullptr) return;
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return runs_ == 0; });
  }
  std::lock_guard lock(device->vdev_mutex);
  if (sdk::unload(handle) == 0) device->models = 0;
}

void cald_model::describe(cald_model_info* out) const {
  cald_model_info info{};
  info.n_graphs = static_cast<uint32_t>(graph_list.size());
  info.graphs = graph_list.data();
  info.lanes = lanes;
  info.cells = cells;
  info.vocab = facts.vocab;
  info.compute = CALD_COMPUTE_BF16;
  info.kv_dtype = kv_dtype;
  info.logits_dtype = graphs.front()->logits().dtype;
  info.weight_bytes = facts.weight_bytes;
  info.kv_bytes = facts.kv_bytes;
  answer(out, info);
}

void cald_model::run_begins() {
  std::lock_guard lock(mutex_);
  ++runs_;
}

void cald_model::run_ended() {
  std::lock_guard lock(mutex_);
  if (--runs_ == 0) idle_.notify_all();
}
