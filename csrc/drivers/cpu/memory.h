// SPDX-License-Identifier: Apache-2.0
// Zeroed, page-aligned memory for weights, lanes and scratch. Pages are taken by the kernel when
// they are first touched, and large blocks ask for huge ones.
#pragma once

#include <cstddef>
#include <utility>

#include "base/result.h"

namespace calrt::cpu {

class Block {
 public:
  Block() = default;
  // OUT_OF_HOST_MEMORY, naming `what`, when the system refuses. Zero bytes are a null block.
  static Result<Block> make(size_t bytes, const char* what);
  ~Block();
  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Block& operator=(Block&& other) noexcept;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  size_t bytes() const { return bytes_; }
  template <class T = unsigned char>
  T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(data_) + byte_offset);
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace calrt::cpu
