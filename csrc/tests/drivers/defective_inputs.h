// SPDX-License-Identifier: Apache-2.0
// A job's inputs, changed as a device would misread them.
#pragma once

#include <cstdint>
#include <vector>

#include "drivers/mock/model.h"

namespace calrt::defective {

class Inputs {
 public:
  Inputs(const cald_model& model, const cald_graph& graph, const cald_job_desc& desc);

  // Changes what the device will read, by the defect.
  void misread();
  // Puts back what the host had written.
  void restore();

 private:
  struct Values {
    int32_t* at = nullptr;
    uint32_t count = 0;
    explicit operator bool() const { return at != nullptr; }
    int32_t& operator[](uint32_t i) const { return at[i]; }
  };
  void set(int32_t* at, int32_t value);
  void misread_tokens();
  void misread_lanes();
  void misread_rows();

  const cald_model& model_;
  const cald_graph& graph_;
  Values tokens_, positions_, lanes_, n_valid_, rows_;
  std::vector<std::pair<int32_t*, int32_t>> before_;
};

}  // namespace calrt::defective
