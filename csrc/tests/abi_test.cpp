// SPDX-License-Identifier: Apache-2.0
// The driver ABI holds still: C and C++ agree, and sizes and offsets equal driver_abi.lock. The
// ABI is append only, so a line of the lock may be added, and a size may grow; none may change
// otherwise. After an addition: CALRT_WRITE_ABI_LOCK=csrc/tests/driver_abi.lock abi_test
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "calrt/driver.h"
#include "tests/abi_sizes.h"
#include "tests/check.h"

namespace {

std::string describe() {
  std::ostringstream text;
#define ABI_LINE(name) text << #name << " " << sizeof(name) << "\n";
  ABI_STRUCTS(ABI_LINE)
#define FIELD(name, field) text << #name "." #field " " << offsetof(name, field) << "\n";
#include "tests/abi_fields.inc"
#undef FIELD
  return text.str();
}

}  // namespace

TEST(c_and_cpp_agree) {
  const size_t in_cpp[] = {ABI_STRUCTS(ABI_SIZE)};
  CHECK(abi_count_in_c == sizeof in_cpp / sizeof in_cpp[0]);
  for (size_t i = 0; i < abi_count_in_c; ++i) CHECK(abi_sizes_in_c[i] == in_cpp[i]);
  CHECK(abi_last_status_in_c == 29 && CALD_INTERNAL == 29);
}

TEST(sizes_and_offsets_equal_the_lock) {
  if (const char* path = std::getenv("CALRT_WRITE_ABI_LOCK")) std::ofstream(path) << describe();
  std::ifstream file(CALRT_ABI_LOCK);
  CHECK(file.good());
  std::stringstream locked;
  locked << file.rdbuf();
  std::istringstream now(describe());
  for (std::string was, is; std::getline(locked, was);) {
    std::getline(now, is);
    if (was != is) std::fprintf(stderr, "locked: %s\nnow:    %s\n", was.c_str(), is.c_str());
    CHECK(was == is);
  }
  std::string added;
  CHECK(!std::getline(now, added));
}
