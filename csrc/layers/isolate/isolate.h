// SPDX-License-Identifier: Apache-2.0
// Any driver in a process of its own. What stands here for the driver is a table whose entries are
// calls into the program calrt-isolate, which loads the library; buffers lie in shared memory, so
// views of them copy nothing and outlive the other process.
//
// A driver that hangs, crashes or exits is DEVICE_LOST for those who use it, and nothing else: see
// remote.h. Each driver_open is a process of its own.
#pragma once

#include <string>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::isolate {

// The entry of the driver library at `path` (a real path), to be called like the library's own: it
// was loaded in a child, which has said what it is. A process has room for kMostLibraries.
Result<cald_driver_entry_fn> entry_of(const std::string& path);

inline constexpr int kMostLibraries = 32;

}  // namespace calrt::isolate
