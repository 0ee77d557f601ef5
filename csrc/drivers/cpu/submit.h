// SPDX-License-Identifier: Apache-2.0
// A job description turned into work: every role, size and value is checked before anything is
// touched, so that a refused job leaves the lanes as they were.
#pragma once

#include <variant>
#include <vector>

#include "drivers/cpu/kv_work.h"
#include "drivers/cpu/model.h"

namespace calrt::cpu {

// Inputs are copied here at submit; later changes to the bound buffers have no effect.
struct GraphWork {
  std::vector<Row> rows;  // without padding
  std::vector<LogitRow> wanted;
  void* logits = nullptr;
};

struct Work {
  std::variant<GraphWork, KvWork> what;
  cald_buffer* output = nullptr;         // what is written to, or null
  uint64_t bytes_in = 0, bytes_out = 0;  // bound: host memory, so what is bound has arrived

  const char* name() const;  // HANDLE of the driver
  uint64_t tokens() const;
  // What its time is spent on: graphs compute, READ and WRITE move.
  uint64_t cald_timing::* stage() const;
  bool run(cald_model& model, Pool& pool, const std::atomic<bool>& cancel) const;
};

Result<Work> read_job(const cald_job_desc& desc);
Result<Work> read_job(const cald_kv_desc& desc);

}  // namespace calrt::cpu
