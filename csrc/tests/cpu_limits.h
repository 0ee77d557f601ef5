// SPDX-License-Identifier: Apache-2.0
// What the machine can do, for cpu_bench.
#pragma once

#include <cstdint>

namespace calrt::testing {

// Best of a few passes over 512 MiB, all threads together.
double read_gigabytes_per_second(uint32_t threads);
// F32 multiply-adds on registers, 2 operations each, with the widest unit this build may use.
double fma_gigaflops(uint32_t threads);

}  // namespace calrt::testing
