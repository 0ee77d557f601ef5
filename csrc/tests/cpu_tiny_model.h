// SPDX-License-Identifier: Apache-2.0
// A small random llama as a cald_package over a temporary file, and the same model computed naively
// in double precision.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "calrt/driver.h"
#include "layout/convert.h"

namespace calrt::testing {

struct TinyShape {
  uint32_t vocab = 77, layers = 2, embed = 48, heads = 6, kv_heads = 2, head_dim = 8, ffn = 44;
  int32_t rope_style = CALD_ROPE_INTERLEAVED;
  int32_t tied = 1;
  int32_t file_dtype = CALD_F32;
};

class TinyModel {
 public:
  explicit TinyModel(const TinyShape& shape = {}, uint32_t seed = 1)
      : shape_(shape), random_(seed) {
    const TinyShape& s = shape;
    add("token_embd.weight", s.vocab, s.embed, 1.0f);
    if (s.tied == 0) add("output.weight", s.vocab, s.embed, 1.0f);
    add("output_norm.weight", 0, s.embed, 0.0f);
    for (uint32_t l = 0; l < s.layers; ++l) {
      const std::string name = "blk." + std::to_string(l) + ".";
      add(name + "attn_norm.weight", 0, s.embed, 0.0f);
      add(name + "ffn_norm.weight", 0, s.embed, 0.0f);
      add(name + "attn_q.weight", s.heads * s.head_dim, s.embed, 0.3f);
      add(name + "attn_k.weight", s.kv_heads * s.head_dim, s.embed, 0.3f);
      add(name + "attn_v.weight", s.kv_heads * s.head_dim, s.embed, 0.3f);
      add(name + "attn_output.weight", s.embed, s.heads * s.head_dim, 0.3f);
      add(name + "ffn_gate.weight", s.ffn, s.embed, 0.3f);
      add(name + "ffn_up.weight", s.ffn, s.embed, 0.3f);
      add(name + "ffn_down.weight", s.embed, s.ffn, 0.3f);
    }
    char path[] = "/tmp/calrt_cpu_test_XXXXXX";
    fd_ = mkstemp(path);
    unlink(path);
    for (const auto& tensor : tensors_) write_tensor(tensor);
    arch_.struct_size = sizeof arch_;
    arch_.name = "llama";
    arch_.vocab = s.vocab;
    arch_.context = 4096;
    arch_.layers = s.layers;
    arch_.embed = s.embed;
    arch_.heads = s.heads;
    arch_.kv_heads = s.kv_heads;
    arch_.head_dim = s.head_dim;
    arch_.ffn = s.ffn;
    arch_.rope_dim = s.head_dim;
    arch_.rope_style = s.rope_style;
    arch_.tie_embeddings = s.tied;
    arch_.rope_base = 10000.0;
    arch_.norm_eps = 1e-5;
    artifact_ = {sizeof artifact_, fd_, "weights", "weights", file_bytes_};
    package_.struct_size = sizeof package_;
    package_.n_artifacts = 1;
    package_.name = "tiny";
    package_.id = "";
    package_.arch = &arch_;
    package_.artifacts = &artifact_list_;
    package_.weights = 0;
    package_.n_tensors = static_cast<uint32_t>(tensor_list_.size());
    package_.tensors = tensor_list_.data();
  }
  ~TinyModel() { close(fd_); }
  TinyModel(const TinyModel&) = delete;
  TinyModel& operator=(const TinyModel&) = delete;

  const TinyShape& shape() const { return shape_; }
  cald_package& package() { return package_; }
  cald_arch& arch() { return arch_; }
  cald_artifact& artifact() { return artifact_; }
  cald_tensor& tensor(const std::string& name) {
    for (cald_tensor& t : typed_)
      if (name == t.name) return t;
    std::abort();
  }
  int fd() const { return fd_; }

  using Doubles = std::vector<double>;
  // Keys and values of a sequence, [layer][cell], in double.
  struct Lane {
    explicit Lane(uint32_t layers) : keys(layers), values(layers) {}
    std::vector<std::vector<Doubles>> keys, values;
  };
  // Appends one token; its logits, in double throughout.
  Doubles step(Lane& lane, int32_t token) const;
  // Discards cells [keep, keep + discard); those behind move down, their keys turned back.
  void shift(Lane& lane, uint32_t keep, uint32_t discard) const;
  // Logits of the last token of a fresh sequence.
  Doubles reference(const std::vector<int32_t>& tokens) const;

 private:
  struct Tensor {
    std::string name;
    uint32_t rows, depth;
    std::vector<float> values;
  };

  void add(const std::string& name, uint32_t rows, uint32_t depth, float scale) {
    Tensor t{name, rows, depth, std::vector<float>(size_t{rows == 0 ? 1 : rows} * depth)};
    std::normal_distribution<float> normal;
    for (float& v : t.values) {
      v = scale == 0.0f ? 1.0f + 0.1f * normal(random_) : scale * normal(random_);
      // Weights that BF16 holds exactly: what is compared then is the arithmetic.
      v = f32_from_bf16(bf16_from_f32(v));
    }
    tensors_.push_back(std::move(t));
  }

  void write_tensor(const Tensor& t) {
    cald_tensor typed{};
    typed.struct_size = sizeof typed;
    typed.dtype = shape_.file_dtype;
    typed.name = t.name.c_str();
    typed.rank = t.rows == 0 ? 1 : 2;
    typed.shape[0] = t.rows == 0 ? t.depth : t.rows;
    typed.shape[1] = t.rows == 0 ? 0 : t.depth;
    typed.offset = file_bytes_;
    const void* data = t.values.data();
    std::vector<uint16_t> halves(t.values.size());
    if (shape_.file_dtype == CALD_BF16) {
      bf16_from_f32(t.values.data(), halves.data(), halves.size());
      data = halves.data();
    }
    typed.bytes = t.values.size() * (shape_.file_dtype == CALD_F32 ? 4 : 2);
    if (pwrite(fd_, data, typed.bytes, static_cast<off_t>(file_bytes_)) < 0) std::abort();
    file_bytes_ += typed.bytes;
    typed_.push_back(typed);
    tensor_list_.push_back(&typed_.back());
  }

  const std::vector<float>& values(const std::string& name) const {
    for (const Tensor& t : tensors_)
      if (t.name == name) return t.values;
    std::abort();
  }

  TinyShape shape_;
  std::mt19937 random_;
  std::deque<Tensor> tensors_;
  std::deque<cald_tensor> typed_;
  std::vector<const cald_tensor*> tensor_list_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0;
  cald_arch arch_{};
  cald_artifact artifact_{};
  const cald_artifact* artifact_list_ = &artifact_;
  cald_package package_{};
};

using Doubles = TinyModel::Doubles;

inline Doubles times(const std::vector<float>& w, const Doubles& x, size_t rows) {
  Doubles y(rows, 0.0);
  for (size_t r = 0; r < rows; ++r)
    for (size_t k = 0; k < x.size(); ++k) y[r] += double{w[r * x.size() + k]} * x[k];
  return y;
}

inline Doubles normed(const Doubles& x, const std::vector<float>& w) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
  Doubles y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * w[i];
  return y;
}

inline void rotated(double* head, uint32_t dim, int32_t style, double position) {
  for (uint32_t i = 0; i < dim / 2; ++i) {
    const double angle = position * std::pow(10000.0, -2.0 * i / dim);
    double& a = style == CALD_ROPE_HALF ? head[i] : head[2 * i];
    double& b = style == CALD_ROPE_HALF ? head[i + dim / 2] : head[2 * i + 1];
    const double x = a, y = b;
    a = x * std::cos(angle) - y * std::sin(angle);
    b = x * std::sin(angle) + y * std::cos(angle);
  }
}

inline Doubles TinyModel::step(Lane& lane, int32_t token) const {
  const TinyShape& s = shape_;
  const uint32_t hd = s.head_dim, group = s.heads / s.kv_heads;
  const size_t p = lane.keys[0].size();
  const float* row = values("token_embd.weight").data() + static_cast<size_t>(token) * s.embed;
  Doubles x(row, row + s.embed);
  for (uint32_t l = 0; l < s.layers; ++l) {
    const std::string name = "blk." + std::to_string(l) + ".";
    const Doubles a = normed(x, values(name + "attn_norm.weight"));
    Doubles q = times(values(name + "attn_q.weight"), a, s.heads * hd);
    Doubles k = times(values(name + "attn_k.weight"), a, s.kv_heads * hd);
    const auto position = static_cast<double>(p);
    for (uint32_t h = 0; h < s.heads; ++h) rotated(&q[h * hd], hd, s.rope_style, position);
    for (uint32_t h = 0; h < s.kv_heads; ++h) rotated(&k[h * hd], hd, s.rope_style, position);
    lane.keys[l].push_back(k);
    lane.values[l].push_back(times(values(name + "attn_v.weight"), a, s.kv_heads * hd));
    Doubles mixed(s.heads * hd, 0.0);
    for (uint32_t h = 0; h < s.heads; ++h) {
      const uint32_t kv = h / group * hd;
      Doubles scores(p + 1);
      double top = -1e300, sum = 0;
      for (size_t c = 0; c <= p; ++c) {
        double dot = 0;
        for (uint32_t d = 0; d < hd; ++d) dot += q[h * hd + d] * lane.keys[l][c][kv + d];
        scores[c] = dot / std::sqrt(static_cast<double>(hd));
        top = std::max(top, scores[c]);
      }
      for (double& v : scores) sum += v = std::exp(v - top);
      for (size_t c = 0; c <= p; ++c)
        for (uint32_t d = 0; d < hd; ++d)
          mixed[h * hd + d] += scores[c] / sum * lane.values[l][c][kv + d];
    }
    const Doubles out = times(values(name + "attn_output.weight"), mixed, s.embed);
    for (uint32_t i = 0; i < s.embed; ++i) x[i] += out[i];
    const Doubles b = normed(x, values(name + "ffn_norm.weight"));
    Doubles gate = times(values(name + "ffn_gate.weight"), b, s.ffn);
    const Doubles up = times(values(name + "ffn_up.weight"), b, s.ffn);
    for (uint32_t i = 0; i < s.ffn; ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const Doubles down = times(values(name + "ffn_down.weight"), gate, s.embed);
    for (uint32_t i = 0; i < s.embed; ++i) x[i] += down[i];
  }
  const char* head = s.tied != 0 ? "token_embd.weight" : "output.weight";
  return times(values(head), normed(x, values("output_norm.weight")), s.vocab);
}

inline void TinyModel::shift(Lane& lane, uint32_t keep, uint32_t discard) const {
  for (uint32_t l = 0; l < shape_.layers; ++l) {
    const auto drop = [&](std::vector<Doubles>& cells) {
      cells.erase(cells.begin() + keep, cells.begin() + keep + discard);
    };
    drop(lane.keys[l]);
    drop(lane.values[l]);
    for (size_t c = keep; c < lane.keys[l].size(); ++c)
      for (uint32_t h = 0; h < shape_.kv_heads; ++h)
        rotated(&lane.keys[l][c][size_t{h} * shape_.head_dim], shape_.head_dim, shape_.rope_style,
                -static_cast<double>(discard));
  }
}

inline Doubles TinyModel::reference(const std::vector<int32_t>& tokens) const {
  Lane lane(shape_.layers);
  Doubles logits;
  for (const int32_t token : tokens) logits = step(lane, token);
  return logits;
}

}  // namespace calrt::testing
