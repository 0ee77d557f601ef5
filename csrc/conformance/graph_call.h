// SPDX-License-Identifier: Apache-2.0
// One graph with buffers of its own for each role, each bound between two guards. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "conformance/jobs.h"

namespace calrt::conformance {

using Bytes = std::vector<uint8_t>;

// A buffer with guards of `kGuard` before and behind the bytes in use.
class GuardedBuffer {
 public:
  GuardedBuffer(Kit& kit, uint32_t domain, uint64_t bytes, uint64_t align);

  cald_buffer* handle() const { return handle_.get().pointer; }
  uint32_t domain() const { return domain_; }
  uint64_t offset() const { return offset_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t whole_bytes() const { return whole_; }
  void write(const void* from, uint64_t at, uint64_t bytes);
  Bytes read() const;  // the bytes in use
  void fill(uint8_t byte);
  // "" or where a guard was written.
  std::string damage() const;

 private:
  Bytes read_whole() const;
  Kit* kit_;
  BufferHandle handle_;
  uint32_t domain_ = 0;
  uint64_t offset_ = 0, bytes_ = 0, whole_ = 0;
};

class GraphCall {
 public:
  GraphCall(Kit& kit, uint32_t graph);

  const cald_graph& graph() const { return *graph_; }
  const cald_io* io(int32_t role) const;  // null when the graph has no such role
  GuardedBuffer& buffer(int32_t role);
  // Values of an i32 input, from its first; the rest stays.
  void set(int32_t role, const std::vector<int32_t>& values);
  // Binds so many logit_rows; 0 = unbound, and one row of logits returned.
  void bind_rows(const std::vector<int32_t>& rows);

  std::vector<cald_binding>& bindings() { return bindings_; }
  cald_binding& binding(int32_t role);
  cald_job_desc desc(const JobAsk& ask, Told* told);
  Job submit(const JobAsk& ask = {});
  // To its end, which is to be DONE, with the guards as they were.
  void run(const JobAsk& ask = {});
  void check_guards();
  // The elements of one row of logits, in logical order.
  Bytes row(uint32_t index);
  // The logits after the last of `n` valid tokens of a prefill without logit_rows.
  Bytes last_row(uint32_t n);
  uint32_t rows() const { return rows_; }  // of logits that are returned

 private:
  struct Place {
    const cald_io* io;
    GuardedBuffer buffer;
  };
  Kit* kit_;
  uint32_t index_;
  const cald_graph* graph_;
  std::vector<Place> places_;
  std::vector<cald_binding> bindings_;
  uint32_t rows_ = 1;
};

}  // namespace calrt::conformance
