// SPDX-License-Identifier: Apache-2.0
// The tables that the kernels_<isa>.cpp define.
#pragma once

#include "drivers/cpu/kernels.h"

namespace calrt::cpu {

extern const Kernels kKernelsPortable;
#ifdef CALRT_X86
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

}  // namespace calrt::cpu
