// SPDX-License-Identifier: Apache-2.0
// What llama-server keeps of a lane when a conversation outgrows it or an edited prompt comes.
#include <algorithm>

#include "base/out_of_memory.h"
#include "kv/sequence.h"

namespace calrt::kv {

Shift context_shift(uint32_t n, uint32_t capacity, int64_t keep, int64_t discard) {
  const int64_t most = std::max<int64_t>(int64_t{capacity} - 4, 0);
  const int64_t kept = std::clamp<int64_t>(keep, 0, most);
  const int64_t left = std::max<int64_t>(int64_t{n} - kept, 0);
  const int64_t wanted = discard == 0 ? left / 2 : discard;
  const int64_t gone = std::clamp<int64_t>(wanted, 0, std::max<int64_t>(left - 1, 0));
  return {static_cast<uint32_t>(std::min<int64_t>(kept, n)), static_cast<uint32_t>(gone)};
}

Result<std::vector<Chunk>> matching_chunks(const std::vector<int32_t>& held,
                                           const std::vector<int32_t>& wanted, uint32_t least) {
  return or_out_of_memory([&]() -> Result<std::vector<Chunk>> {
    if (least == 0) return fail(Status::INVALID_ARGUMENT, "least=0: a chunk has at least 1 token");
    const auto same_from = [&](size_t from, size_t to) {
      size_t n = 0;
      while (from + n < held.size() && to + n < wanted.size() && held[from + n] == wanted[to + n])
        ++n;
      return n;
    };
    std::vector<Chunk> chunks;
    size_t from = same_from(0, 0), to = from;
    while (from < held.size() && to < wanted.size()) {
      const size_t n = same_from(from, to);
      if (n < least) {
        ++from;
        continue;
      }
      chunks.push_back(
          {static_cast<uint32_t>(from), static_cast<uint32_t>(to), static_cast<uint32_t>(n)});
      from += n;
      to += n;
    }
    return chunks;
  });
}

}  // namespace calrt::kv
