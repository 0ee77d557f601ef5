// SPDX-License-Identifier: Apache-2.0
// A tiny model on the cpu driver with its KV operations, and cells to put into its lanes.
#pragma once

#include <random>

#include "cpu_kv_client.h"
#include "cpu_tiny_model.h"

namespace calrt::testing {

struct Setting {
  uint32_t kv_heads, head_dim;
  int32_t dtype, rope_style;
  uint32_t threads;
  const char* isa;
};

struct KvWorld {
  explicit KvWorld(const Setting& s, uint32_t cells)
      : tiny(shape(s)), device(s.threads, s.isa), model(device, tiny.package(), args(s, cells)) {}
  static TinyShape shape(const Setting& s) {
    TinyShape shape;
    shape.kv_heads = s.kv_heads;
    shape.heads = 2 * s.kv_heads;
    shape.head_dim = s.head_dim;
    shape.rope_style = s.rope_style;
    return shape;
  }
  static LoadArgs args(const Setting& s, uint32_t cells) {
    LoadArgs args;
    args.lanes = 3;
    args.cells = cells;
    args.kv = s.dtype;
    return args;
  }
  TinyModel tiny;
  Device device;
  Model model;
  KvClient kv{device, model};
};

// Finite numbers, each another.
inline LaneImage some_cells(const KvClient& kv, uint32_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  LaneImage image(size_t{2} * kv.info.n_layers, std::vector<std::string>(n));
  for (auto& part : image)
    for (std::string& cell : part) {
      cell.resize(kv.piece());
      for (size_t at = 0; at < cell.size(); at += kv.info.dtype == CALD_BF16 ? 2 : 4) {
        const float value = normal(random);
        const uint16_t half = calrt::bf16_from_f32(value);
        if (kv.info.dtype == CALD_BF16)
          std::memcpy(&cell[at], &half, 2);
        else
          std::memcpy(&cell[at], &value, 4);
      }
    }
  return image;
}

}  // namespace calrt::testing
