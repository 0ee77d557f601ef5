// SPDX-License-Identifier: Apache-2.0
// How many bytes the runtime itself has copied or converted for a caller, since the process began:
// what shows that a view is a view.
#pragma once

#include <cstdint>

namespace calrt {

void count_copied(uint64_t bytes) noexcept;
uint64_t copied_bytes() noexcept;

}  // namespace calrt
