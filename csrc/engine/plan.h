// SPDX-License-Identifier: Apache-2.0
// The alphabet between the scheduler (Python) and the runner (native): plain data, no behaviour.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/lanes.h"
#include "sampling/sampler.h"

namespace calrt::engine {

// A request that enters the plan: prefill `tokens` into its lane from cell `position` on, then
// decode until a stop token, the budget, the lane's end, a cancel or the deadline.
struct Start {
  uint64_t request = 0;              // the scheduler's own number, never reused
  kv::LaneRef lane;                  // committed; the runner gives it back before it says ENDED
  uint32_t position = 0;             // cells already filled
  std::vector<int32_t> tokens;       // >= 1
  std::vector<int32_t> history;      // tokens before `position`, for the penalties
  std::vector<int32_t> stop_tokens;  // end the request; not part of the text
  uint32_t max_tokens = 0;           // budget of generated tokens, >= 1
  uint64_t deadline_ns = UINT64_MAX;
  SamplingParams sampling;
};

enum class EventKind : uint8_t {
  STARTED = 1,  // the first prefill job was submitted
  PREFILL = 2,  // value = prompt tokens done
  TOKEN = 3,    // value = token id
  ENDED = 4,    // value = Finish; the lane is free again. Exactly one per Start
};

enum class Finish : int32_t {
  STOP = 1,     // a stop token
  LENGTH = 2,   // the budget
  CONTEXT = 3,  // the lane is full
  CANCELLED = 4,
  DEADLINE = 5,
  FAILED = 6,  // status and text say why
};

struct Event {
  EventKind kind;
  uint64_t request = 0;
  int64_t value = 0;
  uint64_t t_ns = 0;
  float logprob = 0;           // TOKEN with n_probs > 0
  std::vector<TokenProb> top;  // TOKEN with n_probs > 0
  int32_t status = 0;          // ENDED with FAILED
  int64_t native_code = 0;
  std::string text;
};

// What the runner has done since it was made; for metrics.
struct RunnerStatistics {
  uint64_t ticks = 0, chunks = 0, tokens = 0, prompt_tokens = 0, padded_rows = 0, rows = 0;
  uint64_t stale_completions = 0, failed_jobs = 0, events_dropped = 0;
  uint64_t device_ns = 0, sample_ns = 0, idle_ns = 0;
  uint32_t active = 0, prefilling = 0, decoding = 0;
};

}  // namespace calrt::engine
