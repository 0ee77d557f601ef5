// SPDX-License-Identifier: Apache-2.0
// The instruction sets that kernels are compiled for, and which of them this machine can run.
// Shared by the layout layer and by drivers; depends on nothing but the Result type.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"

namespace calrt {

enum class Isa : int32_t { PORTABLE = 0, AVX2 = 1, AVX512BF16 = 2, NEON = 3 };

const char* isa_name(Isa isa);
// Compiled in, and both the CPU and the operating system support it. Thread-safe.
bool isa_usable(Isa isa);
// Usable ones, fastest first; PORTABLE is always the last.
std::vector<Isa> usable_isa_list();
// The fastest usable one, or the one CALRT_ISA names; a name that is unknown or not usable here
// is INVALID_ARGUMENT listing the names that would work. Reads the environment at each call.
Result<Isa> select_isa();

}  // namespace calrt
