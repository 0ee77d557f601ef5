// SPDX-License-Identifier: Apache-2.0
// A row of logits from the sums of a lane: one clear winner, three runners-up, noise below.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"
#include "drivers/mock/fold.h"
#include "layout/loops.h"

namespace calrt::mock {

inline constexpr float kWinner = 12.0f;
inline constexpr float kRunnersUp[] = {8.0f, 8.5f, 9.0f};
inline constexpr float kLeastNoise = -11.9375f, kMostNoise = -4.0f;  // on a grid of 1/16

// The token that a greedy sampler takes.
uint32_t winner(const Sums& sums, uint32_t vocab);

// Fixed noise that rows are cut from, each from where its sums say: a row costs little more than a
// copy. All values are exact in BF16, so that F32 and BF16 logits are the same numbers.
class Noise {
 public:
  static constexpr uint32_t kPeriod = 4096;
  explicit Noise(int32_t dtype);

  // kPeriod elements from `from` (< kPeriod) on.
  const unsigned char* from(uint32_t from) const { return &bytes_[size_t{from} * width_]; }
  static uint64_t bytes_of(int32_t dtype);
  uint64_t bytes() const { return bytes_.size(); }

 private:
  uint32_t width_;
  std::vector<unsigned char> bytes_;  // two periods
};

// The logits of one graph, of any layout. Immutable.
class LogitRows {
 public:
  // UNSUPPORTED or SHAPE_MISMATCH unless `io` is [rows, vocabulary] of F32 or BF16 in a layout that
  // is known.
  static Result<LogitRows> make(const cald_io& io);

  // Bytes from the start of the tensor that rows [0, rows) lie in.
  uint64_t bytes_of(uint64_t rows) const;
  // Writes every element of the row, and no byte of another row or of the padding.
  void write(unsigned char* logits, uint64_t row, const Sums& sums, const Noise& noise) const;

 private:
  template <class T>
  void write_as(unsigned char* row, const Sums& sums, const Noise& noise) const;

  cald_layout layout_{}, row_{};
  uint32_t vocab_ = 0, width_ = 0;
  uint64_t row_bytes_ = 0;       // from the start of a row to the end of its last element
  std::vector<LoopNest> nests_;  // of one row
};

}  // namespace calrt::mock
