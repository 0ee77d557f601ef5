// SPDX-License-Identifier: Apache-2.0
#include "calrt/whole_library.h"

#include <filesystem>

#if defined(__linux__)
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#endif

namespace calrt {
namespace {

// To open a pipe would be to wait for somebody at its other end.
Result<void> check_is_file(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (error || type == std::filesystem::file_type::regular) return {};  // the loader says why
  return fail(Status::INVALID_ARGUMENT,
              "driver %s cannot be loaded: a %s, the file of a library is due", path.c_str(),
              type == std::filesystem::file_type::directory ? "folder" : "pipe or device");
}

}  // namespace

#if defined(__linux__)
Result<void> check_library_is_whole(const std::string& path) {
  CALRT_TRY(check_is_file(path));
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const auto size = static_cast<uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
  Elf64_Ehdr head{};
  file.seekg(0);
  if (!file.read(reinterpret_cast<char*>(&head), sizeof head)) return {};  // the loader says why
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64)
    return {};
  uint64_t due = head.e_phoff + uint64_t{head.e_phnum} * sizeof(Elf64_Phdr);
  file.seekg(static_cast<std::streamoff>(std::min(head.e_phoff, size)));
  for (uint32_t i = 0; i < head.e_phnum; ++i) {
    Elf64_Phdr segment{};
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) break;
    if (segment.p_type == PT_LOAD) due = std::max(due, segment.p_offset + segment.p_filesz);
  }
  if (due <= size) return {};
  return fail(Status::INVALID_ARGUMENT,
              "driver %s cannot be loaded: the file has %llu bytes, its headers list %llu: it is "
              "truncated, install it anew",
              path.c_str(), static_cast<unsigned long long>(size),
              static_cast<unsigned long long>(due));
}
#else
Result<void> check_library_is_whole(const std::string& path) { return check_is_file(path); }
#endif

}  // namespace calrt
