// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/kernels.h"

#include "drivers/cpu/kernels_table.h"
#include "layout/isa.h"

namespace calrt::cpu {

const Kernels& kernels_of(Isa isa) {
#ifdef CALRT_X86
  if (isa == Isa::AVX512BF16) return kKernelsAvx512;
  if (isa == Isa::AVX2) return kKernelsAvx2;
#endif
  (void)isa;
  return kKernelsPortable;
}

}  // namespace calrt::cpu
