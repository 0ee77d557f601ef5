// SPDX-License-Identifier: Apache-2.0
// The driver ABI holds still: C and C++ agree, sizes and offsets equal driver_abi.lock, and every
// released lock of this major is still true. What may change, and how: docs/abi.md, "The lock".
// After an addition: CALRT_WRITE_ABI_LOCK=csrc/tests/driver_abi.lock abi_test
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <map>
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

// "struct size" and "struct.field offset" lines as a map.
std::map<std::string, size_t> read_lock(std::istream&& lines) {
  std::map<std::string, size_t> numbers;
  std::string name;
  for (size_t number = 0; lines >> name >> number;) numbers[name] = number;
  return numbers;
}

// A driver built against `version` still finds every field where it was; structs have only grown.
void holds(const char* version, const char* lock, size_t lines) {
  const auto now = read_lock(std::istringstream(describe()));
  const auto then = read_lock(std::ifstream(lock));
  CHECK(then.size() == lines);
  for (const auto& [name, was] : then) {
    const auto found = now.find(name);
    const bool is_field = name.find('.') != std::string::npos;
    const bool kept =
        found != now.end() && (is_field ? found->second == was : found->second >= was);
    if (!kept)
      std::fprintf(stderr, "%s had %s %zu, now %s\n", version, name.c_str(), was,
                   found == now.end() ? "gone" : std::to_string(found->second).c_str());
    CHECK(kept);
  }
  // Structs without a size of their own are frozen: nobody could tell which version he was given.
  for (const auto& [name, size] : then)
    if (name.find('.') == std::string::npos && !now.contains(name + ".struct_size"))
      CHECK(now.at(name) == size);
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

TEST(what_0_1_promised_still_holds) { holds("0.1", CALRT_ABI_LOCK_0_1, 233); }
TEST(what_1_0_promised_still_holds) { holds("1.0", CALRT_ABI_LOCK_1_0, 337); }
