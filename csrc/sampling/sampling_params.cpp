// SPDX-License-Identifier: Apache-2.0
// What a request may ask of the sampler. Nothing is clamped here: an edge that wants llama-server's
// soft limits applies them first.
#include <algorithm>
#include <cmath>

#include "sampling/sampler.h"

namespace calrt {

namespace {

// Room made at once for the window of the penalties; a wider one grows with the context.
constexpr size_t kReserveRecent = 4096;

Result<void> check_finite(const char* field, float value) {
  if (std::isfinite(value)) return {};
  return fail(Status::INVALID_ARGUMENT, "%s=%g: must be a finite number", field, double{value});
}

Result<void> check_share(const char* field, float value) {
  CALRT_TRY(check_finite(field, value));
  if (value >= 0 && value <= 1) return {};
  return fail(Status::OUT_OF_RANGE, "%s=%g: must be from 0 to 1", field, double{value});
}

Result<void> check_params(const SamplingParams& p, uint32_t vocab) {
  if (vocab == 0) return fail(Status::INVALID_ARGUMENT, "vocab=0: the model has no tokens");
  CALRT_TRY(check_finite("temperature", p.temperature));
  CALRT_TRY(check_share("top_p", p.top_p));
  CALRT_TRY(check_share("min_p", p.min_p));
  CALRT_TRY(check_finite("repeat_penalty", p.repeat_penalty));
  CALRT_TRY(check_finite("presence_penalty", p.presence_penalty));
  CALRT_TRY(check_finite("frequency_penalty", p.frequency_penalty));
  if (p.repeat_penalty <= 0) {
    return fail(Status::OUT_OF_RANGE, "repeat_penalty=%g: must be above 0 (1 = off)",
                double{p.repeat_penalty});
  }
  if (p.top_k < 0) {
    return fail(Status::OUT_OF_RANGE, "top_k=%d: must be 0 (all) or more", p.top_k);
  }
  if (p.repeat_last_n < -1) {
    return fail(Status::OUT_OF_RANGE,
                "repeat_last_n=%d: must be -1 (the whole context), 0 (off) or more",
                p.repeat_last_n);
  }
  for (size_t i = 0; i < p.logit_bias.size(); ++i) {
    const auto [token, bias] = p.logit_bias[i];
    if (token < 0 || static_cast<uint32_t>(token) >= vocab) {
      return fail(Status::OUT_OF_RANGE, "logit_bias[%zu]: token %d is not in the vocabulary of %u",
                  i, token, vocab);
    }
    if (std::isnan(bias) || bias == INFINITY) {
      return fail(Status::INVALID_ARGUMENT, "logit_bias[%zu]=%g: must be a number or -inf", i,
                  double{bias});
    }
  }
  return {};
}

}  // namespace

Result<Sampler> Sampler::make(const SamplingParams& params, uint32_t vocab) {
  CALRT_TRY(check_params(params, vocab));
  Sampler sampler;
  sampler.params_ = params;
  sampler.vocab_ = vocab;
  sampler.rng_.seed(params.seed);
  sampler.penalties_ =
      params.repeat_last_n != 0 &&
      (params.repeat_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0);
  sampler.candidates_.reserve(vocab);
  sampler.blocks_.reserve(vocab / kLogitBlock + 1);
  sampler.ranks_.reserve(vocab / kLogitBlock + 1);
  if (sampler.penalties_) {
    sampler.counts_.resize(vocab);
    const size_t window = params.repeat_last_n < 0 ? vocab : size_t(params.repeat_last_n);
    sampler.recent_.reserve(std::min(window, kReserveRecent));
  }
  if (sampler.penalties_ || !params.logit_bias.empty()) sampler.row_.reserve(vocab);
  return sampler;
}

}  // namespace calrt
