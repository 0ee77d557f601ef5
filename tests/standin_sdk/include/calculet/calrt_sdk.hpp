// SPDX-License-Identifier: Apache-2.0
// A STAND-IN, invented by the calrt project: not the SDK of CalRT 0.7.6. See calrt_sdk.h, whose
// rules hold here word for word: these classes are names for its functions and add nothing. They
// own nothing either: an object is a handle that may be copied, and close() or unload() ends it.
#pragma once

#include "calculet/calrt_sdk.h"

namespace calculet {

using Error = int;  // 0 to 29; 0 = OK

inline Error init() { return calrt_init(); }
inline Error shutdown() { return calrt_shutdown(); }
inline const char* last_error() { return calrt_last_error(); }

// One output of one run. `data` is BORROWED: it is the device's again after Model::release.
class OutputBuf {
 public:
  const void* data() const { return raw_.data; }
  uint64_t bytes() const { return raw_.bytes; }

 private:
  friend class Model;
  calrt_outbuf raw_{};
};

class Model {
 public:
  Model() = default;
  explicit Model(calrt_model* handle) : handle_(handle) {}
  calrt_model* handle() const { return handle_; }

  Error unload() { return calrt_unload_model(handle_); }
  Error info(calrt_model_desc* out) const { return calrt_model_info(handle_, out); }
  Error graph(uint32_t graph, calrt_graph_desc* out) const {
    return calrt_graph_info(handle_, graph, out);
  }
  Error input(uint32_t graph, uint32_t index, calrt_io_desc* out) const {
    return calrt_io_info(handle_, graph, 0, index, out);
  }
  Error output(uint32_t graph, uint32_t index, calrt_io_desc* out) const {
    return calrt_io_info(handle_, graph, 1, index, out);
  }

  // Not blocking. The buffers are LENT until the run has ended.
  Error infer(uint32_t graph, int set, const void* const* inputs, uint64_t* run) {
    return calrt_infer(handle_, graph, set, inputs, run);
  }
  // Blocking, WITHOUT A TIME LIMIT.
  Error Wait(calrt_done* out) { return calrt_wait(handle_, out); }
  Error query(uint64_t run, int* state) const { return calrt_query(handle_, run, state); }
  Error cancel(uint64_t run) { return calrt_cancel(handle_, run); }
  Error bind_set(uint32_t graph, int set, const void* const* inputs) {
    return calrt_bind_set(handle_, graph, set, inputs);
  }

  Error acquire(uint64_t run, OutputBuf* out, uint32_t output = 0) {
    return calrt_outbuf_acquire(handle_, run, output, &out->raw_);
  }
  Error release(uint64_t run) { return calrt_outbuf_release(handle_, run); }
  Error output_state(uint32_t graph, int set, int* state, uint64_t* run) const {
    return calrt_outbuf_state(handle_, graph, set, state, run);
  }

 private:
  calrt_model* handle_ = nullptr;
};

// The cells of a model: arena and KV adapter.
class Kv {
 public:
  explicit Kv(const Model& model) : handle_(model.handle()) {}

  // SPINS when cells are short.
  Error Apply(uint32_t seq, uint32_t n) { return calrt_kv_apply(handle_, seq, n); }
  Error release(uint32_t seq) { return calrt_kv_release(handle_, seq); }
  Error free_cells(uint32_t* out) const { return calrt_kv_free_cells(handle_, out); }
  Error seq_cells(uint32_t seq, uint32_t* out) const {
    return calrt_kv_seq_cells(handle_, seq, out);
  }
  Error copy(uint32_t from, uint32_t to, uint32_t p0, uint32_t p1) {
    return calrt_kv_seq_copy(handle_, from, to, p0, p1);
  }
  Error keep(uint32_t seq) { return calrt_kv_seq_keep(handle_, seq); }
  Error rm(uint32_t seq, uint32_t p0, uint32_t p1) { return calrt_kv_seq_rm(handle_, seq, p0, p1); }
  Error add(uint32_t seq, uint32_t p0, uint32_t p1, int32_t delta) {
    return calrt_kv_seq_add(handle_, seq, p0, p1, delta);
  }
  Error div(uint32_t seq, uint32_t p0, uint32_t p1, uint32_t divisor) {
    return calrt_kv_seq_div(handle_, seq, p0, p1, divisor);
  }
  Error state_get(uint32_t seq, uint32_t p0, uint32_t p1, void* out, uint64_t bytes) const {
    return calrt_kv_state_get(handle_, seq, p0, p1, out, bytes);
  }
  Error state_set(uint32_t seq, uint32_t p0, uint32_t p1, const void* from, uint64_t bytes) {
    return calrt_kv_state_set(handle_, seq, p0, p1, from, bytes);
  }

 private:
  calrt_model* handle_;
};

class VirtualDevice {
 public:
  Error open(uint32_t index) { return calrt_vdev_open(index, &handle_); }
  Error close() { return calrt_vdev_close(handle_); }
  Error info(calrt_vdev_desc* out) const { return calrt_vdev_info(handle_, out); }
  Error chip_memory(uint32_t chip, uint64_t* total, uint64_t* free) const {
    return calrt_vdev_chip_memory(handle_, chip, total, free);
  }
  Error set_parallel_mode(int mode) { return calrt_vdev_set_parallel_mode(handle_, mode); }
  Error parallel_mode(int* mode) const { return calrt_vdev_get_parallel_mode(handle_, mode); }
  Error counters(calrt_counters* out) const { return calrt_vdev_counters(handle_, out); }
  Error load(const char* directory, Model* out) {
    calrt_model* model = nullptr;
    const Error error = calrt_load_model(handle_, directory, &model);
    if (error == 0) *out = Model(model);
    return error;
  }
  Error trace_start(uint32_t capacity) { return calrt_trace_start(handle_, capacity); }
  Error trace_read(calrt_trace_event* out, uint32_t* n, uint64_t* now) {
    return calrt_trace_read(handle_, out, n, now);
  }
  Error trace_stop() { return calrt_trace_stop(handle_); }

 private:
  calrt_vdev* handle_ = nullptr;
};

}  // namespace calculet
