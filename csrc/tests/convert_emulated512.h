// SPDX-License-Identifier: Apache-2.0
// The AVX-512 conversion kernels where only AVX2 is needed to run them.
#pragma once

#include "layout/kernels.h"

namespace calrt {
extern const ConvertKernels kConvertAvx512Emulated;
namespace testing {
extern int misaligned_streams;  // of theirs, each a fault on a real machine
}
}  // namespace calrt
