// SPDX-License-Identifier: Apache-2.0
// Text from outside (drivers, vendor runtimes) made safe to show.
#pragma once

#include <cstddef>
#include <string>

namespace calrt {

// At most `room` bytes up to a NUL; bytes that are no well-formed UTF-8 become '?'.
std::string clean_utf8(const char* text, size_t room);

}  // namespace calrt
