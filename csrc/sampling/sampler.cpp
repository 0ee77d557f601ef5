// SPDX-License-Identifier: Apache-2.0
// The chain, in llama-server's order: bias, penalties, top-k, top-p, min-p, temperature, draw.
#include "sampling/sampler.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <functional>

#include "sampling/logit_keys.h"

namespace calrt {

namespace {

// Larger logit first; of equal ones the lower token.
bool better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

// In [0, 1), 53 bits, two draws of the generator: what std::uniform_real_distribution<double> is in
// libstdc++, written out because the standard leaves it to the library.
double uniform(std::mt19937& rng) {
  const double low = rng();
  const double high = rng();
  const double u = (low + high * 4294967296.0) / 18446744073709551616.0;
  return u < 1.0 ? u : std::nextafter(1.0, 0.0);
}

// A finite logit that a bias or penalty lifts beyond F32 stays the best, not "never chosen".
float edited(float before, float after) {
  return after > FLT_MAX && std::isfinite(before) ? FLT_MAX : after;
}

}  // namespace

// The k best finite logits of the row, in order, into candidates_. The k-th largest of the block
// maxima is a threshold that the k best all reach, so only few columns are looked at twice.
template <class T>
void Sampler::select(const T* row, uint32_t tokens, uint32_t k) {
  candidates_.clear();
  blocks_.clear();
  for (uint32_t begin = 0; begin < tokens; begin += kLogitBlock) {
    blocks_.push_back(best_key(row + begin, std::min(kLogitBlock, tokens - begin)));
  }
  int32_t threshold = LogitKey<T>::kNever + 1;  // the lowest finite key
  if (k < blocks_.size()) {
    ranks_.assign(blocks_.begin(), blocks_.end());
    std::nth_element(ranks_.begin(), ranks_.begin() + (k - 1), ranks_.end(), std::greater<>());
    threshold = std::max(threshold, ranks_[k - 1]);
  }
  for (size_t block = 0; block < blocks_.size(); ++block) {
    if (blocks_[block] < threshold) continue;
    const auto begin = static_cast<uint32_t>(block) * kLogitBlock;
    const uint32_t end = std::min(begin + kLogitBlock, tokens);
    for (uint32_t i = begin; i < end; ++i) {
      if (LogitKey<T>::of(row[i]) < threshold) continue;
      candidates_.emplace_back(LogitKey<T>::value(row[i]), static_cast<int32_t>(i));
    }
  }
  sorted_ = 0;
  if (k < candidates_.size()) {
    sort_to(k);
    candidates_.resize(k);
  }
}

void Sampler::select(const LogitsView& logits, uint32_t k) {
  if (logits.bf16) {
    select(static_cast<const uint16_t*>(logits.data), logits.tokens, k);
  } else {
    select(static_cast<const uint32_t*>(logits.data), logits.tokens, k);
  }
}

// At least the first n candidates are in order. Grows in steps, because a peaked distribution needs
// only the first few of a whole vocabulary.
void Sampler::sort_to(size_t n) {
  n = std::min(n, candidates_.size());
  if (sorted_ >= n) return;
  const size_t goal = std::min(candidates_.size(), std::max({n, 8 * sorted_, size_t{64}}));
  const auto begin = candidates_.begin() + static_cast<ptrdiff_t>(sorted_);
  const auto end = candidates_.begin() + static_cast<ptrdiff_t>(goal);
  if (end != candidates_.end()) std::nth_element(begin, end, candidates_.end(), better);
  std::sort(begin, end, better);
  sorted_ = goal;
}

// The fewest best candidates of the first n that together hold top_p of the probability.
size_t Sampler::cut_top_p(size_t n) {
  const double best = candidates_[0].first;
  double total = 0, sum = 0;
  for (size_t i = 0; i < n; ++i) total += std::exp(candidates_[i].first - best);
  for (size_t i = 0; i < n; ++i) {
    sort_to(i + 1);
    sum += std::exp(candidates_[i].first - best);
    if (sum >= params_.top_p * total) return i + 1;
  }
  return n;
}

// Those at least min_p times as probable as the best.
size_t Sampler::cut_min_p(size_t n) {
  const double least = candidates_[0].first + std::log(static_cast<double>(params_.min_p));
  for (size_t i = 0; i < n; ++i) {
    sort_to(i + 1);
    if (candidates_[i].first < least) return i;
  }
  return n;
}

Sampled Sampler::draw() {
  size_t n = candidates_.size();
  if (n == 0) return {};
  sort_to(1);
  if (params_.top_p < 1) n = cut_top_p(n);
  if (params_.min_p > 0) n = cut_min_p(n);
  const double best = candidates_[0].first;
  const double temperature = params_.temperature;
  double total = 0, sum = 0;
  for (size_t i = 0; i < n; ++i) total += std::exp((candidates_[i].first - best) / temperature);
  const double goal = uniform(rng_) * total;
  for (size_t i = 0; i < n; ++i) {
    sort_to(i + 1);
    sum += std::exp((candidates_[i].first - best) / temperature);
    if (sum > goal) return {candidates_[i].second, 0};
  }
  return {candidates_[n - 1].second, 0};  // the last rounding of the sum
}

void Sampler::accept(int32_t token) {
  if (!penalties_ || token < 0 || static_cast<size_t>(token) >= counts_.size()) return;
  const auto window = static_cast<size_t>(params_.repeat_last_n);
  if (params_.repeat_last_n < 0) {
    if (counts_[token] == 0) recent_.push_back(token);
  } else if (recent_.size() < window) {
    recent_.push_back(token);
  } else {
    --counts_[recent_[recent_at_]];
    recent_[recent_at_] = token;
    recent_at_ = (recent_at_ + 1) % window;
  }
  ++counts_[token];
}

void Sampler::penalise() {
  constexpr uint32_t kDone = 1u << 31;  // a token may stand in recent_ more than once
  for (const int32_t token : recent_) {
    uint32_t& count = counts_[token];
    if (static_cast<size_t>(token) >= row_.size() || (count & kDone) != 0) continue;
    float& logit = row_[token];
    const float scale = params_.repeat_penalty;
    const float shift =
        static_cast<float>(count) * params_.frequency_penalty + params_.presence_penalty;
    logit = edited(logit, (logit <= 0 ? logit * scale : logit / scale) - shift);
    count |= kDone;
  }
  for (const int32_t token : recent_) counts_[token] &= ~kDone;
}

// The row as F32 with bias and penalties, into row_.
void Sampler::edit_row(const LogitsView& logits) {
  row_.resize(logits.tokens);
  if (logits.bf16) {
    const auto* bits = static_cast<const uint16_t*>(logits.data);
    for (uint32_t i = 0; i < logits.tokens; ++i) row_[i] = LogitKey<uint16_t>::value(bits[i]);
  } else {
    const auto* values = static_cast<const float*>(logits.data);
    std::copy(values, values + logits.tokens, row_.begin());
  }
  for (const auto& [token, bias] : params_.logit_bias) {
    if (static_cast<size_t>(token) < row_.size())
      row_[token] = edited(row_[token], row_[token] + bias);
  }
  if (penalties_) penalise();
}

// log sum exp of the raw row, and its n_probs best into `top`.
void Sampler::report(const LogitsView& logits, std::vector<TokenProb>* top) {
  select(logits, params_.n_probs);
  if (candidates_.empty()) return;
  sort_to(params_.n_probs);
  const float best = candidates_[0].first;
  double sum = 0;
  const auto add = [&](float logit) {
    if (std::isfinite(logit)) sum += std::exp(logit - best);
  };
  for (uint32_t i = 0; i < logits.tokens; ++i) {
    add(logits.bf16 ? LogitKey<uint16_t>::value(static_cast<const uint16_t*>(logits.data)[i])
                    : static_cast<const float*>(logits.data)[i]);
  }
  log_sum_ = best + std::log(sum);
  if (top == nullptr) return;
  for (const auto& [logit, token] : candidates_) {
    top->push_back({token, static_cast<float>(logit - log_sum_)});
  }
}

Sampled Sampler::sample(const LogitsView& given, std::vector<TokenProb>* top) {
  if (top != nullptr) top->clear();
  LogitsView logits = given;
  logits.tokens = std::min({given.tokens, given.vocab, vocab_});
  if (params_.n_probs > 0) report(logits, top);

  LogitsView chain = logits;
  if (penalties_ || !params_.logit_bias.empty()) {
    edit_row(logits);
    chain.data = row_.data();
    chain.bf16 = false;
  }
  const bool greedy = params_.temperature <= 0;
  const auto all = std::max(chain.tokens, 1u);
  const uint32_t k = greedy ? 1 : params_.top_k > 0 ? static_cast<uint32_t>(params_.top_k) : all;
  select(chain, k);
  Sampled sampled;
  if (!greedy) {
    sampled = draw();
  } else if (!candidates_.empty()) {
    sort_to(1);
    sampled.token = candidates_[0].second;
  }
  if (params_.n_probs > 0 && sampled.token >= 0) {
    const auto i = static_cast<size_t>(sampled.token);
    const float raw = logits.bf16
                          ? LogitKey<uint16_t>::value(static_cast<const uint16_t*>(logits.data)[i])
                          : static_cast<const float*>(logits.data)[i];
    sampled.logprob = static_cast<float>(raw - log_sum_);
  }
  return sampled;
}

}  // namespace calrt
