// SPDX-License-Identifier: Apache-2.0
// Splitting the text of layers and rules.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace calrt::layers {

inline std::string_view trimmed(std::string_view text) {
  const size_t from = text.find_first_not_of(" \t\n");
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\n") - from + 1);
}

// The parts between `separator`s that stand outside "quotes", trimmed, without empty ones.
inline std::vector<std::string> split_outside_quotes(std::string_view text, char separator) {
  std::vector<std::string> parts;
  bool quoted = false;
  for (size_t from = 0, at = 0; at <= text.size(); ++at) {
    if (at < text.size() && text[at] == '"') quoted = !quoted;
    if (at < text.size() && (quoted || text[at] != separator)) continue;
    if (const auto part = trimmed(text.substr(from, at - from)); !part.empty())
      parts.emplace_back(part);
    from = at + 1;
  }
  return parts;
}

}  // namespace calrt::layers
