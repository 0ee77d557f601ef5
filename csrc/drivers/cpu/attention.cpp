// SPDX-License-Identifier: Apache-2.0
// The part of the forward pass that touches the lanes.
#include <cmath>

#include "drivers/cpu/forward.h"
#include "drivers/cpu/parallel.h"

namespace calrt::cpu {

void Forward::rotate(float* head, uint32_t position) const {
  const uint32_t half = shape_->rope_dim / 2;
  const float* cosines = cosines_ + size_t{position} * half;
  const float* sines = sines_ + size_t{position} * half;
  if (shape_->rope_half) {
    for (uint32_t i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half];
      head[i] = a * cosines[i] - b * sines[i];
      head[i + half] = a * sines[i] + b * cosines[i];
    }
  } else {
    for (uint32_t i = 0; i < half; ++i) {
      const float a = head[2 * i], b = head[2 * i + 1];
      head[2 * i] = a * cosines[i] - b * sines[i];
      head[2 * i + 1] = a * sines[i] + b * cosines[i];
    }
  }
}

void Forward::store_qkv(Pool& pool, const std::vector<Row>& rows, uint32_t layer) {
  const Shape& s = *shape_;
  const FormatKernels& k = (*compute_.kernels)[compute_.attention];
  const uint32_t query_width = padded(s.head_dim);
  parallel(pool, static_cast<uint32_t>(rows.size()), [&](uint32_t r, uint32_t) {
    const Row& row = rows[r];
    float* q = qkv_ + size_t{r} * padded(s.qkv_width());
    for (uint32_t h = 0; h < s.heads; ++h) {
      float* head = q + size_t{h} * s.head_dim;
      rotate(head, row.position);
      k.scale_to_acts(head, s.head_dim, 1.0f,
                      act(queries_, (size_t{r} * s.heads + h) * query_width, compute_.attention));
    }
    float* keys = q + s.q_width();
    const float* values = keys + size_t{s.kv_heads} * s.head_dim;
    for (uint32_t h = 0; h < s.kv_heads; ++h) {
      rotate(keys + size_t{h} * s.head_dim, row.position);
      kv_->write(layer, row.lane, h, row.position, keys + size_t{h} * s.head_dim,
                 values + size_t{h} * s.head_dim);
    }
  });
}

void Forward::attend_one(const Row& row, uint32_t index, uint32_t layer, uint32_t kv_head,
                         const PerThread& own) {
  const Shape& s = *shape_;
  const FormatKernels& k = (*compute_.kernels)[compute_.attention];
  const FormatKernels& next = (*compute_.kernels)[compute_.linear];
  const uint32_t group = s.group(), cells = row.position + 1, width = padded(s.head_dim);
  const uint32_t first_head = kv_head * group;

  k.matmul(act(queries_, (size_t{index} * s.heads + first_head) * width, compute_.attention), width,
           group, kv_->keys(layer, row.lane, kv_head), kv_->key_panel_bytes(), (cells + 31) / 32,
           s.head_dim, own.scores, cells_padded_);
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  float sums[kMostGroup];
  for (uint32_t g = 0; g < group; ++g)
    sums[g] = k.softmax(own.scores + size_t{g} * cells_padded_, cells, scale,
                        act(own.probs, size_t{g} * cells_padded_, compute_.attention));
  k.matmul(own.probs, cells_padded_, group, kv_->values(layer, row.lane, kv_head),
           kv_->value_panel_bytes(), width / 32, cells, own.mixed, width);
  for (uint32_t g = 0; g < group; ++g)
    next.scale_to_acts(
        own.mixed + size_t{g} * width, s.head_dim, 1.0f / sums[g],
        act(heads_, size_t{index} * padded(s.q_width()) + size_t{first_head + g} * s.head_dim,
            compute_.linear));
}

void Forward::attend(Pool& pool, const std::vector<Row>& rows, uint32_t layer) {
  const auto n = static_cast<uint32_t>(rows.size());
  // Rows of one KV head are neighbours: they read the same keys and values.
  parallel(pool, n * shape_->kv_heads, [&](uint32_t task, uint32_t thread) {
    const uint32_t r = task % n;
    attend_one(rows[r], r, layer, task / n, per_thread_[thread]);
  });
}

}  // namespace calrt::cpu
