// SPDX-License-Identifier: Apache-2.0
// What a user writes to say which device is meant.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace calrt {

// "cpu", "mock:bare", "/path/libcald_vendor.so:0", each also behind "isolate:". What follows the
// driver is a device's index if it is all digits, else its config.
struct DeviceSpec {
  bool isolated = false;  // "isolate:" stands before it
  std::string driver;     // as DriverLibrary::find() takes it
  std::string config;
  uint32_t index = 0;

  static Result<DeviceSpec> parse(const std::string& text);
};

}  // namespace calrt
