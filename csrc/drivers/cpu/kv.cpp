// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kv.h"

#include "base/checked.h"
#include "layout/convert.h"

namespace calrt::cpu {

KvArena::KvArena(const Shape& s, uint32_t lanes, uint32_t cells, bool bf16)
    : lanes_(lanes), cells_(cells), kv_heads_(s.kv_heads), head_dim_(s.head_dim), bf16_(bf16) {
  const size_t row = 128;  // bytes of 32 columns: pairs of BF16, or single F32
  const size_t cell_panels = (size_t{cells} + 31) / 32;
  const size_t dim_panels = (size_t{s.head_dim} + 31) / 32;
  key_panel_bytes_ = (bf16 ? (size_t{s.head_dim} + 1) / 2 : s.head_dim) * row;
  value_panel_bytes_ = cell_panels * (bf16 ? 16 : 32) * row;
  key_bytes_ = cell_panels * key_panel_bytes_;
  value_bytes_ = dim_panels * value_panel_bytes_;
}

uint64_t KvArena::bytes_needed(const Shape& shape, uint32_t lanes, uint32_t cells, bool bf16) {
  const KvArena arena(shape, lanes, cells, bf16);
  uint64_t bytes = uint64_t{shape.layers} * shape.kv_heads;
  // No machine has as much as what does not fit here; the allocation will say so.
  if (!checked_mul(bytes, lanes, &bytes) || !checked_mul(bytes, arena.slot_bytes(), &bytes))
    return uint64_t{1} << 62;
  return bytes;
}

Result<KvArena> KvArena::make(const Shape& shape, uint32_t lanes, uint32_t cells, bool bf16) {
  KvArena arena(shape, lanes, cells, bf16);
  CALRT_TRY_ASSIGN(arena.memory_,
                   Block::make(bytes_needed(shape, lanes, cells, bf16), "the KV lanes"));
  return arena;
}

void KvArena::write(uint32_t layer, uint32_t lane, uint32_t kv_head, uint32_t position,
                    const float* key, const float* value) {
  unsigned char* base = memory_.as() + slot(layer, lane, kv_head) * slot_bytes();
  unsigned char* key_panel = base + position / 32 * key_panel_bytes_;
  unsigned char* value_panels = base + key_bytes_;
  const uint32_t column = position % 32;
  if (!bf16_) {
    auto* keys = reinterpret_cast<float*>(key_panel);
    for (uint32_t d = 0; d < head_dim_; ++d) {
      keys[size_t{d} * 32 + column] = key[d];
      auto* values = reinterpret_cast<float*>(value_panels + d / 32 * value_panel_bytes_);
      values[size_t{position} * 32 + d % 32] = value[d];
    }
    return;
  }
  uint16_t key_bits[kLargestHead], value_bits[kLargestHead];
  bf16_from_f32(key, key_bits, head_dim_);
  bf16_from_f32(value, value_bits, head_dim_);
  auto* keys = reinterpret_cast<uint16_t*>(key_panel);
  for (uint32_t d = 0; d < head_dim_; ++d) {
    keys[size_t{d / 2} * 64 + column * 2 + d % 2] = key_bits[d];
    auto* values = reinterpret_cast<uint16_t*>(value_panels + d / 32 * value_panel_bytes_);
    values[size_t{position / 2} * 64 + size_t{d % 32} * 2 + position % 2] = value_bits[d];
  }
}

}  // namespace calrt::cpu
