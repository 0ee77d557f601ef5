// SPDX-License-Identifier: Apache-2.0
// What a driver's completion means for a job. Internal to csrc/calrt.
#pragma once

#include <cstdint>

#include "calrt/driver_error.h"
#include "calrt/job.h"

namespace calrt {

struct JobEnding {
  JobState state = JobState::DONE;
  Error error{Status::OK, 0, {}, {}, false, nullptr};
};

// What was bound to a job, to hold a completion against.
struct BoundBytes {
  uint64_t in = 0, out = 0;
};

// Null and what makes no sense are failures with status INTERNAL; a DONE whose byte counts fall
// short of `bound` is a TRANSFER_FAULT. `entry`: "submit" or "kv_submit".
JobEnding read_completion(const cald_completion* completion, const BoundBytes& bound,
                          const char* entry);

}  // namespace calrt
