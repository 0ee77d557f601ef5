// SPDX-License-Identifier: Apache-2.0
// The whole test framework: CHECK counts and reports, TEST registers, main() runs all or the named.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/ranked_mutex.h"

namespace calrt::testing {

struct Case {
  const char* name;
  void (*run)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
inline int& failures() {
  static int count = 0;
  return count;
}
// A test that takes locks in a wrong order on purpose adds how often.
inline uint64_t& expected_lock_violations() {
  static uint64_t count = 0;
  return count;
}
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

}  // namespace calrt::testing

#define TEST(name)                                                       \
  static void test_##name();                                             \
  static ::calrt::testing::Register register_##name(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                                 \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      ++::calrt::testing::failures();                                                    \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                                    \
  } while (0)

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& test : calrt::testing::cases()) {
    if (argc > 1 && std::strcmp(argv[1], test.name) != 0) continue;
    test.run();
    ++ran;
  }
  CHECK(calrt::lock_order_violations() == calrt::testing::expected_lock_violations());
  std::printf("%d passed, %d failed\n", calrt::testing::failures() == 0 ? ran : 0,
              calrt::testing::failures());
  return calrt::testing::failures() == 0 && ran > 0 ? 0 : 1;
}
