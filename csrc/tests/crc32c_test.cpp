// SPDX-License-Identifier: Apache-2.0
// Published vectors (RFC 3720 B.4 and the check value), both kernels against the definition bit by
// bit at every short length and offset, and every split of a message.
#include "base/crc32c.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tests/check.h"

using namespace calrt;

namespace {

// The definition: division by the polynomial, one bit a step.
uint32_t by_definition(const uint8_t* data, size_t bytes) {
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

std::vector<uint8_t> noise(size_t bytes) {
  std::vector<uint8_t> out(bytes);
  uint32_t x = 12345;
  for (auto& byte : out) {
    x = x * 1664525 + 1013904223;
    byte = static_cast<uint8_t>(x >> 24);
  }
  return out;
}

// Whatever kernels there are give `expected`.
bool all_give(uint32_t expected, const uint8_t* data, size_t bytes) {
  return crc32c(0, data, bytes) == expected && detail::crc32c_table(0, data, bytes) == expected &&
         (!detail::crc32c_hardware_available() ||
          detail::crc32c_hardware(0, data, bytes) == expected);
}

}  // namespace

TEST(published_vectors) {
  std::vector<uint8_t> bytes(32, 0);
  CHECK(all_give(0x8a9136aa, bytes.data(), 32));
  bytes.assign(32, 0xff);
  CHECK(all_give(0x62a8ab43, bytes.data(), 32));
  for (uint8_t i = 0; i < 32; ++i) bytes[i] = i;
  CHECK(all_give(0x46dd794e, bytes.data(), 32));
  std::reverse(bytes.begin(), bytes.end());
  CHECK(all_give(0x113fdb5c, bytes.data(), 32));
  const uint8_t read10[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0,  0, 0, 0, 0,
                              0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 20, 0, 0, 0, 24,
                              0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0,  0, 0, 0, 0};
  CHECK(all_give(0xd9963a56, read10, sizeof read10));
  CHECK(all_give(0xe3069283, reinterpret_cast<const uint8_t*>("123456789"), 9));
  CHECK(all_give(0, nullptr, 0));
}

// 500 bytes pass the part of three 128s and all remainders behind it.
TEST(every_length_and_offset) {
  const auto data = noise(600);
  for (size_t offset = 0; offset < 16; ++offset)
    for (size_t length = 0; length <= 500; ++length)
      CHECK(all_give(by_definition(data.data() + offset, length), data.data() + offset, length));
}

TEST(long_data) {
  const auto data = noise(100'000);
  for (const size_t length : {12'287u, 12'288u, 12'289u, 12'295u, 12'672u, 24'576u, 99'991u})
    for (size_t offset = 0; offset < 9; ++offset)
      CHECK(all_give(by_definition(data.data() + offset, length), data.data() + offset, length));
}

TEST(every_split_equals_whole) {
  const auto data = noise(13'000);
  const uint32_t whole = by_definition(data.data(), data.size());
  for (size_t at = 0; at <= data.size(); at += at < 500 ? 1 : 97) {
    CHECK(crc32c(crc32c(0, data.data(), at), data.data() + at, data.size() - at) == whole);
    const uint32_t first = detail::crc32c_table(0, data.data(), at);
    CHECK(detail::crc32c_table(first, data.data() + at, data.size() - at) == whole);
  }
}

TEST(every_bit_counts) {
  auto data = noise(400);
  const uint32_t whole = crc32c(0, data.data(), data.size());
  for (size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    CHECK(crc32c(0, data.data(), data.size()) != whole);
    data[bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
  }
}
