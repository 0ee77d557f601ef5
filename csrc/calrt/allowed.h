// SPDX-License-Identifier: Apache-2.0
// G(uint): what a value may be, as a list or as {min, max, step}.
#pragma once

#include <string>

#include "calrt/manifest.h"

namespace calrt {

// "" when it is a sound set, else e.g. "step is 0" (D12).
std::string allowed_problem(const Allowed& allowed);
// First value of `inner` that `outer` lacks; both sound.
std::optional<uint64_t> first_outside(const Allowed& inner, const Allowed& outer);
// "1, 4, 8" or "64…2048 in steps of 64".
std::string allowed_text(const Allowed& allowed);
// The value of a non-empty sound set that is closest to `value`, the smaller of two.
uint64_t nearest_allowed(const Allowed& allowed, uint64_t value);
// The largest value <= limit, or the smallest of all.
uint64_t largest_up_to(const Allowed& allowed, uint64_t limit);
// The only value of the set, if it has but one.
std::optional<uint64_t> only_value(const Allowed& allowed);

}  // namespace calrt
