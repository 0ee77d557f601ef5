// SPDX-License-Identifier: Apache-2.0
#include "tests/drivers/defective_inputs.h"

#include <algorithm>
#include <atomic>

#include "drivers/mock/buffer.h"
#include "tests/drivers/defective.h"

namespace calrt::defective {

Inputs::Inputs(const cald_model& model, const cald_graph& graph, const cald_job_desc& desc)
    : model_(model), graph_(graph) {
  for (uint32_t b = 0; b < desc.n_bindings; ++b) {
    const cald_binding& binding = desc.bindings[b];
    if (binding.buffer == nullptr || !binding.buffer->holds(binding.offset, binding.bytes))
      continue;
    const Values values{reinterpret_cast<int32_t*>(binding.buffer->data + binding.offset),
                        static_cast<uint32_t>(binding.bytes / 4)};
    switch (binding.role) {
      case CALD_ROLE_TOKENS:
        tokens_ = values;
        break;
      case CALD_ROLE_POSITIONS:
        positions_ = values;
        break;
      case CALD_ROLE_LANES:
        lanes_ = values;
        break;
      case CALD_ROLE_N_VALID:
        n_valid_ = values;
        break;
      case CALD_ROLE_LOGIT_ROWS:
        rows_ = values;
        break;
      default:
        break;
    }
  }
}

void Inputs::set(int32_t* at, int32_t value) {
  before_.emplace_back(at, *at);
  *at = value;
}

void Inputs::restore() {
  for (auto it = before_.rbegin(); it != before_.rend(); ++it) *it->first = it->second;
  before_.clear();
}

void Inputs::misread() {
  if (!tokens_ || !positions_) return;
  misread_tokens();
  if (lanes_) misread_lanes();
  misread_rows();
}

void Inputs::misread_tokens() {
  const bool prefill = graph_.kind == CALD_GRAPH_PREFILL;
  const auto vocab = static_cast<int32_t>(model_.plan.vocab);
  const auto other = [&](uint32_t i) { set(&tokens_[i], (tokens_[i] + 1) % vocab); };
  const auto valid = static_cast<uint32_t>(n_valid_ ? n_valid_[0] : graph_.chunk);
  if (is("loses_a_token") && prefill && valid > 4) set(&tokens_[2], 0);
  if (is("loses_the_middle") && prefill && positions_[0] != 0 && valid > 4)
    for (uint32_t i = 0; i < valid; ++i) set(&tokens_[i], 0);
  if (is("lane_2_differs") && lanes_ && lanes_[0] == 2) other(0);
  if (is("chunk_64_differs") && graph_.chunk == 64) other(0);
  if (is("chunk_positions") && prefill && positions_[0] != 0)
    for (uint32_t i = 0; i < valid; ++i) set(&positions_[i], static_cast<int32_t>(i));
  if (is("batch_4_differs") && graph_.batch == 4) other(0);
  if (is("company_matters") && lanes_ && !prefill && graph_.batch > 1 && lanes_[1] >= 0) other(0);
  if (is("remembers") && !prefill && lanes_) {
    unsigned char cell[mock::kCellBytes] = {};
    const int32_t lane = lanes_[0];
    if (lane < 0 || positions_[0] < 0) return;
    model_.cells.read(static_cast<uint32_t>(lane), static_cast<uint32_t>(positions_[0]), 1, cell);
    if (cell[4] % 2 == 1) other(0);
  }
  if (is("changes_input")) tokens_[0] = (tokens_[0] + 1) % vocab;
}

void Inputs::misread_lanes() {
  const bool prefill = graph_.kind == CALD_GRAPH_PREFILL;
  if (is("lane_mixed_up") && prefill && lanes_[0] == 1) set(&lanes_[0], 0);
  if (is("padding_writes"))
    for (uint32_t i = 0; i < lanes_.count; ++i) {
      const bool taken =
          std::find(lanes_.at, lanes_.at + lanes_.count, 0) != lanes_.at + lanes_.count;
      if (lanes_[i] == -1 && !taken) set(&lanes_[i], 0);
    }
  if (is("padding_shifts") && !prefill && lanes_.count > 1 && lanes_[0] < 0)
    for (uint32_t i = 1; i < lanes_.count; ++i)
      if (lanes_[i] >= 0) set(&tokens_[i], tokens_[0]);
  if (is("lanes_are_rows") && !prefill && lanes_.count >= 2 && lanes_[0] >= 0 && lanes_[1] >= 0)
    for (uint32_t i = 0; i < lanes_.count; ++i)
      if (lanes_[i] >= 0) set(&lanes_[i], static_cast<int32_t>(i));
  if (is("row_stays_in_lane")) {
    static std::atomic<int32_t> filled = -1;  // the lane of the last prefill
    if (prefill) filled = lanes_[0];
    if (!prefill && graph_.batch == 1 && filled >= 0) set(&lanes_[0], filled);
  }
}

void Inputs::misread_rows() {
  if (n_valid_ && is("ignores_n_valid") &&
      static_cast<uint32_t>(positions_[0]) + graph_.chunk <= model_.plan.cells) {
    for (uint32_t i = static_cast<uint32_t>(n_valid_[0]); i < graph_.chunk; ++i)
      set(&positions_[i], positions_[0] + static_cast<int32_t>(i));
    set(&n_valid_[0], static_cast<int32_t>(graph_.chunk));
  }
  if (n_valid_ && !rows_ && is("first_row_by_default") && n_valid_[0] > 1) set(&n_valid_[0], 1);
  if (!rows_ || !n_valid_) return;
  if (is("last_row_always"))
    for (uint32_t r = 0; r < rows_.count; ++r) set(&rows_[r], n_valid_[0] - 1);
  if (is("rows_sorted")) {
    std::vector<int32_t> sorted(rows_.at, rows_.at + rows_.count);
    std::sort(sorted.begin(), sorted.end());
    for (uint32_t r = 0; r < rows_.count; ++r) set(&rows_[r], sorted[r]);
  }
}

}  // namespace calrt::defective
