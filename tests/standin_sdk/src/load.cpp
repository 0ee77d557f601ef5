// SPDX-License-Identifier: Apache-2.0
// A model from a directory. What stands for the vendor's files is a package of calrt, of which the
// manifest is read: vocabulary, context, chunks and parallel mode.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "layout/layout.h"
#include "state.h"

namespace calrt::standin {
namespace {

using nlohmann::json;

constexpr uint64_t kTile = 16, kPaddedRows = 4;  // D0, and the rows that lie beside the one
constexpr uint32_t kMost = 1u << 20;             // of vocabulary and context

struct Facts {
  uint32_t vocab = 0, context = 0;
  std::vector<uint32_t> chunks;
  std::string mode;
  uint64_t bytes = 0;  // of all files
};

int read_facts(const std::filesystem::path& directory, Facts* facts) {
  std::ifstream file(directory / "manifest.json");
  if (!file) return refuse(CALRT_E_FILE_MISSING, "%s: no model's directory", directory.c_str());
  const json manifest = json::parse(file);
  const json& model = manifest.at("model");
  facts->vocab = model.at("vocab").get<uint32_t>();
  facts->context = model.at("context").get<uint32_t>();
  for (const json& graph : manifest.at("graphs"))
    if (graph.at("kind") == "prefill")
      facts->chunks = graph.at("chunk").get<std::vector<uint32_t>>();
  facts->mode = manifest.value("/parallelism/mode"_json_pointer, "none");
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.is_regular_file()) facts->bytes += entry.file_size();
  const bool sound =
      facts->vocab > 0 && facts->vocab <= kMost && facts->context > 0 && facts->context <= kMost;
  return sound ? 0
               : refuse(CALRT_E_FILE_FORMAT, "vocab=%u context=%u", facts->vocab, facts->context);
}

calrt_io_desc input(const char* name, uint64_t n) {
  return {name, CALRT_DT_I32, 1, {n}, {n}, 0, 4, 4 * n};
}

// What lies in memory as calrt_sdk.h says of an output of d0 = kTile.
int make_output(uint64_t vocab, Graph* graph) {
  const bool other = due("d0_padding").has_value();
  const uint64_t rows = other ? kPaddedRows + 3 : kPaddedRows;
  const uint64_t tiles = (vocab + kTile - 1) / kTile + (other ? 1 : 0);
  auto layout = tiled_layout(CALD_BF16, {1, vocab}, 1, kTile, {-1, 0, -2}, {rows, tiles * kTile});
  if (!layout) return refuse(CALRT_E_FILE_FORMAT, "%s", layout.error().message.c_str());
  cald_io io{};
  io.struct_size = sizeof io;
  io.role = CALD_ROLE_LOGITS;
  io.dtype = CALD_BF16;
  io.rank = 2;
  io.shape[0] = 1;
  io.shape[1] = vocab;
  io.layout = *layout;
  auto logits = mock::LogitRows::make(io);
  if (!logits) return refuse(CALRT_E_FILE_FORMAT, "%s", logits.error().message.c_str());
  graph->logits = std::move(*logits);
  graph->output = {"logits", CALRT_DT_BF16, 2, {1, vocab}, {rows, tiles * kTile}, uint32_t{kTile},
                   64,       layout->bytes};
  for (OutBuf& outbuf : graph->outbufs) outbuf.data.assign(layout->bytes, 0xff);
  return 0;
}

int add_graph(calrt_model* model, int32_t kind, uint32_t rows) {
  const bool decode = kind == CALRT_GRAPH_DECODE;
  auto graph = std::make_unique<Graph>();
  graph->name = (decode ? "decode_b" : "prefill_t") + std::to_string(rows);
  graph->kind = kind;
  graph->rows = rows;
  graph->inputs = {input("input_ids", rows), input("position_ids", rows), input("seq_id", 1)};
  if (!decode) graph->inputs.push_back(input("n_valid", 1));
  STANDIN_CHECK(make_output(model->desc.vocab, graph.get()));
  model->graphs.push_back(std::move(graph));
  return 0;
}

int load(calrt_vdev* device, const char* directory, std::unique_ptr<calrt_model>* out) {
  Facts facts;
  STANDIN_CHECK(read_facts(directory, &facts));
  const bool tensor = facts.mode == "tensor";
  if (tensor != (device->mode == CALRT_PARALLEL_TENSOR))
    return refuse(CALRT_E_FILE_VERSION, "compiled for parallel mode %s, the device is in mode %d",
                  facts.mode.c_str(), device->mode);
  auto model = std::make_unique<calrt_model>(device, facts.context);
  model->desc.vocab = facts.vocab;
  model->desc.weight_bytes = facts.bytes;
  STANDIN_CHECK(add_graph(model.get(), CALRT_GRAPH_DECODE, 1));
  for (const uint32_t chunk : facts.chunks)
    STANDIN_CHECK(add_graph(model.get(), CALRT_GRAPH_PREFILL, chunk));
  model->desc.graphs = static_cast<uint32_t>(model->graphs.size());
  model->worker = std::thread([raw = model.get()] { raw->work(); });
  *out = std::move(model);
  return 0;
}

int check_graph(const calrt_model& model, uint32_t graph) {
  if (graph < model.graphs.size()) return 0;
  return refuse(CALRT_E_IO_INDEX, "graph=%u of %zu", graph, model.graphs.size());
}

}  // namespace
}  // namespace calrt::standin

using namespace calrt::standin;

calrt_model::calrt_model(calrt_vdev* on, uint32_t context)
    : device(on),
      cells(kSequences, context),
      noise(CALD_BF16),
      taken(kSequences),
      free_cells(context) {
  desc.context = desc.kv_cells = context;
  desc.kv_seqs = kSequences;
  desc.kv_cell_bytes = calrt::mock::kCellBytes;
  desc.kv_layers = 1;
  desc.kv_dtype = CALRT_DT_I32;
  desc.kv_bytes = calrt::mock::kCellBytes * context;
}

// Without the lock: the worker may need it to see that it shall end.
calrt_model::~calrt_model() {
  if (!worker.joinable()) return;  // never loaded
  {
    Lock lock(runtime().mutex);
    closing = true;
    changed.notify_all();
    changed.wait(lock, [this] { return waiting == 0; });
  }
  worker.join();
}

int calrt_load_model(calrt_vdev* vdev, const char* directory, calrt_model** out) {
  STANDIN_ENTER(load_model);
  STANDIN_CHECK(check_device(vdev));
  if (directory == nullptr || out == nullptr)
    return refuse(CALRT_E_ARGUMENT, "directory or out is null");
  if (vdev->model != nullptr) return refuse(CALRT_E_MODEL_LIMIT, "one model is loaded already");
  try {
    STANDIN_CHECK(load(vdev, directory, &vdev->model));
  } catch (const std::exception& error) {
    return refuse(CALRT_E_FILE_FORMAT, "%s: %s", directory, error.what());
  }
  *out = vdev->model.get();
  return 0;
}

int calrt_unload_model(calrt_model* model) {
  std::unique_ptr<calrt_model> unloaded;  // ends after the lock
  STANDIN_ENTER(unload_model);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_idle(*model, "unload"));
  runtime().device->trace.events.clear();  // their names are the model's
  unloaded = std::move(runtime().device->model);
  return 0;
}

int calrt_model_info(calrt_model* model, calrt_model_desc* out) {
  STANDIN_ENTER(model_info);
  STANDIN_CHECK(check_model(model));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  *out = model->desc;
  return 0;
}

int calrt_graph_info(calrt_model* model, uint32_t graph, calrt_graph_desc* out) {
  STANDIN_ENTER(graph_info);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_graph(*model, graph));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  const Graph& of = *model->graphs[graph];
  *out = {of.name.c_str(), of.kind, of.rows, static_cast<uint32_t>(of.inputs.size()), 1};
  return 0;
}

int calrt_io_info(calrt_model* model, uint32_t graph, int output, uint32_t index,
                  calrt_io_desc* out) {
  STANDIN_ENTER(io_info);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_graph(*model, graph));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  const Graph& of = *model->graphs[graph];
  const size_t count = output != 0 ? 1 : of.inputs.size();
  if (index >= count)
    return refuse(CALRT_E_IO_INDEX, "%s: index=%u of %zu", of.name.c_str(), index, count);
  *out = output != 0 ? of.output : of.inputs[index];
  return 0;
}
