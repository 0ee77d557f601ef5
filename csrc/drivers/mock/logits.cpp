// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/logits.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "layout/layout.h"

namespace calrt::mock {
namespace {

constexpr size_t kMostLoops = 2 * CALD_MAX_AXES;

uint64_t mixed64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The first tokens of the presets' vocabularies are the bytes. A choice among the others is made of
// words, so that a text reads like one.
constexpr uint32_t kBytes = 256;

// The n-th token that the sums choose; 0 is the winner.
uint32_t choice(const Sums& sums, uint32_t n, uint32_t vocab) {
  const uint64_t both = uint64_t{sums.a} << 32 | sums.b;
  const uint64_t drawn = mixed64(both + n * 0x9e3779b97f4a7c15u);
  const uint32_t first = vocab >= 2 * kBytes ? kBytes : 0;
  return first + static_cast<uint32_t>((drawn >> 32) * (vocab - first) >> 32);
}

void put(float value, float* to) { *to = value; }
void put(float value, uint16_t* to) {  // exact: the lower half is 0
  *to = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

// Calls visit(packed, dense) for each run of the innermost loop. Steps are in elements.
template <class Visit>
void for_each_run(const LoopNest& nest, Visit&& visit) {
  const size_t outer = nest.loops.empty() ? 0 : nest.loops.size() - 1;
  std::array<uint64_t, kMostLoops> index{};
  uint64_t packed = nest.packed, dense = nest.dense;
  for (;;) {
    visit(packed, dense);
    size_t l = outer;
    for (; l > 0; --l) {
      const StridedLoop& loop = nest.loops[l - 1];
      packed += loop.packed;
      dense += loop.dense;
      if (++index[l - 1] < loop.count) break;
      index[l - 1] = 0;
      packed -= loop.packed * loop.count;
      dense -= loop.dense * loop.count;
    }
    if (l == 0) return;
  }
}

}  // namespace

uint32_t winner(const Sums& sums, uint32_t vocab) { return choice(sums, 0, vocab); }

uint64_t Noise::bytes_of(int32_t dtype) { return uint64_t{2} * kPeriod * dtype_size(dtype); }

Noise::Noise(int32_t dtype) : width_(dtype_size(dtype)), bytes_(bytes_of(dtype)) {
  for (uint32_t i = 0; i < 2 * kPeriod; ++i) {
    const uint32_t step = mixed(i % kPeriod + 1) % 128;
    const float value = kMostNoise - static_cast<float>(step) / 16;
    unsigned char* at = &bytes_[size_t{i} * width_];
    if (dtype == CALD_F32)
      put(value, reinterpret_cast<float*>(at));
    else
      put(value, reinterpret_cast<uint16_t*>(at));
  }
}

Result<LogitRows> LogitRows::make(const cald_io& io) {
  if (io.dtype != CALD_F32 && io.dtype != CALD_BF16)
    return fail(Status::UNSUPPORTED, "logits of dtype %d: mock gives f32 (1) and bf16 (2)",
                io.dtype);
  if (io.rank != 2 || io.shape[0] == 0 || io.shape[1] == 0 || io.shape[1] > UINT32_MAX)
    return fail(Status::SHAPE_MISMATCH, "logits of rank %u: [rows, vocabulary] expected", io.rank);
  LogitRows rows;
  rows.vocab_ = static_cast<uint32_t>(io.shape[1]);
  rows.width_ = dtype_size(io.dtype);
  // The whole is checked before a part of it is used.
  CALRT_TRY(loop_nests(io.layout, rows.width_, io.shape, io.rank));
  rows.layout_ = io.layout;
  rows.row_ = layout_row(io.layout, 0).layout;
  CALRT_TRY_ASSIGN(rows.nests_, loop_nests(rows.row_, rows.width_, &io.shape[1], 1));
  rows.row_bytes_ = rows.width_;
  for (uint32_t a = 0; a < rows.row_.n_axes; ++a)
    rows.row_bytes_ += rows.row_.axes[a].stride * largest_part(rows.row_.axes[a], rows.vocab_);
  for (const LoopNest& nest : rows.nests_)
    if (nest.loops.size() > kMostLoops)
      return fail(Status::UNSUPPORTED, "logits: a layout of %zu loops", nest.loops.size());
  return rows;
}

uint64_t LogitRows::bytes_of(uint64_t rows) const {
  uint64_t bytes = 0;
  for (uint64_t row = 0; row < rows; ++row)
    bytes = std::max(bytes, layout_row(layout_, row).offset + row_bytes_);
  return bytes;
}

void LogitRows::write(unsigned char* logits, uint64_t row, const Sums& sums,
                      const Noise& noise) const {
  unsigned char* at = logits + layout_row(layout_, row).offset;
  if (width_ == sizeof(float))
    write_as<float>(at, sums, noise);
  else
    write_as<uint16_t>(at, sums, noise);
}

template <class T>
void LogitRows::write_as(unsigned char* row, const Sums& sums, const Noise& noise) const {
  auto* out = reinterpret_cast<T*>(row);
  const auto turn = static_cast<uint32_t>(mixed64(uint64_t{sums.b} << 32 | sums.a));
  for (const LoopNest& nest : nests_) {
    const StridedLoop run = nest.loops.empty() ? StridedLoop{1, 1, 1} : nest.loops.back();
    for_each_run(nest, [&](uint64_t packed, uint64_t dense) {
      for (uint64_t done = 0; done < run.count;) {
        const auto first = static_cast<uint32_t>((turn + dense + done) % Noise::kPeriod);
        const auto* from = reinterpret_cast<const T*>(noise.from(first));
        const uint64_t n = std::min<uint64_t>(run.count - done, Noise::kPeriod);
        T* to = out + packed + done * run.packed;
        if (run.packed == 1)
          std::memcpy(to, from, n * sizeof(T));
        else
          for (uint64_t i = 0; i < n; ++i) to[i * run.packed] = from[i];
        done += n;
      }
    });
  }
  const auto set = [&](uint64_t token, float value) {
    put(value, reinterpret_cast<T*>(row + layout_offset(row_, &token)));
  };
  for (uint32_t n = 0; n < std::size(kRunnersUp); ++n)
    set(choice(sums, n + 1, vocab_), kRunnersUp[n]);
  set(winner(sums, vocab_), kWinner);  // last: it may be one of the others
}

}  // namespace calrt::mock
