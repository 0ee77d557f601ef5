// SPDX-License-Identifier: Apache-2.0
// The CPU sampler chain: penalties, top-k, top-p, min-p, temperature, draw. One per request, so a
// request's draws depend on its seed alone. Not thread-safe; allocates only when made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/result.h"
#include "sampling/logits_view.h"

namespace calrt {

struct SamplingParams {
  float temperature = 0.8f;  // 0 = greedy
  int32_t top_k = 40;        // 0 = all
  float top_p = 0.95f;       // 1 = off
  float min_p = 0.05f;       // 0 = off
  float repeat_penalty = 1.0f;
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int32_t repeat_last_n = 64;  // 0 = off, -1 = the whole context
  uint32_t seed = 0;
  uint32_t n_probs = 0;  // alternatives reported per token, 0 = none
  std::vector<std::pair<int32_t, float>> logit_bias;
};

struct TokenProb {
  int32_t token;
  float logprob;
};

struct Sampled {
  int32_t token = -1;  // -1: no finite logit (the device's answer cannot be right)
  float logprob = 0;   // log softmax of the raw logits; filled only when n_probs > 0
};

// Columns searched as one block.
inline constexpr uint32_t kLogitBlock = 128;

class Sampler {
 public:
  // INVALID_ARGUMENT / OUT_OF_RANGE naming the field.
  static Result<Sampler> make(const SamplingParams& params, uint32_t vocab);
  // Tells the penalties of a token that is in the context (prompt or generated).
  void accept(int32_t token);
  // The next token; does not accept() it. `top`, if given, receives the n_probs best alternatives.
  Sampled sample(const LogitsView& logits, std::vector<TokenProb>* top = nullptr);

 private:
  Sampler() = default;
  template <class T>
  void select(const T* row, uint32_t tokens, uint32_t k);
  void select(const LogitsView& logits, uint32_t k);
  Sampled draw();
  void sort_to(size_t n);
  size_t cut_top_p(size_t n);
  size_t cut_min_p(size_t n);
  void edit_row(const LogitsView& logits);
  void penalise();
  void report(const LogitsView& logits, std::vector<TokenProb>* top);

  SamplingParams params_;
  uint32_t vocab_ = 0;
  bool penalties_ = false;
  std::mt19937 rng_;
  // The last repeat_last_n tokens, a ring once full; with -1 each token of the context once.
  std::vector<int32_t> recent_;
  size_t recent_at_ = 0;
  std::vector<uint32_t> counts_;                       // of each token in recent_
  std::vector<std::pair<float, int32_t>> candidates_;  // scratch: logit, token
  size_t sorted_ = 0;                                  // candidates_ in order so far
  std::vector<int32_t> blocks_, ranks_;                // scratch: best key of each block
  std::vector<float> row_;                             // scratch: edited F32 logits
  double log_sum_ = 0;                                 // of the raw row, when n_probs > 0
};

}  // namespace calrt
