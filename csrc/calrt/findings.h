// SPDX-License-Identifier: Apache-2.0
// What the validator collects: findings with a bound, and the texts they are made of.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "calrt/package.h"

namespace calrt {

// printf into a string; as long as it gets.
[[gnu::format(printf, 1, 2)]] std::string text(const char* format, ...);
// 1171200 -> "1,171,200".
std::string grouped(uint64_t value);
// A string of the manifest as messages show it: cut at 80 bytes, no control characters.
std::string shown(std::string_view value);
// As a JSON string, quotes included. Bytes that are not UTF-8 become '?'.
std::string json_quote(std::string_view value);
// "a, b, c".
std::string joined(const std::vector<std::string>& words);

// Where a finding is. Empty = not applicable.
struct At {
  std::string field = {};     // JSON pointer
  std::string artifact = {};  // id
  std::string file = "manifest.json";
};

// At most 20 findings per check, then one line "and N more"; at most 1,000 in all. Not thread-safe.
class Findings {
 public:
  void reject(const char* code, At at, std::string message, std::string expected = "",
              std::string found = "") {
    add('R', code, std::move(at), std::move(message), std::move(expected), std::move(found));
  }
  void warn(const char* code, At at, std::string message) {
    add('W', code, std::move(at), std::move(message), "", "");
  }
  void note(const char* code, At at, std::string message) {
    add('N', code, std::move(at), std::move(message), "", "");
  }
  // `expected` and `found` are JSON texts, "" = null.
  void add(char severity, const char* code, At at, std::string message, std::string expected,
           std::string found);

  // True once a check has said all it may: loops over hostile input stop here.
  bool full(const char* code) const;
  size_t rejects() const { return rejects_; }
  // All of them, ordered by gate, code, file, field, with the "and N more" lines.
  std::vector<Finding> finish();

 private:
  struct Count {
    size_t seen = 0;
    char worst = 'N';
  };
  std::vector<Finding> findings_;
  std::map<std::string, Count, std::less<>> counts_;
  size_t rejects_ = 0;
};

}  // namespace calrt
