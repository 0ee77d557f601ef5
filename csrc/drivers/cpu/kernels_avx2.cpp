// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kernels_impl.h"
#include "drivers/cpu/kernels_table.h"
#include "drivers/cpu/simd_avx2.h"
#include "drivers/cpu/tiles_avx2.h"

namespace calrt::cpu {

const Kernels kKernelsAvx2 = make_kernels<Avx2Simd, Avx2Tiles>("avx2");

}  // namespace calrt::cpu
