// SPDX-License-Identifier: Apache-2.0
// The dimensions of a llama model and its weights as panels in one block of memory.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "drivers/cpu/memory.h"
#include "drivers/cpu/pack.h"

namespace calrt::cpu {

inline constexpr uint32_t kLargestHead = 1024;
inline constexpr uint32_t kMostGroup = 256;  // query heads per KV head

struct Shape {
  uint32_t vocab, layers, embed, heads, kv_heads, head_dim, ffn, rope_dim;
  bool rope_half;  // pairs (i, i + rope_dim / 2); else (2i, 2i + 1)
  bool tied;       // the head is the embedding
  double rope_base;
  float norm_eps;

  uint32_t group() const { return heads / kv_heads; }
  uint32_t q_width() const { return heads * head_dim; }
  uint32_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  // Radians by which pair `pair` turns from one position to the next.
  double rope_frequency(uint32_t pair) const { return std::pow(rope_base, -2.0 * pair / rope_dim); }
};

// Elements of a row of activations of this width.
inline uint32_t padded(uint32_t width) { return (width + 31) / 32 * 32; }

// UNSUPPORTED names an architecture or fact this driver does not run; PACKAGE_REJECTED a
// contradiction.
Result<Shape> read_shape(const cald_package& package);

struct LayerWeights {
  float* attn_norm = nullptr;  // padded with zeros
  float* ffn_norm = nullptr;
  Matrix qkv;      // q, k, v stacked
  Matrix out;      // attn_output
  Matrix gate_up;  // panels of gate and up take turns, so that one task has both
  Matrix down;
};

class Weights {
 public:
  static uint64_t bytes_needed(const Shape& shape, bool bf16);
  static Result<Weights> load(const cald_package& package, const Shape& shape, bool bf16,
                              const cald_load_options& options);

  Matrix embedding;
  Matrix head;  // the same panels when tied
  float* output_norm = nullptr;
  std::vector<LayerWeights> layers;

 private:
  // Gives every matrix its place after `base`; returns the bytes used.
  uint64_t place(const Shape& shape, bool bf16, unsigned char* base);
  Block memory_;
};

}  // namespace calrt::cpu
