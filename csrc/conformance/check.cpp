// SPDX-License-Identifier: Apache-2.0
#include "conformance/check.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace calrt::conformance {
namespace {

std::vector<Check>& registered() {
  static std::vector<Check> all;
  return all;
}

std::string formatted(const char* format, va_list args) {
  char text[768];
  std::vsnprintf(text, sizeof text, format, args);
  return text;
}

}  // namespace

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {
#define CONFORMANCE_RULE(id, capability, text) {id, capability, text},
#include "conformance/rules.inc"
#undef CONFORMANCE_RULE
  };
  return all;
}

const Rule* find_rule(const std::string& id) {
  for (const Rule& rule : rules())
    if (id == rule.id) return &rule;
  return nullptr;
}

const std::vector<Check>& checks() {
  static const std::vector<Check> sorted = [] {
    std::vector<Check> all = registered();
    const auto place = [](const Check& check) { return find_rule(check.rule) - rules().data(); };
    std::stable_sort(all.begin(), all.end(), [&](const Check& a, const Check& b) {
      return place(a) != place(b) ? place(a) < place(b) : std::strcmp(a.part, b.part) < 0;
    });
    return all;
  }();
  return sorted;
}

Register::Register(const char* rule, const char* part, void (*run)(Kit& kit)) {
  registered().push_back({rule, part, run});
}

void broken(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Broken end{"", formatted(format, args)};
  va_end(args);
  throw end;
}

void broken_rule(const char* rule, const char* format, ...) {
  va_list args;
  va_start(args, format);
  Broken end{rule, formatted(format, args)};
  va_end(args);
  throw end;
}

void skip(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Skipped end{formatted(format, args)};
  va_end(args);
  throw end;
}

}  // namespace calrt::conformance
