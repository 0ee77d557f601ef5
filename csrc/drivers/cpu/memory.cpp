// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/memory.h"

#include <sys/mman.h>

namespace calrt::cpu {

Result<Block> Block::make(size_t bytes, const char* what) {
  Block block;
  if (bytes == 0) return block;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    return fail(Status::OUT_OF_HOST_MEMORY, "%zu bytes for %s: the system has no memory left",
                bytes, what);
#ifdef MADV_HUGEPAGE
  // Advice only: weights are read from end to end, and 4 KiB pages cost TLB misses.
  constexpr size_t kHuge = size_t{2} << 20;
  if (bytes >= kHuge) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  block.data_ = data;
  block.bytes_ = bytes;
  return block;
}

Block::~Block() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Block& Block::operator=(Block&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) munmap(data_, bytes_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

}  // namespace calrt::cpu
