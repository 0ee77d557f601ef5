// SPDX-License-Identifier: Apache-2.0
// Which positions the cells of one lane hold: a list of runs. The meaning of the operations is
// llama.cpp's for a stream of its own, on every case that it defines; all others are an error.
//
// Operations change this list only. Where data has to follow, plan() says how; until that was done
// the sequence is not canonical and no graph may run on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "kv/moves.h"

namespace calrt::kv {

// Cells [cell, cell + n).
struct Run {
  uint32_t cell = 0, n = 0;
  int32_t pos = 0;    // of the first cell; the others follow one by one, or are equal if `same`
  int32_t coded = 0;  // the position that the first cell's K is turned for; the others follow
  bool same = false;  // after seq_div: all cells have position `pos`
  int64_t last_pos() const { return same ? pos : int64_t{pos} + n - 1; }
  bool operator==(const Run&) const = default;
};

enum class Compat : uint8_t {
  STRICT,  // -1 is "from the beginning" or "to the end", below is INVALID_ARGUMENT
  LLAMA,   // any negative is
};

// Not thread-safe. Every operation is done whole, or fails and changes nothing; OUT_OF_HOST_MEMORY
// included. Positions lie in [0, capacity). Cost: O(runs); memory is kept for the next operation.
class Sequence {
 public:
  explicit Sequence(uint32_t capacity) : capacity_(capacity < INT32_MAX ? capacity : INT32_MAX) {}

  uint32_t cells() const;   // that hold a token
  uint32_t length() const;  // of a canonical sequence; else of its canonical beginning
  int32_t pos_min() const, pos_max() const;               // -1 if empty
  const std::vector<Run>& runs() const { return runs_; }  // by cell
  // Cell i holds position i and its K is turned for it.
  bool canonical() const;
  // Why it is not: names the hole, the doubled position or the pending shift. Empty if it is.
  std::string pending() const;

  // Cells whose position lies in [p0, p1).
  Result<uint32_t> count(int64_t p0, int64_t p1, Compat compat = Compat::STRICT) const;
  // [p0, p1). Cells of the range are free afterwards.
  Result<void> rm(int64_t p0, int64_t p1, Compat compat = Compat::STRICT);
  // Positions in [p0, p1) rise by d. Cells that come below 0 are free afterwards.
  Result<void> add(int64_t p0, int64_t p1, int64_t d, Compat compat = Compat::STRICT);
  // Positions in [p0, p1) become floor(position / d), d >= 1.
  Result<void> div(int64_t p0, int64_t p1, int64_t d, Compat compat = Compat::STRICT);
  // Becomes a copy of [p0, p1) of `from`, at the same cells.
  Result<void> copy(const Sequence& from, int64_t p0, int64_t p1, Compat compat = Compat::STRICT);
  // n more cells behind a canonical sequence. INVALID_STATE on another one, OUT_OF_RANGE if full.
  Result<void> append(uint32_t n);
  // Everything of append(n) that can fail: append(n) does not, if nothing comes between.
  Result<void> prepare_append(uint32_t n);
  void clear() { runs_.clear(); }
  void truncate(uint32_t length);  // the canonical beginning, or as much of it as there is

  // The moves inside `lane` after which cell i holds position i. KV_INVALID_SEQUENCE if there are
  // none: a hole, a doubled position, positions in another order than their cells.
  Result<Plan> plan(uint32_t lane) const;
  // What the sequence is after its plan.
  void applied();
  bool operator==(const Sequence&) const = default;

 private:
  // Where an operation builds its outcome before it takes the place of the runs. No part of what
  // the sequence is: neither copied nor compared.
  struct Draft {
    Draft() = default;
    Draft(const Draft&) {}
    Draft& operator=(const Draft&) { return *this; }
    Draft(Draft&&) = default;
    Draft& operator=(Draft&&) = default;
    bool operator==(const Draft&) const { return true; }
    std::vector<Run> runs;
  };
  Result<void> check_order() const;  // that plan() needs

  uint32_t capacity_;
  std::vector<Run> runs_;
  Draft draft_;
};

// llama-server's context shift of `n` tokens: keeps the first `keep`, discards `discard` behind
// them, moves the rest down. Both are clamped as there: keep to [0, capacity - 4], discard to
// [0, n - keep - 1], 0 = half of what may go.
struct Shift {
  uint32_t keep = 0, discard = 0;
};
Shift context_shift(uint32_t n, uint32_t capacity, int64_t keep, int64_t discard);

// llama-server's chunk reuse: chunks of at least `least` equal tokens of `held`, found in `wanted`
// behind the common prefix.
struct Chunk {
  uint32_t from = 0, to = 0, n = 0;  // positions in held and in wanted
};
Result<std::vector<Chunk>> matching_chunks(const std::vector<int32_t>& held,
                                           const std::vector<int32_t>& wanted, uint32_t least);

}  // namespace calrt::kv
