// SPDX-License-Identifier: Apache-2.0
// One row of logits where the device left it: BF16 or F32, dense. Borrowed; owns nothing.
#pragma once

#include <cstdint>

namespace calrt {

struct LogitsView {
  const void* data = nullptr;
  bool bf16 = false;
  uint32_t vocab = 0;   // columns
  uint32_t tokens = 0;  // columns that have a token; the rest is never chosen
};

}  // namespace calrt
