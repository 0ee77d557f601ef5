// SPDX-License-Identifier: Apache-2.0
// A job description turned into work: every role, size and value is checked before anything is
// touched, so that a refused job leaves the lanes as they were.
#pragma once

#include <vector>

#include "drivers/cpu/model.h"

namespace calrt::cpu {

// Inputs are copied here at submit; later changes to the bound buffers have no effect.
struct Work {
  std::vector<Row> rows;  // without padding
  std::vector<LogitRow> wanted;
  void* logits = nullptr;
  cald_buffer* output = nullptr;         // where logits lie
  uint64_t bytes_in = 0, bytes_out = 0;  // bound: host memory, so what is bound has arrived
};

Result<Work> read_job(const cald_job_desc& desc);

}  // namespace calrt::cpu
