// SPDX-License-Identifier: Apache-2.0
// libFuzzer's mutator for JSON: half of the time the bytes change as they do everywhere, else one
// whole value is replaced, nudged, doubled or dropped, so that the text stays JSON and the checks
// behind the parser are reached.
#include <cctype>
#include <charconv>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr const char* kValues[] = {"0",
                                   "1",
                                   "2",
                                   "3",
                                   "4",
                                   "16",
                                   "64",
                                   "65536",
                                   "2147483647",
                                   "2147483648",
                                   "4294967295",
                                   "4294967296",
                                   "9007199254740991",
                                   "9007199254740992",
                                   "9223372036854775808",
                                   "18446744073709551615",
                                   "-1",
                                   "1.5",
                                   "1e400",
                                   "1e-400",
                                   "null",
                                   "true",
                                   "false",
                                   "\"\"",
                                   "\"B\"",
                                   "\"T\"",
                                   "\"V\"",
                                   "\"R\"",
                                   "\"x\"",
                                   "[]",
                                   "[1]",
                                   "[4,1]",
                                   "{}",
                                   "{\"min\":1,\"max\":2147483647,\"step\":1}",
                                   "{\"min\":0,\"max\":0,\"step\":0}",
                                   "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]"};

struct Span {
  size_t begin, end;
};

size_t string_end(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) at += text[at] == '\\';
  return std::min(at + 1, text.size());
}

// Every string, word, number, list and object, keys among them, in order of their beginning.
std::vector<Span> spans(std::string_view text) {
  std::vector<Span> out;
  std::vector<size_t> open;  // indices in out
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c == '"') {
      const size_t end = string_end(text, at);
      out.push_back({at, end});
      at = end;
    } else if (c == '[' || c == '{') {
      open.push_back(out.size());
      out.push_back({at++, text.size()});
    } else if (c == ']' || c == '}') {
      ++at;
      if (open.empty()) continue;
      out[open.back()].end = at;
      open.pop_back();
    } else if (std::isalnum(c) || c == '-') {
      const size_t begin = at;
      while (at < text.size() && (std::isalnum(static_cast<unsigned char>(text[at])) ||
                                  std::strchr("+-.", text[at]) != nullptr)) {
        ++at;
      }
      out.push_back({begin, at});
    } else {
      ++at;
    }
  }
  return out;
}

// The number a little or a lot larger or smaller; other values stay as they are.
std::string nudged(std::string_view value, uint32_t how) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size()) return std::string(value);
  const uint64_t next[] = {number + 1, number - 1,      number * 2,
                           number / 2, number * number, 1 - number};
  return std::to_string(next[how % std::size(next)]);
}

std::string mutated(const std::string& text, std::minstd_rand& random) {
  const std::vector<Span> all = spans(text);
  if (all.empty()) return text;
  const Span target = all[random() % all.size()];
  const Span other = all[random() % all.size()];
  const std::string value = text.substr(target.begin, target.end - target.begin);
  const std::string before = text.substr(0, target.begin), after = text.substr(target.end);
  switch (random() % 6) {
    case 0:
      return before + kValues[random() % std::size(kValues)] + after;
    case 1:
      return before + text.substr(other.begin, other.end - other.begin) + after;
    case 2:
      return before + value + "," + value + after;
    case 3: {  // with the comma that follows
      const size_t comma = after.find_first_not_of(" \n\t");
      const bool has = comma != std::string::npos && after[comma] == ',';
      return before + (has ? after.substr(comma + 1) : after);
    }
    default:
      return before + nudged(value, static_cast<uint32_t>(random())) + after;
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  std::minstd_rand random(seed);
  if (random() % 2 == 0) return LLVMFuzzerMutate(data, size, max_size);
  std::string text(reinterpret_cast<const char*>(data), size);
  for (uint32_t left = 1 + random() % 3; left > 0; --left) text = mutated(text, random);
  if (text.size() > max_size) return LLVMFuzzerMutate(data, size, max_size);
  std::memcpy(data, text.data(), text.size());
  return text.size();
}
