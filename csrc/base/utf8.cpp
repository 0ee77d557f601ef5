// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <cstdint>
#include <cstring>

namespace calrt {
namespace {

// Length of the well-formed sequence at p, 0 if there is none within `left` bytes.
size_t sequence(const unsigned char* p, size_t left) {
  if (p[0] < 0x80) return 1;
  const size_t length = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
  if (p[0] < 0xc2 || p[0] > 0xf4 || left < length) return 0;
  uint32_t point = p[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((p[i] & 0xc0) != 0x80) return 0;
    point = point << 6 | (p[i] & 0x3f);
  }
  static constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (point < kSmallest[length] || point > 0x10ffff) return 0;
  return point >= 0xd800 && point <= 0xdfff ? 0 : length;
}

}  // namespace

std::string clean_utf8(const char* text, size_t room) {
  std::string out(text, strnlen(text, room));
  auto* bytes = reinterpret_cast<const unsigned char*>(out.data());
  for (size_t i = 0; i < out.size();) {
    const size_t length = sequence(bytes + i, out.size() - i);
    if (length == 0) out[i] = '?';
    i += length == 0 ? 1 : length;
  }
  return out;
}

}  // namespace calrt
