// SPDX-License-Identifier: Apache-2.0
#include "layers/record_job.h"

#include <cstdio>

#include "base/sha256.h"
#include "layers/answer.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;

BoundBytes bound(const Call& call, int32_t role, cald_buffer* buffer, uint64_t offset,
                 uint64_t bytes) {
  BoundBytes found{role, bytes, nullptr};
  void* address = nullptr;
  const auto map = call.lower<&Table::buffer_map>();
  if (map != nullptr && buffer != nullptr &&
      ask([&] { return map(buffer, &address, nullptr); }) == CALD_OK && address != nullptr)
    found.data = static_cast<uint8_t*>(address) + offset;
  return found;
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

}  // namespace

JobView JobView::of(const Call& call) {
  JobView view;
  if (call.entry == Entry::submit) {
    const cald_job_desc& desc = *std::get<1>(call.of<&Table::submit>());
    view.what = "graph " + std::to_string(desc.graph);
    for (uint32_t i = 0; i < desc.n_bindings; ++i) {
      const cald_binding& binding = desc.bindings[i];
      auto& side = binding.role < CALD_ROLE_LOGITS ? view.inputs : view.outputs;
      side.push_back(bound(call, binding.role, binding.buffer, binding.offset, binding.bytes));
    }
    return view;
  }
  const cald_kv_desc& desc = *std::get<1>(call.of<&Table::kv_submit>());
  char what[160];
  std::snprintf(what, sizeof what, "kv op %u lane %u to %u cell %u to %u n %u delta %d", desc.op,
                desc.lane, desc.to_lane, desc.cell, desc.to_cell, desc.n, desc.delta);
  view.what = what;
  if (desc.op == CALD_KV_WRITE)
    view.inputs.push_back(bound(call, 0, desc.buffer, desc.offset, desc.bytes));
  if (desc.op == CALD_KV_READ)
    view.outputs.push_back(bound(call, 0, desc.buffer, desc.offset, desc.bytes));
  return view;
}

std::string JobView::key() const {
  std::string text = what;
  for (const BoundBytes& input : inputs)
    text += " in " + std::to_string(input.role) + " " + std::to_string(input.bytes) + " " +
            digest_of(input);
  for (const BoundBytes& output : outputs)
    text += " out " + std::to_string(output.role) + " " + std::to_string(output.bytes);
  return sha256_hex(text.data(), text.size());
}

std::string digest_of(const BoundBytes& bound) {
  return bound.data != nullptr ? sha256_hex(bound.data, bound.bytes) : std::string();
}

std::string hex_of(const BoundBytes& bound) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(bound.data != nullptr ? 2 * bound.bytes : 0, '0');
  for (size_t i = 0; i < hex.size() / 2; ++i) {
    hex[2 * i] = kDigits[bound.data[i] >> 4];
    hex[2 * i + 1] = kDigits[bound.data[i] & 15];
  }
  return hex;
}

bool write_hex(const BoundBytes& bound, std::string_view hex) {
  if (bound.data == nullptr || hex.size() != 2 * bound.bytes) return false;
  for (const char c : hex)
    if (digit(c) < 0) return false;
  for (uint64_t i = 0; i < bound.bytes; ++i)
    bound.data[i] = static_cast<uint8_t>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  return true;
}

}  // namespace calrt::layers
