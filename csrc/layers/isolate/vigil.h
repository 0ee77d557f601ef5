// SPDX-License-Identifier: Apache-2.0
// Whether a process that runs jobs and that nobody is calling still gets on: judged from what is
// seen of it at looks, some time apart. No clock of its own; one thread.
//
// Only time between looks counts, and no more of it than was to lie between them: when this
// process has been stopped, too, the other one is not blamed for it.
#pragma once

#include <cstdint>

#include "layers/isolate/patience.h"

namespace calrt::isolate {

// What is seen at a look.
struct Sighting {
  uint64_t now_ns = 0;
  uint64_t running = 0;   // jobs that were accepted and have not ended
  uint64_t timed = 0;     // of them those that end without being polled
  uint64_t steps = 0;     // ends of jobs and signs of life of loads, ever
  bool answered = false;  // the last question whether it lives
};

class Vigil {
 public:
  enum class Verdict {
    WELL,
    SILENT,  // it has not answered for as long as an entry may take
    STUCK,   // of the jobs that run none has ended for as long as one may take
  };
  Verdict look(const Sighting& seen, const Patience& patience);
  // From one look to the next.
  static uint64_t interval_ns(const Patience& patience);
  uint64_t silent_ns() const { return silent_ns_; }
  uint64_t stuck_ns() const { return stuck_ns_; }

 private:
  Sighting last_;
  uint64_t silent_ns_ = 0, stuck_ns_ = 0;
};

}  // namespace calrt::isolate
