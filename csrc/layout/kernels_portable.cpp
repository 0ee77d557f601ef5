// SPDX-License-Identifier: Apache-2.0
// Plain C++: what every machine runs, and what the compiler makes of it.
#include "layout/kernels.h"
#include "layout/kernels_impl.h"

namespace calrt {
namespace {

struct Portable {
  static constexpr size_t kLanes = 1;
  static constexpr bool kStreams = false;
  static void narrow(const float* src, uint16_t* dst) { narrow_one(src, dst); }
  static void widen(const uint16_t* src, float* dst) { widen_one(src, dst); }
  static void widen8(const uint16_t* src, float* dst) {
    for (size_t i = 0; i < 8; ++i) widen_one(src + i, dst + i);
  }
  static void transpose(const uint16_t* src, size_t src_step, float* dst, size_t dst_step) {
    for (size_t r = 0; r < kBlockRows; ++r)
      for (size_t c = 0; c < kBlockColumns; ++c)
        widen_one(src + c * src_step + r, dst + r * dst_step + c);
  }
};

}  // namespace

const ConvertKernels kConvertPortable = Convert<Portable>::kernels();

}  // namespace calrt
