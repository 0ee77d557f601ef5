// SPDX-License-Identifier: Apache-2.0
// What a job is given and what it gives, as the record and replay layers see it: its bound buffers
// in host memory, and a key that is the same for jobs with equal inputs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layers/layer.h"

namespace calrt::layers {

struct BoundBytes {
  int32_t role = 0;  // 0: of a KV operation
  uint64_t bytes = 0;
  uint8_t* data = nullptr;  // null: the host cannot address them
};

struct JobView {
  std::string what;  // "graph 3", "kv op 1 lane 0 ..."
  std::vector<BoundBytes> inputs, outputs;

  // Of a submit or kv_submit that has not been forwarded. Asks the driver for addresses.
  static JobView of(const Call& call);
  // SHA-256 of `what`, the inputs' roles, sizes and contents as they are now, and the outputs'
  // roles and sizes. Inputs that cannot be read count by role and size.
  std::string key() const;
};

std::string digest_of(const BoundBytes& bound);  // 64 hex digits; "" if not addressable
std::string hex_of(const BoundBytes& bound);
// False unless `hex` is exactly the bytes of `bound`; then nothing is written.
bool write_hex(const BoundBytes& bound, std::string_view hex);

}  // namespace calrt::layers
