// SPDX-License-Identifier: Apache-2.0
#include "calrt/allowed.h"

#include <algorithm>

namespace calrt {
namespace {

uint64_t distance(uint64_t a, uint64_t b) { return a > b ? a - b : b - a; }

// The largest value of the range; the last step may not reach max.
uint64_t range_end(const Allowed& allowed) {
  return allowed.min + (allowed.max - allowed.min) / allowed.step * allowed.step;
}

}  // namespace

bool Allowed::contains(uint64_t value) const {
  if (!is_range()) return std::find(values.begin(), values.end(), value) != values.end();
  return step != 0 && value >= min && value <= max && (value - min) % step == 0;
}

uint64_t Allowed::largest() const {
  if (!is_range()) return *std::max_element(values.begin(), values.end());
  return step == 0 || min > max ? max : range_end(*this);
}

std::string allowed_problem(const Allowed& allowed) {
  if (!allowed.is_range()) return "";
  if (allowed.step == 0) return "step is 0";
  if (allowed.min > allowed.max) {
    return "min " + std::to_string(allowed.min) + " > max " + std::to_string(allowed.max);
  }
  if (allowed.min % allowed.step != 0) {
    return "min " + std::to_string(allowed.min) + " is off the grid of step " +
           std::to_string(allowed.step);
  }
  return "";
}

std::optional<uint64_t> first_outside(const Allowed& inner, const Allowed& outer) {
  if (!inner.is_range()) {
    for (uint64_t value : inner.values) {
      if (!outer.contains(value)) return value;
    }
    return std::nullopt;
  }
  // The end first: it is the value that messages should name.
  const uint64_t end = range_end(inner);
  if (!outer.contains(end)) return end;
  if (!outer.contains(inner.min)) return inner.min;
  if (outer.is_range()) {
    if (inner.min == end || inner.step % outer.step == 0) return std::nullopt;
    return inner.min + inner.step;
  }
  // A list holds so many values; a longer range leaves it within as many steps and one.
  uint64_t value = inner.min;
  for (size_t i = 0; i <= outer.values.size(); ++i) {
    if (!outer.contains(value)) return value;
    if (value == end) return std::nullopt;
    value += inner.step;
  }
  return value;
}

std::string allowed_text(const Allowed& allowed) {
  if (allowed.is_range()) {
    return std::to_string(allowed.min) + "…" + std::to_string(allowed.max) + " in steps of " +
           std::to_string(allowed.step);
  }
  std::string out;
  for (uint64_t value : allowed.values) {
    if (!out.empty()) out += ", ";
    out += std::to_string(value);
  }
  return out;
}

uint64_t nearest_allowed(const Allowed& allowed, uint64_t value) {
  if (allowed.is_range()) {
    if (value <= allowed.min) return allowed.min;
    const uint64_t end = range_end(allowed);
    if (value >= end) return end;
    const uint64_t below = allowed.min + (value - allowed.min) / allowed.step * allowed.step;
    return value - below <= allowed.step - (value - below) ? below : below + allowed.step;
  }
  uint64_t best = allowed.values[0];
  for (uint64_t candidate : allowed.values) {
    const uint64_t away = distance(candidate, value);
    if (away < distance(best, value) || (away == distance(best, value) && candidate < best)) {
      best = candidate;
    }
  }
  return best;
}

uint64_t largest_up_to(const Allowed& allowed, uint64_t limit) {
  if (allowed.is_range()) {
    if (limit <= allowed.min) return allowed.min;
    return allowed.min + (std::min(limit, allowed.max) - allowed.min) / allowed.step * allowed.step;
  }
  uint64_t smallest = allowed.values[0], best = 0;
  for (uint64_t value : allowed.values) {
    smallest = std::min(smallest, value);
    if (value <= limit) best = std::max(best, value);
  }
  return best != 0 ? best : smallest;
}

std::optional<uint64_t> only_value(const Allowed& allowed) {
  if (allowed.is_range()) {
    return range_end(allowed) == allowed.min ? std::optional<uint64_t>(allowed.min) : std::nullopt;
  }
  const bool same = std::all_of(allowed.values.begin(), allowed.values.end(),
                                [&](uint64_t value) { return value == allowed.values[0]; });
  return same ? std::optional<uint64_t>(allowed.values[0]) : std::nullopt;
}

}  // namespace calrt
