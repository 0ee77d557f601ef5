// SPDX-License-Identifier: Apache-2.0
// RoPE on the host, for devices that give their cells away but cannot turn them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::engine {

// Turns K on by a number of positions: the pairs (x, y) of a head by the angle delta * base^(-2i/d)
// (Su et al., 2021, "RoFormer", eq. 15; d = rope_dim), in F32, rounded to the cells' dtype once.
// Immutable, thread-safe.
class HostRotation {
 public:
  // UNSUPPORTED unless a cell is as `arch` says: K and V of kv_heads * head_dim elements a layer.
  static Result<HostRotation> make(const cald_arch& arch, const cald_kv_info& info);

  // `cells`: n cells as READ gives them (layer by layer, K then V). OUT_OF_HOST_MEMORY or nothing.
  Result<void> turn(std::span<unsigned char> cells, uint32_t n, int32_t delta) const;

 private:
  uint32_t layers_ = 0, kv_heads_ = 0, head_dim_ = 0, rope_dim_ = 0;
  bool half_ = false, bf16_ = false;
  double base_ = 0;
};

}  // namespace calrt::engine
