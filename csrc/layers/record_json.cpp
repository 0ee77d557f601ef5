// SPDX-License-Identifier: Apache-2.0
#include "layers/record_json.h"

#include <charconv>
#include <cstdlib>

namespace calrt::layers {

class JsonValue::Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  bool document(JsonValue& out) {
    if (!value(out, 0)) return false;
    blanks();
    return at_ == text_.size();
  }

 private:
  static constexpr int kDeepest = 32;

  void blanks() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != text_.npos) ++at_;
  }
  bool take(char wanted) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }

  bool value(JsonValue& out, int depth) {
    blanks();
    if (at_ >= text_.size() || depth > kDeepest) return false;
    switch (text_[at_]) {
      case '{':
        out.kind_ = Kind::OBJECT;
        return list('}', [&] {
          std::string name;
          if (!string(name) || !take(':')) return false;
          out.names_.push_back(std::move(name));
          return value(out.items_.emplace_back(), depth + 1);
        });
      case '[':
        out.kind_ = Kind::ARRAY;
        return list(']', [&] { return value(out.items_.emplace_back(), depth + 1); });
      case '"':
        out.kind_ = Kind::TEXT;
        return string(out.text_);
      case 't':
        out.kind_ = Kind::TRUTH;
        return word("true");
      case 'f':
        out.kind_ = Kind::FALSEHOOD;
        return word("false");
      case 'n':
        return word("null");
      default:
        return number(out);
    }
  }
  template <class Item>
  bool list(char end, Item&& item) {
    ++at_;
    if (take(end)) return true;
    do {
      if (!item()) return false;
    } while (take(','));
    return take(end);
  }
  bool number(JsonValue& out) {
    const size_t from = at_;
    while (at_ < text_.size() && std::string_view("+-.0123456789eE").find(text_[at_]) != text_.npos)
      ++at_;
    out.kind_ = Kind::NUMBER;
    out.text_ = text_.substr(from, at_ - from);
    return at_ > from;
  }
  bool string(std::string& out) {
    if (!take('"')) return false;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] != '\\') {
        const size_t end = text_.find_first_of("\"\\", at_);
        if (end == text_.npos) return false;
        out.append(text_.substr(at_, end - at_));
        at_ = end;
        continue;
      }
      if (++at_ >= text_.size() || !escaped(out)) return false;
    }
    return take('"');
  }
  // The writer escapes only quotes, backslashes and control characters.
  bool escaped(std::string& out) {
    const char c = text_[at_++];
    if (c == 'n' || c == 't' || c == 'r') {
      out += c == 'n' ? '\n' : c == 't' ? '\t' : '\r';
      return true;
    }
    if (c != 'u') {
      out += c;
      return c == '"' || c == '\\' || c == '/';
    }
    unsigned code = 0;
    const char* const from = text_.data() + at_;
    if (text_.size() - at_ < 4 || std::from_chars(from, from + 4, code, 16).ptr != from + 4)
      return false;
    at_ += 4;
    out += code < 0x80 ? static_cast<char>(code) : '?';
    return true;
  }

  std::string_view text_;
  size_t at_ = 0;
};

std::optional<JsonValue> JsonValue::parse(std::string_view text) {
  JsonValue value;
  if (!Reader(text).document(value)) return {};
  return value;
}

const JsonValue& JsonValue::operator[](std::string_view name) const {
  static const JsonValue none;
  for (size_t i = 0; i < names_.size(); ++i)
    if (names_[i] == name) return items_[i];
  return none;
}

int64_t JsonValue::integer() const {
  int64_t number = 0;
  (void)std::from_chars(text_.data(), text_.data() + text_.size(), number);
  return number;
}

uint64_t JsonValue::count() const {
  uint64_t number = 0;
  (void)std::from_chars(text_.data(), text_.data() + text_.size(), number);
  return number;
}

double JsonValue::real() const { return std::strtod(text_.c_str(), nullptr); }

}  // namespace calrt::layers
