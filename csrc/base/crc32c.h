// SPDX-License-Identifier: Apache-2.0
// CRC32C (Castagnoli; RFC 3720): finds damage, not forgery. Uses the CPU's CRC instructions where
// it has them (x86 SSE4.2, ARMv8; chosen at run time), a table elsewhere; all give the same.
#pragma once

#include <cstddef>
#include <cstdint>

namespace calrt {

// Of all bytes so far: crc32c(crc32c(0, a), b) is that of a and b together. Thread-safe.
uint32_t crc32c(uint32_t crc, const void* data, size_t bytes);

namespace detail {
// Both exist for the tests; crc32c picks the faster one that works.
uint32_t crc32c_table(uint32_t crc, const uint8_t* data, size_t bytes);
bool crc32c_hardware_available();
uint32_t crc32c_hardware(uint32_t crc, const uint8_t* data, size_t bytes);
}  // namespace detail

}  // namespace calrt
