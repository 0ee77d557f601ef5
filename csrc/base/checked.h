// SPDX-License-Identifier: Apache-2.0
// Arithmetic on untrusted sizes: u64 only, every step checked. False means it did not fit.
#pragma once

#include <cstdint>

namespace calrt {

[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_add_overflow(a, b, out);
}
[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_mul_overflow(a, b, out);
}
[[nodiscard]] inline bool checked_sub(uint64_t a, uint64_t b, uint64_t* out) {
  return !__builtin_sub_overflow(a, b, out);
}
// ceil(a / b), b > 0; cannot overflow.
inline uint64_t ceil_div(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
// The next multiple of `step` (> 0) at or above a.
[[nodiscard]] inline bool checked_round_up(uint64_t a, uint64_t step, uint64_t* out) {
  return checked_mul(ceil_div(a, step), step, out);
}

}  // namespace calrt
