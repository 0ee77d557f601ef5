// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/sdk_contact.h"

#include <calculet/calrt_sdk.h>

#include <cstring>
#include <map>

#define TRY(call) \
  if (const Number error = (call); error != 0) return error

namespace calrt::calrt076::sdk {
static_assert(kOutbufState == CALRT_E_OUTBUF_STATE && kKvFull == CALRT_E_KV_FULL);

const std::vector<Assumption>& assumptions() {
  static const std::vector<Assumption> all = {
      {"explicit_positions", 1, 1, "SDK header: position_ids of each run"},
      {"lane_map_any", 1, 1, "SDK header: seq_id of each run"},
      {"n_valid", 1, 1, "SDK header: n_valid of a prefill graph"},
      {"sdk.one_device", 0, 1, "index of the device: one VirtualDevice, its chiplets are parts"},
      {"sdk.numbers", 1, 30, "SDK header: 0 to 29, in calrt's words by status-map.toml"},
      {"sdk.directory", 1, 1, "SDK header: loads the directory that holds a package's files"},
      {"sdk.load", 1, 1, "SDK header: 1 model, parallel mode set before, no progress, no stop"},
      {"sdk.layout", 1, 1, "SDK header: tiles of columns, each with all padded rows"},
      {"sdk.infer", 0, 1, "index of the device: infer() returns at once"},
      {"sdk.inputs_lent", 1, 1, "SDK header: inputs are read until the run has ended"},
      {"sdk.wait", 1, 1, "SDK header: no time limit; tells of any run, by a number used once"},
      {"sdk.outputbuf", 1, 1, "SDK header: what is acquired is stable until it is released"},
      {"sdk.apply", 1, 1, "SDK header: spins when full, so the free cells are asked before"},
      {"sdk.kv_adapter", 1, 0, "SDK header: copy, keep, add, div, state; in part without effect"},
  };
  return all;
}
std::string last_text() { return calrt_last_error(); }
std::string version() { return calrt_version(); }
Number init() { return calrt_init(); }
Number shutdown() { return calrt_shutdown(); }
Number count(uint32_t* devices) { return calrt_vdev_count(devices); }
Number open(uint32_t index, calrt_vdev** out) { return calrt_vdev_open(index, out); }
Number close(calrt_vdev* device) { return calrt_vdev_close(device); }
Number describe(calrt_vdev* device, DeviceFacts* out) {
  calrt_vdev_desc desc{};
  TRY(calrt_vdev_info(device, &desc));
  const std::vector<uint64_t> chips(desc.chips);
  *out = {desc.name, chips, chips};
  for (uint32_t i = 0; i < desc.chips; ++i)
    TRY(calrt_vdev_chip_memory(device, i, &out->chip_bytes[i], &out->chip_free[i]));
  return 0;
}
Number load(calrt_vdev* device, bool tensor, const std::string& directory, calrt_model** out) {
  TRY(calrt_vdev_set_parallel_mode(device, tensor ? CALRT_PARALLEL_TENSOR : CALRT_PARALLEL_NONE));
  return calrt_load_model(device, directory.c_str(), out);
}
Number unload(calrt_model* model) { return calrt_unload_model(model); }

static const std::map<int32_t, int32_t> kDtypes = {
    {CALRT_DT_F32, CALD_F32}, {CALRT_DT_BF16, CALD_BF16}, {CALRT_DT_I32, CALD_I32}};
static const std::map<int32_t, int32_t> kKinds = {{CALRT_GRAPH_PREFILL, CALD_GRAPH_PREFILL},
                                                  {CALRT_GRAPH_DECODE, CALD_GRAPH_DECODE}};
static const std::map<std::string, int32_t> kRoles = {{"input_ids", CALD_ROLE_TOKENS},
                                                      {"position_ids", CALD_ROLE_POSITIONS},
                                                      {"seq_id", CALD_ROLE_LANES},
                                                      {"n_valid", CALD_ROLE_N_VALID},
                                                      {"logits", CALD_ROLE_LOGITS}};
static int32_t word(const auto& words, const auto& theirs) {
  return words.count(theirs) != 0 ? words.at(theirs) : 0;
}
Number describe(calrt_model* model, ModelFacts* out) {
  calrt_model_desc is{};
  TRY(calrt_model_info(model, &is));
  *out = {is.vocab,        is.context,  is.kv_cells, is.kv_seqs, word(kDtypes, is.kv_dtype),
          is.weight_bytes, is.kv_bytes, {}};
  for (uint32_t g = 0; g < is.graphs; ++g) {
    calrt_graph_desc graph{};
    TRY(calrt_graph_info(model, g, &graph));
    out->graphs.push_back({word(kKinds, graph.kind), graph.rows, {}});
    for (const int output : {0, 1})
      for (uint32_t i = 0; i < (output != 0 ? graph.outputs : graph.inputs); ++i) {
        calrt_io_desc io{};
        TRY(calrt_io_info(model, g, output, i, &io));
        out->graphs.back().io[output].push_back(
            {io.name, word(kRoles, std::string(io.name)), word(kDtypes, io.dtype), io.rank,
             std::to_array(io.dims), std::to_array(io.padded), io.d0, io.align, io.bytes});
      }
  }
  return 0;
}
Number infer(calrt_model* model, uint32_t graph, const void* const* inputs, uint64_t* run) {
  return calrt_infer(model, graph, CALRT_PING, inputs, run);
}
Number wait(calrt_model* model, uint64_t* run, Number* error) {
  calrt_done done{};
  TRY(calrt_wait(model, &done));
  *run = done.run;
  *error = done.error;
  return 0;
}

Number query(calrt_model* model, uint64_t run, RunState* out) {
  int state = CALRT_RUN_QUEUED;
  TRY(calrt_query(model, run, &state));
  const bool live = state == CALRT_RUN_QUEUED || state == CALRT_RUN_RUNNING;
  *out = live ? RunState::LIVE : state == CALRT_RUN_DONE ? RunState::DONE : RunState::FAILED;
  return 0;
}
static Number outbuf_is(calrt_model* model, uint32_t graph, uint64_t run, int wanted) {
  int state = 0;
  uint64_t holder = 0;
  TRY(calrt_outbuf_state(model, graph, CALRT_PING, &state, &holder));
  return state == wanted && holder == run ? 0 : Number{CALRT_E_OUTBUF_STATE};
}
Number output(calrt_model* model, uint32_t graph, uint64_t run, void* to, uint64_t bytes) {
  TRY(outbuf_is(model, graph, run, CALRT_OUTBUF_READY));
  calrt_outbuf borrowed{};
  TRY(calrt_outbuf_acquire(model, run, 0, &borrowed));
  const bool whole = borrowed.data != nullptr && borrowed.bytes >= bytes;
  if (whole) std::memcpy(to, borrowed.data, bytes);
  const Number held = whole ? outbuf_is(model, graph, run, CALRT_OUTBUF_ACQUIRED) : kOutbufState;
  const Number released = calrt_outbuf_release(model, run);
  return held != 0 ? held : released;
}
Number apply(calrt_model* model, uint32_t sequence, uint32_t n) {
  uint32_t have = 0, free = 0;
  TRY(calrt_kv_seq_cells(model, sequence, &have));
  if (have >= n) return 0;
  TRY(calrt_kv_free_cells(model, &free));
  return n - have > free ? Number{CALRT_E_KV_FULL} : calrt_kv_apply(model, sequence, n);
}

}  // namespace calrt::calrt076::sdk
