// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kernels_impl.h"
#include "drivers/cpu/kernels_table.h"
#include "drivers/cpu/simd_avx512.h"
#include "drivers/cpu/tiles_avx2.h"

namespace calrt::cpu {

const Kernels kKernelsAvx512 = make_dot_kernels<Avx512Simd, Avx2Tiles>("avx512bf16");

}  // namespace calrt::cpu
