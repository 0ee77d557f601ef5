// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bench.h"

namespace calrt::bench {

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

void record(const std::string& name, double value, const char* unit, std::optional<double> limit,
            std::optional<uint64_t> n) {
  const auto number = [](std::optional<double> known) -> std::string {
    if (!known) return "null";
    char text[64];
    std::snprintf(text, sizeof text, "%.6g", *known);
    return text;
  };
  double load = 0;
  std::optional<double> load_now, ratio;
  if (getloadavg(&load, 1) == 1) load_now = load;
  if (limit && *limit > 0) ratio = value / *limit;
  std::printf(
      "{\"kind\": \"bench\", \"name\": \"%s\", \"n\": %s, \"value\": %s, \"unit\": \"%s\", "
      "\"limit\": %s, \"ratio\": %s, \"load\": %s, \"out_sha256\": null}\n",
      name.c_str(), n ? std::to_string(*n).c_str() : "null", number(value).c_str(), unit,
      number(limit).c_str(), number(ratio).c_str(), number(load_now).c_str());
  std::fflush(stdout);
}

}  // namespace calrt::bench

int main(int argc, char** argv) {
  int ran = 0;
  for (const auto& one : calrt::bench::cases()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strcmp(argv[i], one.name) == 0;
    if (!wanted) continue;
    one.run();
    ++ran;
  }
  if (ran == 0) std::fprintf(stderr, "no benchmark of that name\n");
  return ran > 0 ? 0 : 1;
}
