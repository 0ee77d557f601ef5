// SPDX-License-Identifier: Apache-2.0
// One hardened pass over JSON text into our own nodes. Limits hold while reading: depth 16,
// 2,000,000 nodes, strings of 64 KiB, no NUL, no duplicate key, no BOM. Numbers stay as their
// token.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "calrt/findings.h"

namespace calrt {

enum class JsonType : uint8_t { NUL, BOOL, NUMBER, STRING, ARRAY, OBJECT };
const char* json_type_name(JsonType type);  // "string", as messages say it

class JsonTape {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr size_t kMaxDepth = 16, kMaxNodes = 2000000, kMaxString = 64 * 1024;

  // False when the text is not JSON or breaks a limit; `out` says why (C02, C03, C04). Duplicate
  // keys are reported and reading goes on, so the tape is complete iff this is true.
  bool parse(std::string_view source, Findings* out);

  // Node 0 is the root; children follow their parent in order.
  JsonType type(uint32_t node) const { return nodes_[node].type; }
  std::string_view key(uint32_t node) const {
    return view(nodes_[node].key, nodes_[node].key_size);
  }
  // Decoded string, or the number's or bool's token.
  std::string_view value(uint32_t node) const {
    return view(nodes_[node].value, nodes_[node].value_size);
  }
  uint32_t count(uint32_t node) const { return nodes_[node].count; }
  uint32_t first(uint32_t node) const { return count(node) == 0 ? kNone : node + 1; }
  uint32_t following(uint32_t node) const;
  uint32_t find(uint32_t object, std::string_view key) const;
  // Bytes of source text from a node's begin to its end.
  uint32_t source_bytes(uint32_t node) const { return nodes_[node].end - nodes_[node].begin; }
  std::string pointer(uint32_t node) const;

 private:
  class Builder;
  struct Node {
    uint32_t parent, next;  // next: one past the subtree
    uint32_t key, key_size, value, value_size;
    uint32_t begin, end;  // in the source
    uint32_t count;       // children
    JsonType type;
  };
  std::string_view view(uint32_t at, uint32_t size) const {
    return std::string_view(bytes_).substr(at, size);
  }
  std::vector<Node> nodes_;
  std::string bytes_;  // keys and values, decoded
};

}  // namespace calrt
