// SPDX-License-Identifier: Apache-2.0
// A library file that ends too early is mapped all the same and kills the process by SIGBUS when
// it is touched; so it is looked at before the loader sees it.
#pragma once

#include <string>

#include "base/result.h"

namespace calrt {

// INVALID_ARGUMENT naming both sizes when an ELF file ends before what its own headers list. Other
// files are left to the loader.
Result<void> check_library_is_whole(const std::string& path);

}  // namespace calrt
