// SPDX-License-Identifier: Apache-2.0
#include "engine/host_rotate.h"

#include <cmath>
#include <cstring>
#include <new>

#include "kv/geometry.h"
#include "layout/convert.h"

namespace calrt::engine {

Result<HostRotation> HostRotation::make(const cald_arch& arch, const cald_kv_info& info) {
  const uint64_t element = info.dtype == CALD_BF16 ? 2 : info.dtype == CALD_F32 ? 4 : 0;
  const kv::Geometry geometry{arch.layers, arch.kv_heads, arch.head_dim, element};
  const Result<uint64_t> cell = geometry.cell_bytes();
  if (!cell.ok() || info.n_layers != arch.layers || info.bytes_per_cell != *cell)
    return fail(Status::UNSUPPORTED,
                "cells of %llu bytes are not K and V of %u layers: how to turn them is not known",
                (unsigned long long)info.bytes_per_cell, arch.layers);
  if (arch.rope_base <= 0 || arch.rope_dim == 0 || arch.rope_dim % 2 != 0 ||
      arch.rope_dim > arch.head_dim)
    return fail(Status::UNSUPPORTED, "the package does not say how K is turned (rope_dim %u)",
                arch.rope_dim);
  HostRotation made;
  made.layers_ = arch.layers;
  made.kv_heads_ = arch.kv_heads;
  made.head_dim_ = arch.head_dim;
  made.rope_dim_ = arch.rope_dim;
  made.half_ = arch.rope_style == CALD_ROPE_HALF;
  made.bf16_ = element == 2;
  made.base_ = arch.rope_base;
  return made;
}

Result<void> HostRotation::turn(std::span<unsigned char> cells, uint32_t n, int32_t delta) const {
  if (delta == 0 || n == 0) return {};
  const uint32_t pairs = rope_dim_ / 2;
  const uint32_t width = kv_heads_ * head_dim_;
  const size_t row = size_t{width} * (bf16_ ? 2 : 4);
  std::vector<float> cosines, sines, keys;
  try {
    cosines.resize(pairs);
    sines.resize(pairs);
    keys.resize(width);
  } catch (const std::bad_alloc&) {
    return fail(Status::OUT_OF_HOST_MEMORY, "no memory to turn %u cells", n);
  }
  for (uint32_t i = 0; i < pairs; ++i) {
    const double angle = delta * std::pow(base_, -2.0 * i / rope_dim_);
    cosines[i] = static_cast<float>(std::cos(angle));
    sines[i] = static_cast<float>(std::sin(angle));
  }
  const uint32_t stride = half_ ? pairs : 1, step = half_ ? 1 : 2;
  for (uint32_t layer = 0; layer < layers_; ++layer) {
    unsigned char* k = cells.data() + size_t{layer} * 2 * n * row;
    for (uint32_t cell = 0; cell < n; ++cell, k += row) {
      if (bf16_)
        f32_from_bf16(reinterpret_cast<const uint16_t*>(k), keys.data(), width);
      else
        std::memcpy(keys.data(), k, row);
      for (uint32_t head = 0; head < kv_heads_; ++head) {
        float* at = keys.data() + size_t{head} * head_dim_;
        for (uint32_t i = 0; i < pairs; ++i) {
          float& x = at[i * step];
          float& y = at[i * step + stride];
          const float turned = x * cosines[i] - y * sines[i];
          y = x * sines[i] + y * cosines[i];
          x = turned;
        }
      }
      if (bf16_)
        bf16_from_f32(keys.data(), reinterpret_cast<uint16_t*>(k), width);
      else
        std::memcpy(k, keys.data(), row);
    }
  }
  return {};
}

}  // namespace calrt::engine
