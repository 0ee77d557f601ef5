// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/fold_impl.h"

namespace calrt::mock {

Sums fold_portable(const int32_t* positions, const uint32_t* mixes, size_t n) {
  return fold_cells(positions, mixes, n);
}

Fold fold_for(Isa isa) {
#ifdef CALRT_X86
  if (isa == Isa::AVX2 || isa == Isa::AVX512BF16) return fold_avx2;
#endif
  (void)isa;
  return fold_portable;
}

}  // namespace calrt::mock
