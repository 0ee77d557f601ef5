// SPDX-License-Identifier: Apache-2.0
// What a job does: a run of a graph or a KV operation, checked when it is made.
#pragma once

#include <cstdint>
#include <memory>

#include "drivers/mock/buffer.h"
#include "drivers/mock/model.h"

namespace calrt::mock {

// What a job takes on the device, in ns of the tables.
struct Stages {
  uint64_t in_ns = 0, run_ns = 0, out_ns = 0;
};

// Made by submit, begun and finished by the session, in the order in which its jobs run.
class Work {
 public:
  virtual ~Work() = default;
  // Takes the inputs as they are now. An error fails the job, and nothing is written.
  virtual Result<void> begin() = 0;
  // Writes cells and outputs, all of them.
  virtual void finish() = 0;

  cald_model* model() const { return model_; }
  const char* name() const { return name_; }  // of its middle stage, for the trace
  const Stages& stages() const { return stages_; }
  uint64_t bytes_in() const { return bytes_in_; }  // bound
  uint64_t bytes_out() const { return bytes_out_; }
  // Tells the output buffer, if there is one, where it stands.
  void mark_output(int32_t state, uint64_t job_seq) {
    if (output_ != nullptr) output_->set_output_state(state, job_seq);
  }

 protected:
  Work(cald_model* model, const char* name) : model_(model), name_(name) {}
  // Charges a binding to the link, unless it lies in the device's memory.
  void count_in(const cald_buffer& buffer, uint64_t bytes);
  void count_out(cald_buffer* buffer, uint64_t bytes);
  void set_stages(uint64_t run_ns);

  cald_model* model_;

 private:
  const char* name_;
  Stages stages_;
  uint64_t bytes_in_ = 0, bytes_out_ = 0, link_in_ = 0, link_out_ = 0;
  cald_buffer* output_ = nullptr;
};

// Everything that can be known at submit is checked, values of inputs too: what is refused changes
// nothing. They are read again when the job begins.
Result<std::unique_ptr<Work>> make_graph_work(const cald_device& device, const cald_job_desc& desc);
Result<std::unique_ptr<Work>> make_kv_work(const cald_device& device, const cald_kv_desc& desc);
Result<std::unique_ptr<cald_binding_set>> make_binding_set(cald_model* model, uint32_t graph,
                                                           const cald_binding* bindings,
                                                           uint32_t n_bindings);

}  // namespace calrt::mock
