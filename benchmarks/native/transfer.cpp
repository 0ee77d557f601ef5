// SPDX-License-Identifier: Apache-2.0
// What calrt adds to a transfer: 64 B to 1 GiB to and from a buffer of the null driver, which
// copies with memcpy, against that memcpy between the same two places, in turn, best of at least 5:
// on a shared machine, the best 5 copies of 64 MiB differ by 8 % from the best 5 others. Both
// are fitted as t = alpha + n / beta: alpha from what fits a cache's first level, beta from what
// fits none, as a memcpy is no one line through all of them. CALRT_BENCH_MOST_BYTES ends the sizes
// earlier.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench.h"
#include "calrt/device.h"

using namespace calrt;

namespace {

constexpr uint64_t kLeastBytes = 64;
constexpr uint64_t kSmallBytes = 1 << 12, kLargeBytes = 1 << 24;
// As many rounds as copy 4 GiB together.
constexpr uint64_t kLeastRounds = 5, kMostRounds = 25, kRoundsBytes = uint64_t{4} << 30;

struct Point {
  double bytes, ns;
};

struct Line {
  double alpha_ns, ns_per_byte;
};

// Least squares of the relative error over the sizes from `least` to `most`.
Line fit(const std::vector<Point>& points, uint64_t least, uint64_t most) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (const Point& p : points) {
    if (p.bytes < static_cast<double>(least) || p.bytes > static_cast<double>(most)) continue;
    const double weight = 1 / (p.ns * p.ns);
    w += weight;
    wx += weight * p.bytes;
    wy += weight * p.ns;
    wxx += weight * p.bytes * p.bytes;
    wxy += weight * p.bytes * p.ns;
  }
  const double slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  return {(wy - slope * wx) / w, slope};
}

// ns per call; small transfers are repeated until the clock can see them.
template <class Call>
double time_ns(uint64_t bytes, Call&& call) {
  using Clock = std::chrono::steady_clock;
  const uint64_t calls = std::clamp<uint64_t>((uint64_t{1} << 22) / bytes, 1, 1000);
  const auto begin = Clock::now();
  for (uint64_t i = 0; i < calls; ++i) call();
  const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
  return took.count() / static_cast<double>(calls);
}

void run(const char* name, bool to_device) {
  uint64_t most = uint64_t{1} << 30;
  if (const char* set = std::getenv("CALRT_BENCH_MOST_BYTES"))
    most = std::strtoull(set, nullptr, 0);
  auto device = Device::open("null", {}).value();
  auto buffer = device->alloc(most, CALD_DOMAIN_HOST, 64).value();
  const std::unique_ptr<char[]> host(new char[most]);
  std::memset(host.get(), 1, most);
  char* const mapped = static_cast<char*>(buffer->data());
  bool ok = true;
  std::vector<Point> ours, plain;
  for (uint64_t bytes = kLeastBytes; bytes <= most; bytes *= 4) {
    double best_ours = 1e300, best_plain = 1e300;
    const uint64_t rounds = std::clamp(kRoundsBytes / bytes, kLeastRounds, kMostRounds);
    for (uint64_t i = 0; i < rounds; ++i) {
      best_plain = std::min(best_plain, time_ns(bytes, [&] {
                              std::memcpy(to_device ? mapped : host.get(),
                                          to_device ? host.get() : mapped, bytes);
                              asm volatile("" ::: "memory");
                            }));
      best_ours = std::min(best_ours, time_ns(bytes, [&] {
                             ok = ok && (to_device ? buffer->write(0, host.get(), bytes)
                                                   : buffer->read(0, host.get(), bytes))
                                            .ok();
                           }));
    }
    ours.push_back({static_cast<double>(bytes), best_ours});
    plain.push_back({static_cast<double>(bytes), best_plain});
    bench::record(std::string("native.transfer.") + name, best_ours, "ns", best_plain, bytes);
  }
  if (!ok) std::fprintf(stderr, "a transfer failed: the figure means nothing\n");
  const std::string of = std::string("native.transfer.") + name;
  bench::record(of + ".alpha_added",
                fit(ours, 0, kSmallBytes).alpha_ns - fit(plain, 0, kSmallBytes).alpha_ns, "ns",
                1000);
  if (most < 4 * kLargeBytes) return;  // too few sizes for a line
  bench::record(
      of + ".time_per_byte",
      fit(ours, kLargeBytes, most).ns_per_byte / fit(plain, kLargeBytes, most).ns_per_byte,
      "x memcpy", 1.05);
}

}  // namespace

BENCH(transfer_h2d) { run("h2d", true); }
BENCH(transfer_d2h) { run("d2h", false); }
