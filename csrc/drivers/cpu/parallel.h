// SPDX-License-Identifier: Apache-2.0
// A loop over any number of small tasks on a pool, in runs of neighbours where there are many.
#pragma once

#include <algorithm>
#include <cstdint>

#include "drivers/cpu/pool.h"

namespace calrt::cpu {

// body(task, thread) for each task < tasks. Tasks must not depend on each other.
template <class Body>
void parallel(Pool& pool, uint32_t tasks, Body&& body) {
  constexpr uint32_t kChunks = 4096;  // enough for balance, few enough to claim
  const uint32_t run = (tasks + kChunks - 1) / kChunks;
  if (run == 0) return;
  pool.run((tasks + run - 1) / run, [&](uint32_t chunk, uint32_t thread) {
    const uint32_t end = std::min(tasks, (chunk + 1) * run);
    for (uint32_t task = chunk * run; task < end; ++task) body(task, thread);
  });
}

}  // namespace calrt::cpu
