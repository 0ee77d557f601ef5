// SPDX-License-Identifier: Apache-2.0
// Prints what the mock's own work costs: the figures of docs/mock.md.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "drivers/mock/fold.h"
#include "drivers/mock/logits.h"
#include "layout/layout.h"

using namespace calrt;
using namespace calrt::mock;

namespace {

// The least of many runs, in us.
template <class Run>
double least_us(Run&& run) {
  double least = 1e9;
  for (int i = 0; i < 300; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    least = std::min(least, took.count());
  }
  return least;
}

}  // namespace

int main() {
  constexpr uint32_t kCells = 40'960, kVocab = 151'936;
  std::vector<int32_t> positions(kCells);
  std::vector<uint32_t> mixes(kCells);
  for (uint32_t i = 0; i < kCells; ++i) {
    positions[i] = static_cast<int32_t>(i);
    mixes[i] = mix_of(i);
  }
  Sums sums{};
  for (const Isa isa : usable_isa_list()) {
    const double us =
        least_us([&] { sums = fold_for(isa)(positions.data(), mixes.data(), kCells); });
    std::printf("fold of %u cells, %-10s  %7.1f us  %6.1f GB/s  (%08x)\n", kCells, isa_name(isa),
                us, kCells * 8 / us / 1e3, sums.a);
  }
  const Noise noise(CALD_BF16);
  for (const uint64_t tile : {0, 16}) {
    cald_io io{};
    io.dtype = CALD_BF16;
    io.rank = 2;
    io.shape[0] = 4;
    io.shape[1] = kVocab;
    io.layout = tile == 0 ? *linear_layout(CALD_BF16, {4, kVocab})
                          : *tiled_layout(CALD_BF16, {4, kVocab}, 1, tile, {-1, 0, -2});
    std::vector<unsigned char> out(io.layout.bytes);
    const LogitRows rows = *LogitRows::make(io);
    const double us = least_us([&] { rows.write(out.data(), 2, sums, noise); });
    std::printf("row of %u BF16 logits, tile %2u  %7.1f us\n", kVocab, static_cast<unsigned>(tile),
                us);
  }
  return 0;
}
