// SPDX-License-Identifier: Apache-2.0
// The sampler against a naive reference in doubles that sorts everything.
#include "sampling/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <string>

#include "tests/check.h"

using namespace calrt;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

float as_bf16(float value) {
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffff0000u);
}

struct Row {
  std::vector<float> values;
  std::vector<uint16_t> bits;
  LogitsView view(bool bf16, uint32_t tokens = UINT32_MAX) {
    const auto vocab = static_cast<uint32_t>(values.size());
    bits.clear();
    for (float v : values) bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16));
    const void* data = bf16 ? static_cast<const void*>(bits.data()) : values.data();
    return {data, bf16, vocab, std::min(tokens, vocab)};
  }
};

// ---- the reference ---------------------------------------------------------------------------

struct Reference {
  SamplingParams p;
  std::mt19937 rng;
  std::vector<int32_t> context;

  explicit Reference(const SamplingParams& params) : p(params), rng(params.seed) {}

  // Tokens that may be drawn with their share, best first; greedy gives one.
  std::vector<std::pair<int32_t, double>> chain(const std::vector<float>& raw, uint32_t tokens) {
    std::vector<double> row(raw.begin(), raw.begin() + tokens);
    for (auto [token, bias] : p.logit_bias) {
      if (uint32_t(token) < tokens) row[token] = float(row[token]) + bias;
    }
    if (p.repeat_last_n != 0) {
      const size_t n = p.repeat_last_n < 0 ? context.size() : size_t(p.repeat_last_n);
      std::map<int32_t, int> counts;
      for (size_t i = context.size() > n ? context.size() - n : 0; i < context.size(); ++i) {
        ++counts[context[i]];
      }
      for (auto [token, count] : counts) {
        if (uint32_t(token) >= tokens) continue;
        float v = float(row[token]);
        v = v <= 0 ? v * p.repeat_penalty : v / p.repeat_penalty;
        row[token] = v - (float(count) * p.frequency_penalty + p.presence_penalty);
      }
    }
    std::vector<std::pair<int32_t, double>> list;
    for (uint32_t i = 0; i < tokens; ++i) {
      if (std::isfinite(row[i])) list.emplace_back(int32_t(i), row[i]);
    }
    std::stable_sort(list.begin(), list.end(),
                     [](auto& a, auto& b) { return a.second > b.second; });
    if (list.empty()) return list;
    const double best = list[0].second;
    if (p.temperature <= 0) {
      list.resize(1);
      return list;
    }
    if (p.top_k > 0 && size_t(p.top_k) < list.size()) list.resize(p.top_k);
    if (p.top_p < 1) {
      double total = 0, sum = 0;
      for (auto& [t, v] : list) total += std::exp(v - best);
      size_t keep = 0;
      while (keep < list.size()) {
        sum += std::exp(list[keep++].second - best);
        if (sum / total >= p.top_p) break;
      }
      list.resize(keep);
    }
    if (p.min_p > 0) {
      while (list.back().second < best + std::log(double(p.min_p))) list.pop_back();
    }
    double total = 0;
    for (auto& [t, v] : list) total += v = std::exp((v - best) / p.temperature);
    for (auto& [t, v] : list) v /= total;
    return list;
  }

  int32_t sample(const std::vector<float>& raw, uint32_t tokens) {
    const auto list = chain(raw, tokens);
    if (list.empty()) return -1;
    if (p.temperature <= 0) return list[0].first;
    const double low = rng(), high = rng();
    const double u = (low + high * 0x1p32) / 0x1p64;
    double sum = 0;
    for (auto [token, share] : list) {
      if ((sum += share) > u) return token;
    }
    return list.back().first;
  }
};

Row random_row(std::mt19937& random, uint32_t vocab) {
  Row row;
  std::normal_distribution<float> normal(0, random() % 2 ? 4 : 1);
  const uint32_t style = random() % 4;
  for (uint32_t i = 0; i < vocab; ++i) {
    float v = as_bf16(normal(random));
    if (style == 1) v = std::round(v);  // many ties
    if (style == 2 && random() % 8 == 0) v = random() % 3 == 0 ? kNan : random() % 2 ? -kInf : kInf;
    if (style == 3 && random() % 4 == 0) v = random() % 2 ? 0.0f : -0.0f;
    row.values.push_back(v);
  }
  return row;
}

SamplingParams random_params(std::mt19937& random, uint32_t vocab) {
  SamplingParams p;
  p.temperature = random() % 4 == 0 ? 0 : 0.2f + float(random() % 20) / 10;
  p.top_k = random() % 3 == 0 ? 0 : int32_t(1 + random() % (random() % 2 ? 5 : 2 * vocab));
  p.top_p = random() % 2 ? 1 : float(random() % 101) / 100;
  p.min_p = random() % 2 ? 0 : float(random() % 101) / 100;
  if (random() % 2) {
    p.repeat_penalty = random() % 2 ? 1.3f : 0.7f;
    p.presence_penalty = float(random() % 3) / 2;
    p.frequency_penalty = float(random() % 3) / 4;
    p.repeat_last_n = int32_t(random() % 8) - 1;
  }
  for (uint32_t i = random() % 3; i-- > 0;) {
    p.logit_bias.emplace_back(random() % vocab, random() % 2 ? -kInf : float(random() % 9) - 4);
  }
  p.seed = random();
  return p;
}

}  // namespace

TEST(draws_as_the_reference) {
  std::mt19937 random(1);
  int drawn = 0;
  for (int round = 0; round < 3000; ++round) {
    const uint32_t vocab = 1 + random() % (round % 10 == 0 ? 2000 : 300);
    const uint32_t tokens = random() % 2 ? vocab : 1 + random() % vocab;
    const SamplingParams params = random_params(random, vocab);
    auto bf16 = Sampler::make(params, vocab), f32 = Sampler::make(params, vocab);
    CHECK(bf16.ok() && f32.ok());
    Reference reference(params);
    for (int step = 0; step < 12; ++step) {
      Row row = random_row(random, vocab);
      const int32_t expected = reference.sample(row.values, tokens);
      const int32_t a = bf16->sample(row.view(true, tokens)).token;
      const int32_t b = f32->sample(row.view(false, tokens)).token;
      CHECK(a == expected);
      CHECK(b == expected);
      if (a != expected || b != expected) return;
      const int32_t next = random() % 2 && expected >= 0 ? expected : int32_t(random() % vocab);
      bf16->accept(next);
      f32->accept(next);
      reference.context.push_back(next);
      ++drawn;
    }
  }
  CHECK(drawn == 36000);
}

TEST(the_share_of_each_token_is_its_probability) {
  // A statistic on a fixed seed: the same on every machine, so the bound cannot flake.
  Row row{{1, 3, 2, -1, 2.5f, -kInf}, {}};
  SamplingParams p;
  p.temperature = 0.9f, p.top_k = 0, p.top_p = 1, p.min_p = 0, p.seed = 3;
  Reference reference(p);
  auto sampler = *Sampler::make(p, 6);
  std::map<int32_t, int> counts;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) ++counts[sampler.sample(row.view(true)).token];
  for (auto [token, share] : reference.chain(row.values, 6)) {
    CHECK(std::abs(counts[token] - share * kDraws) < 5 * std::sqrt(share * kDraws));
  }
  CHECK(counts.count(5) == 0);
}

TEST(greedy_takes_the_lowest_of_equal_tokens) {
  SamplingParams p;
  p.temperature = 0;
  for (bool bf16 : {false, true}) {
    auto sampler = *Sampler::make(p, 1000);
    Row row{std::vector<float>(1000, -2.0f), {}};
    row.values[700] = row.values[300] = row.values[301] = 5;
    CHECK(sampler.sample(row.view(bf16)).token == 300);
    row.values.assign(1000, 0.0f);
    row.values[0] = -0.0f;
    CHECK(sampler.sample(row.view(bf16)).token == 0);
  }
}

TEST(columns_without_a_token_and_nan_are_never_chosen) {
  for (float temperature : {0.0f, 1.0f}) {
    for (bool bf16 : {false, true}) {
      SamplingParams p;
      p.temperature = temperature;
      p.n_probs = 3;
      auto sampler = *Sampler::make(p, 8);
      Row row{{kNan, -kInf, kInf, 1, kNan, 9, 9, 9}, {}};
      std::vector<TokenProb> top;
      const Sampled one = sampler.sample(row.view(bf16, 5), &top);
      CHECK(one.token == 3 && std::abs(one.logprob) < 1e-6f);
      CHECK(top.size() == 1 && top[0].token == 3);
      Row none{{kNan, -kInf, kInf, kNan, -kInf, 1, 1, 1}, {}};
      CHECK(sampler.sample(none.view(bf16, 5), &top).token == -1);
      CHECK(top.empty());
    }
  }
}

TEST(probabilities_are_of_the_raw_row) {
  SamplingParams p;
  p.temperature = 0;
  p.n_probs = 2;
  p.logit_bias = {{2, -kInf}};
  Row row{{1, 2, 4, 3}, {}};
  double total = 0;
  for (float v : row.values) total += std::exp(double(v));
  for (bool bf16 : {false, true}) {
    auto sampler = *Sampler::make(p, 4);
    std::vector<TokenProb> top;
    const Sampled one = sampler.sample(row.view(bf16), &top);
    CHECK(one.token == 3);
    CHECK(std::abs(one.logprob - (3 - std::log(total))) < 1e-5);
    CHECK(top.size() == 2 && top[0].token == 2 && top[1].token == 3);
    CHECK(top.size() == 2 && std::abs(top[0].logprob - (4 - std::log(total))) < 1e-5);
  }
}

TEST(a_bias_beyond_f32_still_wins) {
  SamplingParams p;
  p.temperature = 0;
  p.logit_bias = {{1, std::numeric_limits<float>::max()}};
  auto sampler = *Sampler::make(p, 3);
  Row row{{5, 3e38f, 6}, {}};
  CHECK(sampler.sample(row.view(false)).token == 1);
}

TEST(a_copy_draws_what_the_original_draws) {
  std::mt19937 random(5);
  SamplingParams p;
  p.repeat_penalty = 1.2f, p.seed = 9;
  auto one = *Sampler::make(p, 100);
  auto two = one;
  for (int i = 0; i < 100; ++i) {
    Row row = random_row(random, 100);
    const int32_t a = one.sample(row.view(true)).token;
    CHECK(a == two.sample(row.view(true)).token);
    one.accept(a);
    two.accept(a);
  }
}

TEST(bad_parameters_name_their_field) {
  const auto refused = [](const char* field, auto set) {
    SamplingParams p;
    set(p);
    auto got = Sampler::make(p, 10);
    CHECK(!got.ok());
    if (got.ok()) std::fprintf(stderr, "accepted: %s\n", field);
    if (!got.ok()) CHECK(got.error().message.find(field) != std::string::npos);
  };
  refused("temperature", [](auto& p) { p.temperature = kNan; });
  refused("temperature", [](auto& p) { p.temperature = kInf; });
  refused("top_k", [](auto& p) { p.top_k = -1; });
  refused("top_p", [](auto& p) { p.top_p = 1.5f; });
  refused("top_p", [](auto& p) { p.top_p = kNan; });
  refused("min_p", [](auto& p) { p.min_p = -0.1f; });
  refused("repeat_penalty", [](auto& p) { p.repeat_penalty = 0; });
  refused("repeat_penalty", [](auto& p) { p.repeat_penalty = kInf; });
  refused("presence_penalty", [](auto& p) { p.presence_penalty = kNan; });
  refused("frequency_penalty", [](auto& p) { p.frequency_penalty = -kInf; });
  refused("repeat_last_n", [](auto& p) { p.repeat_last_n = -2; });
  refused("logit_bias[1]", [](auto& p) { p.logit_bias = {{1, 0.f}, {10, 0.f}}; });
  refused("logit_bias[0]", [](auto& p) { p.logit_bias = {{-1, 0.f}}; });
  refused("logit_bias[0]", [](auto& p) { p.logit_bias = {{1, kInf}}; });
  CHECK(!Sampler::make({}, 0).ok());
}
