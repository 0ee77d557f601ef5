// SPDX-License-Identifier: Apache-2.0
// Reading JSON that this project's layers wrote: small documents, numbers kept as their digits.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calrt::layers {

class JsonValue {
 public:
  // None for what is no JSON, or nests deeper than 32.
  static std::optional<JsonValue> parse(std::string_view text);

  // A member by name; where there is none, or this is no object, a value that is null.
  const JsonValue& operator[](std::string_view name) const;
  const std::vector<JsonValue>& items() const { return items_; }
  bool is_null() const { return kind_ == Kind::NOTHING; }
  bool is_text() const { return kind_ == Kind::TEXT; }
  const std::string& text() const { return text_; }  // of a string; of a number its digits
  int64_t integer() const;                           // 0 if it is none
  uint64_t count() const;                            // 0 if it is none
  double real() const;
  bool truth() const { return kind_ == Kind::TRUTH; }

 private:
  enum class Kind : uint8_t { NOTHING, TRUTH, FALSEHOOD, NUMBER, TEXT, ARRAY, OBJECT };
  class Reader;
  Kind kind_ = Kind::NOTHING;
  std::string text_;
  std::vector<JsonValue> items_;    // of an array; of an object its values
  std::vector<std::string> names_;  // of an object
};

}  // namespace calrt::layers
