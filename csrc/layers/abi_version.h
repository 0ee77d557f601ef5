// SPDX-License-Identifier: Apache-2.0
// The versions of the driver ABI that calrt speaks. 1.0 is 0.9 with a promise: what was built
// against a draft, 0.1 to 0.9, is asked in the drafts' words and works.
#pragma once

#include <cstdint>

#include "calrt/driver.h"

namespace calrt {

inline constexpr uint32_t kLastDraftAbi = 9;  // 0.9

inline bool speaks_abi(uint32_t version) {
  return version >> 16 == CALD_ABI_MAJOR || (version >= 1 && version <= kLastDraftAbi);
}

// What ask(version) answers to calrt's version, or to the drafts' where a driver does not know
// that.
template <class Ask>
cald_status ask_entry(Ask&& ask) {
  const cald_status answer = ask(CALD_ABI_VERSION);
  return answer == CALD_VERSION_MISMATCH ? ask(kLastDraftAbi) : answer;
}

}  // namespace calrt
