// SPDX-License-Identifier: Apache-2.0
// What a check of the kit is: a function that tests one rule and says why it is broken. One thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace calrt::conformance {

class Kit;

struct Rule {
  const char* id;          // "JOB-03": stable, never used again for another rule
  const char* capability;  // what a pass is evidence for; "" = none of its own
  const char* text;
};
const std::vector<Rule>& rules();
const Rule* find_rule(const std::string& id);

// A check is named by its rule, and a word where a rule has several: "JOB-03", "BUF-05/overflow".
struct Check {
  const char* rule;
  const char* part;  // "" = the only one
  void (*run)(Kit& kit);

  std::string name() const { return std::string(rule) + (*part != '\0' ? "/" : "") + part; }
};
// All checks, in the order of the rules.
const std::vector<Check>& checks();

// How a check ends early. They are thrown by the functions below, within this program alone.
struct Broken {
  std::string rule;  // "" = the check's own
  std::string why;
};
struct Skipped {
  std::string why;
};
[[noreturn, gnu::format(printf, 1, 2)]] void broken(const char* format, ...);
[[noreturn, gnu::format(printf, 2, 3)]] void broken_rule(const char* rule, const char* format, ...);
[[noreturn, gnu::format(printf, 1, 2)]] void skip(const char* format, ...);

struct Register {
  Register(const char* rule, const char* part, void (*run)(Kit& kit));
};

}  // namespace calrt::conformance

// CONFORMANCE_CHECK("JOB-03", "") { ... kit ... }
#define CONFORMANCE_JOIN_(a, b) a##b
#define CONFORMANCE_JOIN(a, b) CONFORMANCE_JOIN_(a, b)
#define CONFORMANCE_CHECK_(rule, part, name)                                         \
  static void name(::calrt::conformance::Kit& kit);                                  \
  static ::calrt::conformance::Register CONFORMANCE_JOIN(name, _)(rule, part, name); \
  static void name([[maybe_unused]] ::calrt::conformance::Kit& kit)
#define CONFORMANCE_CHECK(rule, part) \
  CONFORMANCE_CHECK_(rule, part, CONFORMANCE_JOIN(check_, __COUNTER__))

// REQUIRE(moved == bytes, "moved is %llu of %llu", ...): else the rule is broken.
#define REQUIRE(condition, ...)                                  \
  do {                                                           \
    if (!(condition)) ::calrt::conformance::broken(__VA_ARGS__); \
  } while (0)
