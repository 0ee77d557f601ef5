// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/vigil.h"

#include <algorithm>

namespace calrt::isolate {

uint64_t Vigil::interval_ns(const Patience& patience) {
  constexpr uint64_t kLeast = 1'000'000, kMost = 250'000'000;
  return std::clamp(std::min(patience.entry_ns, patience.of_jobs()) / 8, kLeast, kMost);
}

Vigil::Verdict Vigil::look(const Sighting& seen, const Patience& patience) {
  const uint64_t passed = std::min(seen.now_ns - last_.now_ns, 2 * interval_ns(patience));
  const bool ran = last_.running != 0 && seen.running != 0;
  const bool timed = last_.timed != 0 && seen.timed != 0;
  silent_ns_ = ran && !seen.answered ? silent_ns_ + passed : 0;
  stuck_ns_ = timed && seen.steps == last_.steps ? stuck_ns_ + passed : 0;
  last_ = seen;
  if (silent_ns_ >= patience.entry_ns) return Verdict::SILENT;
  if (stuck_ns_ >= patience.of_jobs()) return Verdict::STUCK;
  return Verdict::WELL;
}

}  // namespace calrt::isolate
