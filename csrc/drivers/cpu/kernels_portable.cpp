// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kernels_impl.h"
#include "drivers/cpu/kernels_table.h"
#include "drivers/cpu/simd_portable.h"

namespace calrt::cpu {

const Kernels kKernelsPortable = make_kernels<PortableSimd>("portable");

}  // namespace calrt::cpu
