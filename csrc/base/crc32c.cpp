// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <array>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace calrt::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "words are taken as they lie");

// A CRC is a polynomial over GF(2) modulo P whose highest power is the lowest bit.
constexpr uint32_t kPolynomial = 0x82f63b78;
using Table = std::array<uint32_t, 256>;

constexpr uint32_t times_x(uint32_t a) { return (a >> 1) ^ ((a & 1) != 0 ? kPolynomial : 0); }

constexpr uint32_t product(uint32_t a, uint32_t b) {
  uint32_t sum = 0;
  for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) sum ^= b;
    b = times_x(b);
  }
  return sum;
}

// x^(8 * bytes): times it, a CRC is what it becomes by so many zero bytes behind it.
constexpr uint32_t zeros(uint64_t bytes) {
  uint32_t power = 1u << 31, square = 1u << 23;  // x^0 and x^8
  for (; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) power = product(power, square);
    square = product(square, square);
  }
  return power;
}

// The products of `factor` with every byte at each of the four places of a CRC.
constexpr std::array<Table, 4> products(uint32_t factor) {
  std::array<Table, 4> out{};
  for (uint32_t place = 0; place < 4; ++place) {
    Table& table = out[place];
    for (uint32_t bit = 0; bit < 8; ++bit)
      table[1u << bit] = product(factor, 1u << (8 * place + bit));
    for (uint32_t byte = 1; byte < 256; ++byte)
      table[byte] = table[byte & (byte - 1)] ^ table[byte & -byte];
  }
  return out;
}

constexpr uint32_t multiply(const std::array<Table, 4>& by, uint32_t crc) {
  return by[0][crc & 255] ^ by[1][crc >> 8 & 255] ^ by[2][crc >> 16 & 255] ^ by[3][crc >> 24];
}

uint64_t word(const uint8_t* data) {
  uint64_t out;
  std::memcpy(&out, data, sizeof out);
  return out;
}

// For eight bytes at once: those that four and eight zero bytes stand behind.
constexpr std::array<Table, 4> kFour = products(zeros(4)), kEight = products(zeros(8));

#if defined(__x86_64__)
#define CALRT_CRC32C_HARDWARE 1
// As assembly, so that this file needs no flags of the compiler.
inline uint32_t step(uint32_t crc, uint8_t byte) {
  asm("crc32b %1, %0" : "+r"(crc) : "rm"(byte));
  return crc;
}
inline uint64_t step(uint64_t crc, uint64_t bytes) {
  asm("crc32q %1, %0" : "+r"(crc) : "rm"(bytes));
  return crc;
}
bool has_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 20)) != 0;  // SSE4.2
}
#elif defined(__aarch64__)
#define CALRT_CRC32C_HARDWARE 1
inline uint32_t step(uint32_t crc, uint8_t byte) {
  asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
  return crc;
}
inline uint64_t step(uint64_t crc, uint64_t bytes) {
  asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(bytes));
  return crc;
}
bool has_instructions() { return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; }  // HWCAP_CRC32
#endif

#ifdef CALRT_CRC32C_HARDWARE
// The instruction takes a cycle but its result three: three parts of the data side by side, each
// kBytes long, whose sums are then put together.
template <size_t kBytes>
uint32_t three_parts(uint32_t crc, const uint8_t*& data, size_t& left) {
  static constexpr std::array<Table, 4> kPart = products(zeros(kBytes));
  while (left >= 3 * kBytes) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kBytes; i += 8) {
      a = step(a, word(data + i));
      b = step(b, word(data + i + kBytes));
      c = step(c, word(data + i + 2 * kBytes));
    }
    const uint32_t two = multiply(kPart, static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = multiply(kPart, two) ^ static_cast<uint32_t>(c);
    data += 3 * kBytes;
    left -= 3 * kBytes;
  }
  return crc;
}
#endif

}  // namespace

uint32_t crc32c_table(uint32_t crc, const uint8_t* data, size_t bytes) {
  crc = ~crc;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    const uint64_t eight = word(data) ^ crc;
    crc = multiply(kEight, static_cast<uint32_t>(eight)) ^
          multiply(kFour, static_cast<uint32_t>(eight >> 32));
  }
  for (; bytes > 0; ++data, --bytes) crc = kFour[3][(crc ^ *data) & 255] ^ crc >> 8;
  return ~crc;
}

#ifdef CALRT_CRC32C_HARDWARE

bool crc32c_hardware_available() {
  static const bool available = has_instructions();
  return available;
}

uint32_t crc32c_hardware(uint32_t crc, const uint8_t* data, size_t bytes) {
  crc = ~crc;
  for (; bytes > 0 && reinterpret_cast<uintptr_t>(data) % 8 != 0; ++data, --bytes)
    crc = step(crc, *data);
  crc = three_parts<4096>(crc, data, bytes);
  crc = three_parts<128>(crc, data, bytes);
  for (; bytes >= 8; data += 8, bytes -= 8)
    crc = static_cast<uint32_t>(step(uint64_t{crc}, word(data)));
  for (; bytes > 0; ++data, --bytes) crc = step(crc, *data);
  return ~crc;
}

#else

bool crc32c_hardware_available() { return false; }
uint32_t crc32c_hardware(uint32_t crc, const uint8_t* data, size_t bytes) {
  return crc32c_table(crc, data, bytes);
}

#endif

}  // namespace calrt::detail

namespace calrt {

uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
  const auto* const from = static_cast<const uint8_t*>(data);
  return detail::crc32c_hardware_available() ? detail::crc32c_hardware(crc, from, bytes)
                                             : detail::crc32c_table(crc, from, bytes);
}

}  // namespace calrt
