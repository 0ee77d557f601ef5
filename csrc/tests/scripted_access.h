// SPDX-License-Identifier: Apache-2.0
// The script of the loaded libcald_scripted, and an end-of-test check that nothing of it lives.
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/drivers/scripted.h"

namespace calrt {

inline scripted::Script* scripted_access(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // the same one; never closed
  auto get = reinterpret_cast<decltype(&scripted_script)>(dlsym(library, "scripted_script"));
  return get();
}

// True as soon as `condition` holds; false after 20 s. For what another thread does.
template <class Condition>
bool eventually(Condition&& condition) {
  for (int i = 0; i < 20000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

}  // namespace calrt
