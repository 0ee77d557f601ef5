// SPDX-License-Identifier: Apache-2.0
// The runner of native benchmarks: BENCH registers, best_ns() measures, record() prints a row.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace calrt::bench {

struct Case {
  const char* name;
  void (*run)();
};
std::vector<Case>& cases();
struct Register {
  Register(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

// One row of kind "bench"; what is unknown is null. `limit`: what value is held against, in the
// same unit, from the same run; the row's ratio is value / limit.
void record(const std::string& name, double value, const char* unit,
            std::optional<double> limit = std::nullopt, std::optional<uint64_t> n = std::nullopt);

// ns per call: the best of many runs so short that some fall between the machine's other work.
template <class Call>
double best_ns(Call&& call, int calls = 300, int runs = 400) {
  using Clock = std::chrono::steady_clock;
  double best = 1e300;
  for (int run = 0; run < runs; ++run) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    best = std::min(best, took.count() / calls);
  }
  return best;
}

}  // namespace calrt::bench

#define BENCH(name)                                                     \
  static void bench_##name();                                           \
  static ::calrt::bench::Register register_##name(#name, bench_##name); \
  static void bench_##name()
