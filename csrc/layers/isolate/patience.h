// SPDX-License-Identifier: Apache-2.0
// How long the other process is given. Said in the environment (CALRT_ISOLATE_DEADLINE,
// CALRT_ISOLATE_JOB_DEADLINE) and by the options of an open (isolate_deadline,
// isolate_job_deadline), in seconds.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace calrt::isolate {

struct Patience {
  uint64_t entry_ns = 30'000'000'000;  // an entry without a deadline of its own; a sign of life
  uint64_t job_ns = 0;                 // for one job of those that run to end; 0 = entry_ns

  uint64_t of_jobs() const { return job_ns != 0 ? job_ns : entry_ns; }
  // Of the innermost scope on this thread; without one the environment's.
  static Result<Patience> usual();
  // Takes an option if it is one of these. False: it is another one's.
  Result<bool> take(const char* key, const char* value);
};

// What this thread starts while it lives has this patience from the first call on: the entries that
// load a library and open its driver are given no options.
class PatienceScope {
 public:
  explicit PatienceScope(const Patience& patience);
  ~PatienceScope();
  PatienceScope(const PatienceScope&) = delete;
  PatienceScope& operator=(const PatienceScope&) = delete;

 private:
  const Patience patience_;
  const PatienceScope* const outer_;
  friend struct Patience;
};

}  // namespace calrt::isolate
