// SPDX-License-Identifier: Apache-2.0
// What gcc and clang spell differently for kernel code.
#pragma once

// Kernel helpers must inline even without optimisation: an out-of-line copy of one would pass
// vectors through memory.
#define CALRT_INLINE inline __attribute__((always_inline))

// Full unrolling of the short loops over a tile, so that its accumulators live in registers.
#if defined(__clang__)
#define CALRT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CALRT_UNROLL _Pragma("GCC unroll 16")
#endif
