// SPDX-License-Identifier: Apache-2.0
#include "calrt/findings.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <tuple>

namespace calrt {
namespace {

constexpr size_t kPerCheck = 20;
constexpr size_t kInAll = 1000;
constexpr size_t kShown = 80;

// Length of the valid UTF-8 sequence at the start, 0 if there is none.
size_t utf8_length(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const size_t length = lead < 0x80    ? 1
                        : lead < 0xC2  ? 0
                        : lead < 0xE0  ? 2
                        : lead < 0xF0  ? 3
                        : lead <= 0xF4 ? 4
                                       : 0;
  if (length == 0 || length > bytes.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(bytes[i]) & 0xC0) != 0x80) return 0;
  }
  const auto second = static_cast<unsigned char>(length > 1 ? bytes[1] : 0);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second >= 0x90)) {
    return 0;
  }
  return length;
}

// Control characters and broken bytes become '?', so that a manifest cannot write to a terminal.
std::string printable(std::string_view value) {
  std::string out;
  out.reserve(value.size());
  for (size_t i = 0; i < value.size();) {
    const size_t length = utf8_length(value.substr(i));
    const auto lead = static_cast<unsigned char>(value[i]);
    if (length == 0 || lead < 0x20 || lead == 0x7F) {
      out += '?';
      ++i;
    } else {
      out.append(value.substr(i, length));
      i += length;
    }
  }
  return out;
}

char gate_of(std::string_view code) { return code.empty() ? '?' : code[0]; }

}  // namespace

std::string text(const char* format, ...) {
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  const int length = std::vsnprintf(nullptr, 0, format, args);
  va_end(args);
  std::string out(length > 0 ? static_cast<size_t>(length) : 0, '\0');
  if (length > 0) std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

std::string grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string shown(std::string_view value) {
  std::string out;
  for (size_t i = 0; i < value.size();) {
    const size_t length = std::max<size_t>(1, utf8_length(value.substr(i)));
    if (i + length > kShown) return printable(out) + "…";
    out.append(value.substr(i, length));
    i += length;
  }
  return printable(out);
}

std::string json_quote(std::string_view value) {
  std::string out = "\"";
  for (size_t i = 0; i < value.size();) {
    const size_t length = utf8_length(value.substr(i));
    const auto lead = static_cast<unsigned char>(value[i]);
    if (length == 0) {
      out += '?';
    } else if (lead == '"' || lead == '\\') {
      out += '\\';
      out += value[i];
    } else if (lead < 0x20 || lead == 0x7F) {
      out += text("\\u%04x", lead);
    } else {
      out.append(value.substr(i, length));
    }
    i += std::max<size_t>(1, length);
  }
  return out + '"';
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

void Findings::add(char severity, const char* code, At at, std::string message,
                   std::string expected, std::string found) {
  Count& count = counts_[code];
  ++count.seen;
  // The first reject of a check is always kept: it decides how a load fails.
  const bool first_reject = severity == 'R' && count.worst != 'R';
  if (severity == 'R') {
    ++rejects_;
    count.worst = 'R';
  } else if (severity == 'W' && count.worst == 'N') {
    count.worst = 'W';
  }
  if (!first_reject && (count.seen > kPerCheck || findings_.size() >= kInAll)) return;
  findings_.push_back(Finding{gate_of(code), code, severity, std::move(at.file),
                              std::move(at.artifact), std::move(at.field), printable(message),
                              std::move(expected), std::move(found)});
}

bool Findings::full(const char* code) const {
  const auto found = counts_.find(code);
  return found != counts_.end() && found->second.seen > kPerCheck;
}

std::vector<Finding> Findings::finish() {
  std::vector<Finding> out = findings_;
  std::stable_sort(out.begin(), out.end(), [](const Finding& a, const Finding& b) {
    return std::tie(a.gate, a.code, a.file, a.field) < std::tie(b.gate, b.code, b.file, b.field);
  });
  for (const auto& [code, count] : counts_) {
    const auto last =
        std::find_if(out.rbegin(), out.rend(),
                     [&code = code](const Finding& finding) { return finding.code == code; });
    const auto kept = static_cast<size_t>(
        std::count_if(out.begin(), out.end(),
                      [&code = code](const Finding& finding) { return finding.code == code; }));
    if (kept == count.seen || last == out.rend()) continue;
    Finding more{gate_of(code),
                 code,
                 count.worst,
                 last->file,
                 "",
                 "",
                 text("and %zu more", count.seen - kept),
                 "",
                 ""};
    out.insert(last.base(), std::move(more));
  }
  return out;
}

}  // namespace calrt
