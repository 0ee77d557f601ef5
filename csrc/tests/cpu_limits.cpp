// SPDX-License-Identifier: Apache-2.0
// Compiled with the flags of AVX2 on x86; cpu_bench is for machines that have it.
#include "cpu_limits.h"

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

namespace calrt::testing {
namespace {

typedef uint64_t U4 __attribute__((vector_size(32)));

// Of one thread: CPU time, which other processes do not stretch. Of several: real time.
double now(uint32_t threads) {
  if (threads == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

template <class Body>
double timed(uint32_t threads, Body&& body) {
  double best = 1e30;
  for (int pass = 0; pass < 5; ++pass) {
    const double start = now(threads);
    std::vector<std::thread> others;
    for (uint32_t t = 1; t < threads; ++t) others.emplace_back([&, t] { body(t); });
    body(0);
    for (std::thread& other : others) other.join();
    best = std::min(best, now(threads) - start);
  }
  return best;
}

}  // namespace

double read_gigabytes_per_second(uint32_t threads) {
  constexpr size_t kBytes = size_t{512} << 20;
  static std::vector<unsigned char> memory(kBytes, 1);
  std::vector<uint64_t> sums(threads);
  const size_t part = kBytes / threads / 256 * 256;
  const double time = timed(threads, [&](uint32_t t) {
    U4 sum[8] = {};
    const unsigned char* p = memory.data() + t * part;
    for (size_t i = 0; i < part; i += 256)
      for (size_t v = 0; v < 8; ++v) {
        U4 x;
        std::memcpy(&x, p + i + v * 32, 32);
        sum[v] ^= x;
      }
    for (const U4& s : sum) sums[t] += s[0] ^ s[1] ^ s[2] ^ s[3];
  });
  volatile uint64_t keep = sums[0];
  (void)keep;
  return static_cast<double>(part) * threads / time * 1e-9;
}

double fma_gigaflops(uint32_t threads) {
  constexpr int kRounds = 2'000'000;
  std::vector<float> results(threads);
  const double time = timed(threads, [&](uint32_t t) {
    const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    // Ten chains by name: an array of them would be kept in memory.
    __m256 c0 = a, c1 = a, c2 = a, c3 = a, c4 = a, c5 = a, c6 = a, c7 = a, c8 = a, c9 = a;
    for (int i = 0; i < kRounds; ++i) {
      c0 = _mm256_fmadd_ps(c0, a, b), c1 = _mm256_fmadd_ps(c1, a, b);
      c2 = _mm256_fmadd_ps(c2, a, b), c3 = _mm256_fmadd_ps(c3, a, b);
      c4 = _mm256_fmadd_ps(c4, a, b), c5 = _mm256_fmadd_ps(c5, a, b);
      c6 = _mm256_fmadd_ps(c6, a, b), c7 = _mm256_fmadd_ps(c7, a, b);
      c8 = _mm256_fmadd_ps(c8, a, b), c9 = _mm256_fmadd_ps(c9, a, b);
    }
    const __m256 sum =
        _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(c0, c1), _mm256_add_ps(c2, c3)),
                      _mm256_add_ps(_mm256_add_ps(_mm256_add_ps(c4, c5), _mm256_add_ps(c6, c7)),
                                    _mm256_add_ps(c8, c9)));
    results[t] += _mm256_cvtss_f32(sum);
  });
  volatile float keep = results[0];
  (void)keep;
  return 2.0 * 8 * 10 * kRounds * threads / time * 1e-9;
}

}  // namespace calrt::testing
