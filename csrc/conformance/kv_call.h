// SPDX-License-Identifier: Apache-2.0
// KV operations as jobs, and the cells of a lane one by one. One thread.
#pragma once

#include <vector>

#include "conformance/player.h"

namespace calrt::conformance {

// An operation's fields; the buffer is the call's own.
struct KvAsk {
  uint32_t op = 0, lane = 0, to_lane = 0, cell = 0, to_cell = 0, n = 0;
  int32_t delta = 0;
};

// The cells of a lane, each as its bytes: of layer after layer, K then V.
using Cells = std::vector<Bytes>;

class KvCall {
 public:
  explicit KvCall(Kit& kit);  // skips without kv_info and kv_submit

  const cald_kv_info& info() const { return info_; }
  bool can(uint32_t op) const { return (info_.ops & op) != 0; }
  void needs(uint32_t ops) const;  // skips
  cald_kv_desc desc(const KvAsk& ask, const JobAsk& job, Told* told);
  cald_status try_submit(const cald_kv_desc& desc, cald_job** out);
  Job submit(const KvAsk& ask, const JobAsk& job = {});
  void run(const KvAsk& ask);  // to DONE

  // By READ: cells [first, first + n), through a buffer that is guarded.
  Cells read(uint32_t lane, uint32_t first, uint32_t n);
  Cells read(uint32_t lane) { return read(lane, 0, info_.cells); }
  void write(uint32_t lane, uint32_t first, const Cells& cells);
  // K of layer 0 in a cell.
  Bytes first_k(const Bytes& cell) const;
  uint64_t piece() const { return info_.bytes_per_cell / (2 * info_.n_layers); }

 private:
  Kit* kit_;
  cald_kv_info info_{};
};

// Is every cell what is expected? If not, the first that is not breaks the rule.
void same_cells(const Cells& is, const Cells& expected, const char* what);

}  // namespace calrt::conformance
