// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), streaming. Uses the CPU's SHA instructions where it has them (x86 SHA-NI,
// chosen at run time), portable code elsewhere. One object is used by one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace calrt {

class Sha256 {
 public:
  Sha256() = default;
  void update(const void* data, size_t bytes);
  // Of everything since construction; ends the stream: the object then starts a new one.
  std::array<uint8_t, 32> digest();

 private:
  std::array<uint32_t, 8> state_ = kInitial;
  std::array<uint8_t, 64> block_{};
  uint64_t total_ = 0;  // bytes so far

  static constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372,
                                                       0xa54ff53a, 0x510e527f, 0x9b05688c,
                                                       0x1f83d9ab, 0x5be0cd19};
};

// 64 lower-case hex digits.
std::string hex(const std::array<uint8_t, 32>& digest);
std::string sha256_hex(const void* data, size_t bytes);

namespace detail {
// Absorbs whole 64-byte blocks. Both exist for the tests; Sha256 picks the faster one that works.
void sha256_blocks_portable(uint32_t* state, const uint8_t* data, size_t blocks);
bool sha256_ni_available();
void sha256_blocks_ni(uint32_t* state, const uint8_t* data, size_t blocks);
}  // namespace detail

}  // namespace calrt
