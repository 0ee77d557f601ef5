// SPDX-License-Identifier: Apache-2.0
#include "layout/kernels.h"
#include "layout/kernels_impl.h"

namespace calrt {

const ConvertKernels kConvertAvx2 = {bf16_from_f32_loop, f32_from_bf16_loop};

}  // namespace calrt
