/* SPDX-License-Identifier: Apache-2.0
 * null's models. A package is CALL: everything that is kept must be copied. What is copied here
 * (graphs with their inputs and outputs) is what model_info must be able to show; a real driver
 * also reads the weights from package->artifacts[package->weights].fd, packs them its own way, and
 * makes room for options->lanes x options->cells of KV. */
#include <string.h>

#include "null_driver.h"

static int chosen(uint32_t value, const uint32_t* list, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i)
    if (list[i] == value) return 1;
  return 0;
}

/* The package describes its graphs at the largest geometry; the load asks for some of them. */
static int wanted(const cald_graph* graph, const cald_load_options* options) {
  return graph->kind == CALD_GRAPH_DECODE
             ? chosen(graph->batch, options->profiles, options->n_profiles)
             : chosen(graph->chunk, options->chunks, options->n_chunks);
}

static char* copy_text(const cald_device* device, const char* text) {
  const size_t bytes = strlen(text) + 1;
  char* copy = null_alloc(device, bytes);
  if (copy != NULL) memcpy(copy, text, bytes);
  return copy;
}

static void free_ios(const cald_device* device, const cald_io* const* ios, uint32_t count) {
  for (uint32_t i = 0; ios != NULL && i < count; ++i) null_free(device, (void*)ios[i]);
  null_free(device, (void*)ios);
}

static void free_graph(const cald_device* device, const cald_graph* graph) {
  if (graph == NULL) return;
  free_ios(device, graph->inputs, graph->n_inputs);
  free_ios(device, graph->outputs, graph->n_outputs);
  null_free(device, (void*)graph->name);
  null_free(device, (void*)graph->share_group);
  null_free(device, (void*)graph);
}

/* The logits' dtype is a load option: a layout for it, row-major. Rows and columns are known to be
 * small enough not to overflow, since the package was validated. */
static void set_logits(cald_io* io, int32_t dtype) {
  const uint64_t size = dtype == CALD_F32 ? 4 : 2;
  uint64_t stride = size;
  io->dtype = dtype;
  memset(&io->layout, 0, sizeof io->layout);
  io->layout.n_axes = io->rank;
  for (uint32_t i = io->rank; i-- > 0;) {
    const cald_axis axis = {i, 0, 1, 0, io->shape[i], stride};
    io->layout.axes[i] = axis;
    stride *= io->shape[i];
  }
  io->layout.bytes = stride;
}

static const cald_io* const* copy_ios(const cald_device* device, const cald_io* const* ios,
                                      uint32_t count, const cald_load_options* options) {
  const cald_io** copies = null_alloc(device, (count + 1) * sizeof *copies);
  for (uint32_t i = 0; copies != NULL && i < count; ++i) {
    cald_io* io = null_alloc(device, sizeof *io);
    if (io == NULL) {
      free_ios(device, copies, count);
      return NULL;
    }
    io->struct_size = sizeof *io;
    null_answer(io, ios[i], ios[i]->struct_size); /* a newer calrt's io may be longer than ours */
    io->domains = CALD_DOMAIN_HOST;               /* what this driver can bind */
    if (io->role == CALD_ROLE_LOGITS && io->dtype != options->logits_dtype)
      set_logits(io, options->logits_dtype);
    copies[i] = io;
  }
  return copies;
}

static cald_graph* copy_graph(const cald_device* device, const cald_graph* from,
                              const cald_load_options* options) {
  cald_graph* graph = null_alloc(device, sizeof *graph);
  if (graph == NULL) return NULL;
  graph->struct_size = sizeof *graph;
  null_answer(graph, from, from->struct_size);
  graph->name = copy_text(device, from->name);
  graph->share_group = copy_text(device, from->share_group);
  graph->inputs = copy_ios(device, from->inputs, from->n_inputs, options);
  graph->outputs = copy_ios(device, from->outputs, from->n_outputs, options);
  if (graph->name != NULL && graph->share_group != NULL && graph->inputs != NULL &&
      graph->outputs != NULL)
    return graph;
  free_graph(device, graph);
  return NULL;
}

/* Answers before anything is allocated, so that a load that cannot fit is never begun. */
cald_status null_model_footprint(cald_device* device, const cald_package* package,
                                 const cald_load_options* options, cald_footprint* out,
                                 cald_error* err) {
  (void)device, (void)package, (void)options, (void)err;
  const cald_footprint nothing = {.struct_size = sizeof nothing};
  null_answer(out, &nothing, sizeof nothing);
  return CALD_OK;
}

cald_status null_model_load(cald_device* device, const cald_package* package,
                            const cald_load_options* options, cald_model** out, cald_error* err) {
  /* A real driver calls this at least twice a second, and stops when the answer is not 0. */
  if (options->progress != NULL && options->progress(options->user, 0, 0) != 0)
    return null_fail(err, CALD_CANCELLED, "model_load", "the load was cancelled");

  cald_model* model = null_alloc(device, sizeof *model);
  if (model == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "model_load", "no memory for the model");
  model->device = device;
  model->graphs = null_alloc(device, (package->n_graphs + 1) * sizeof *model->graphs);
  uint32_t count = 0;
  for (uint32_t i = 0; model->graphs != NULL && i < package->n_graphs; ++i) {
    if (!wanted(package->graphs[i], options)) continue;
    model->graphs[count] = copy_graph(device, package->graphs[i], options);
    if (model->graphs[count] == NULL) break;
    model->info.n_graphs = ++count;
  }
  uint32_t asked = 0;
  for (uint32_t i = 0; i < package->n_graphs; ++i)
    asked += (uint32_t)wanted(package->graphs[i], options);
  if (model->graphs == NULL || count != asked) {
    null_model_unload(model);
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "model_load", "no memory for the graphs");
  }
  if (count == 0) {
    null_model_unload(model);
    return null_fail(
        err, CALD_INVALID_ARGUMENT, "model_load",
        "none of the package's %u graphs is among the %u profiles and %u chunks asked for",
        package->n_graphs, options->n_profiles, options->n_chunks);
  }
  model->info.struct_size = sizeof model->info;
  model->info.graphs = model->graphs;
  model->info.lanes = options->lanes;
  model->info.cells = options->cells;
  model->info.vocab = package->arch->vocab;
  model->info.compute = options->compute;
  model->info.kv_dtype = options->kv_dtype;
  model->info.logits_dtype = options->logits_dtype;
  model->layers = package->arch->layers;
  *out = model;
  return CALD_OK;
}

void null_model_unload(cald_model* model) {
  if (model == NULL) return;
  for (uint32_t i = 0; i < model->info.n_graphs; ++i) free_graph(model->device, model->graphs[i]);
  null_free(model->device, model->graphs);
  null_free(model->device, model);
}

cald_status null_model_info(cald_model* model, cald_model_info* out, cald_error* err) {
  (void)err;
  null_answer(out, &model->info, sizeof model->info);
  return CALD_OK;
}

/* Which KV operations the loaded model can do, and how large a cell is. A driver that moves no KV
 * leaves kv_info and kv_submit NULL. */
cald_status null_kv_info(cald_model* model, cald_kv_info* out, cald_error* err) {
  (void)err;
  const cald_kv_info kv = {
      .struct_size = sizeof kv,
      .ops = CALD_KV_CLEAR | CALD_KV_LANE_COPY | CALD_KV_RANGE_COPY,
      .lanes = model->info.lanes,
      .cells = model->info.cells,
      .dtype = model->info.kv_dtype,
      .n_layers = model->layers,
      .bytes_per_cell = 0, /* a cell of null holds nothing */
  };
  null_answer(out, &kv, sizeof kv);
  return CALD_OK;
}
