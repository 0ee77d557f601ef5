// SPDX-License-Identifier: Apache-2.0
// A package in memory of its own, which can be spoilt after the load to find who kept a pointer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calrt/driver.h"

namespace calrt::conformance {

class PackageCopy {
 public:
  explicit PackageCopy(const cald_package& from);
  PackageCopy(const PackageCopy&) = delete;
  PackageCopy& operator=(const PackageCopy&) = delete;

  const cald_package& package() const { return *package_; }
  // Every byte of the copy becomes garbage that ends as a string; nothing is freed.
  void scribble();
  bool is_own(const void* pointer) const;

 private:
  void* take(const void* from, size_t bytes);
  const char* text(const char* from);
  template <class T>
  const T* one(const T* from) {
    return static_cast<const T*>(take(from, sizeof(T)));
  }
  const cald_graph* graph(const cald_graph& from);

  std::vector<std::vector<uint8_t>> blocks_;
  cald_package* package_ = nullptr;
};

}  // namespace calrt::conformance
