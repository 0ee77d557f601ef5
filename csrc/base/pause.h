// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace calrt {

// Inside of a loop that waits for another thread: leaves the core's units to its sibling.
inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

}  // namespace calrt
