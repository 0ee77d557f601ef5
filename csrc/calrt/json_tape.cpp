// SPDX-License-Identifier: Apache-2.0
#include "calrt/json_tape.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>

namespace calrt {
namespace {

// Walks the source and tells how far the lexer has read, which the SAX events do not.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** read) : at_(at), read_(read) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    *read_ = at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** read_;
};

bool is_number_char(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || c == 'e' || c == 'E';
}

void append_pointer_key(std::string* out, std::string_view key) {
  for (char c : key) {
    if (c == '~') {
      *out += "~0";
    } else if (c == '/') {
      *out += "~1";
    } else {
      *out += c;
    }
  }
}

size_t line_of(std::string_view source, size_t at) {
  return 1 + static_cast<size_t>(std::count(source.begin(), source.begin() + at, '\n'));
}

size_t column_of(std::string_view source, size_t at) {
  const size_t newline = at == 0 ? std::string_view::npos : source.rfind('\n', at - 1);
  return newline == std::string_view::npos ? at + 1 : at - newline;
}

}  // namespace

const char* json_type_name(JsonType type) {
  switch (type) {
    case JsonType::NUL:
      return "null";
    case JsonType::BOOL:
      return "bool";
    case JsonType::NUMBER:
      return "number";
    case JsonType::STRING:
      return "string";
    case JsonType::ARRAY:
      return "list";
    case JsonType::OBJECT:
      return "object";
  }
  return "?";
}

class JsonTape::Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(JsonTape* tape, std::string_view source, const char* const* read, Findings* out)
      : tape_(tape), source_(source), read_(read), out_(out) {}

  bool null() override { return leaf(JsonType::NUL, "null"); }
  bool boolean(bool value) override { return leaf(JsonType::BOOL, value ? "true" : "false"); }
  bool number_integer(number_integer_t) override { return number(); }
  bool number_unsigned(number_unsigned_t) override { return number(); }
  bool number_float(number_float_t, const string_t&) override { return number(); }
  bool string(string_t& value) override {
    return check_string(value) && leaf(JsonType::STRING, value);
  }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(JsonType::OBJECT); }
  bool start_array(size_t) override { return open(JsonType::ARRAY); }
  bool end_object() override {
    report_duplicates(stack_.back());
    return close();
  }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    if (!check_string(value)) return false;
    key_ = static_cast<uint32_t>(tape_->bytes_.size());
    key_size_ = static_cast<uint32_t>(value.size());
    tape_->bytes_ += value;
    return true;
  }

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The library's text after its own line and column, which count differently at line ends.
    std::string what = error.what();
    for (const char* mark : {"syntax error ", "number overflow "}) {
      if (const size_t at = what.find(mark); at != std::string::npos) what = what.substr(at);
    }
    const size_t at = std::min(position == 0 ? 0 : position - 1, source_.size());
    out_->reject("C02", {},
                 text("manifest.json line %zu, column %zu: %s", line_of(source_, at),
                      column_of(source_, at), shown_long(what).c_str()));
    return false;
  }

 private:
  static std::string shown_long(const std::string& what) { return what.substr(0, 240); }
  uint32_t consumed() const { return static_cast<uint32_t>(*read_ - source_.data()); }

  bool limit(const std::string& message) {
    const std::string where = stack_.empty() ? "" : tape_->pointer(stack_.back());
    out_->reject("C04", {.field = where}, message);
    return false;
  }

  bool check_string(const std::string& value) {
    if (value.size() > kMaxString) {
      return limit(text("string of %s bytes, at most %s", grouped(value.size()).c_str(),
                        grouped(kMaxString).c_str()));
    }
    if (value.find('\0') != std::string::npos) return limit("U+0000 in a string");
    return true;
  }

  bool append(JsonType type, std::string_view value, uint32_t begin, uint32_t end) {
    if (tape_->nodes_.size() >= kMaxNodes) {
      return limit(text("over %s values", grouped(kMaxNodes).c_str()));
    }
    const auto index = static_cast<uint32_t>(tape_->nodes_.size());
    Node node{};
    node.parent = stack_.empty() ? kNone : stack_.back();
    node.next = index + 1;
    node.key = key_;
    node.key_size = key_size_;
    node.value = static_cast<uint32_t>(tape_->bytes_.size());
    node.value_size = static_cast<uint32_t>(value.size());
    node.begin = begin;
    node.end = end;
    node.type = type;
    tape_->bytes_ += value;
    tape_->nodes_.push_back(node);
    if (node.parent != kNone) ++tape_->nodes_[node.parent].count;
    key_ = key_size_ = 0;
    return true;
  }

  bool leaf(JsonType type, std::string_view value) {
    const uint32_t end = consumed();
    const auto size = static_cast<uint32_t>(value.size());
    return append(type, value, end > size ? end - size : 0, end);
  }

  // The token as written: the lexer stands at its end, or one character further.
  bool number() {
    uint32_t end = consumed();
    if (end > 0 && !is_number_char(source_[end - 1])) --end;
    uint32_t begin = end;
    while (begin > 0 && is_number_char(source_[begin - 1])) --begin;
    return append(JsonType::NUMBER, source_.substr(begin, end - begin), begin, end);
  }

  bool open(JsonType type) {
    if (stack_.size() >= kMaxDepth) return limit(text("nested deeper than %zu", kMaxDepth));
    const uint32_t at = consumed();
    if (!append(type, {}, at == 0 ? 0 : at - 1, at)) return false;
    stack_.push_back(static_cast<uint32_t>(tape_->nodes_.size() - 1));
    return true;
  }

  bool close() {
    Node& node = tape_->nodes_[stack_.back()];
    node.next = static_cast<uint32_t>(tape_->nodes_.size());
    node.end = consumed();
    stack_.pop_back();
    return true;
  }

  void report_duplicates(uint32_t object) {
    std::vector<uint32_t> children;
    children.reserve(tape_->nodes_[object].count);
    const auto end = static_cast<uint32_t>(tape_->nodes_.size());
    for (uint32_t child = object + 1; child < end; child = tape_->nodes_[child].next) {
      children.push_back(child);
    }
    std::stable_sort(children.begin(), children.end(),
                     [this](uint32_t a, uint32_t b) { return tape_->key(a) < tape_->key(b); });
    for (size_t i = 1; i < children.size() && !out_->full("C03"); ++i) {
      if (tape_->key(children[i - 1]) != tape_->key(children[i])) continue;
      out_->reject(
          "C03", {.field = tape_->pointer(children[i])},
          text("key '%s' twice, in lines %zu and %zu", shown(tape_->key(children[i])).c_str(),
               line(children[i - 1]), line(children[i])));
    }
  }

  size_t line(uint32_t node) const { return line_of(source_, tape_->nodes_[node].begin); }

  JsonTape* tape_;
  std::string_view source_;
  const char* const* read_;
  Findings* out_;
  std::vector<uint32_t> stack_;
  uint32_t key_ = 0, key_size_ = 0;
};

bool JsonTape::parse(std::string_view source, Findings* out) {
  nodes_.clear();
  bytes_.clear();
  if (source.substr(0, 3) == "\xEF\xBB\xBF") {
    out->reject("C02", {},
                "manifest.json line 1, column 1: a byte order mark; wanted UTF-8 without one");
    return false;
  }
  const char* read = source.data();
  Builder builder(this, source, &read, out);
  const size_t before = out->rejects();
  const bool complete =
      nlohmann::json::sax_parse(CountingIterator(source.data(), &read),
                                CountingIterator(source.data() + source.size(), &read), &builder);
  if (!complete && out->rejects() == before) {
    out->reject("C02", {}, "manifest.json is not JSON");
  }
  return complete;
}

uint32_t JsonTape::following(uint32_t node) const {
  const uint32_t parent = nodes_[node].parent;
  const uint32_t next = nodes_[node].next;
  return parent != kNone && next < nodes_[parent].next ? next : kNone;
}

uint32_t JsonTape::find(uint32_t object, std::string_view key) const {
  for (uint32_t child = first(object); child != kNone; child = following(child)) {
    if (this->key(child) == key) return child;
  }
  return kNone;
}

std::string JsonTape::pointer(uint32_t node) const {
  std::vector<std::string> parts;
  for (; nodes_[node].parent != kNone; node = nodes_[node].parent) {
    const uint32_t parent = nodes_[node].parent;
    std::string part;
    if (nodes_[parent].type == JsonType::OBJECT) {
      append_pointer_key(&part, shown(key(node)));
    } else {
      size_t index = 0;
      for (uint32_t at = parent + 1; at < node; at = nodes_[at].next) ++index;
      part = std::to_string(index);
    }
    parts.push_back(std::move(part));
  }
  std::string out;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) out += '/' + *part;
  return out;
}

}  // namespace calrt
