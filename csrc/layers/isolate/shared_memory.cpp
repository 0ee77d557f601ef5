// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "layers/isolate/arena.h"

namespace calrt::isolate {
namespace {

using ull = unsigned long long;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Twice what the machine has: room for what is in use, and for what lies between.
uint64_t most_memory() {
  const auto pages = static_cast<uint64_t>(std::max(sysconf(_SC_PHYS_PAGES), 1L));
  const auto page = static_cast<uint64_t>(std::max(sysconf(_SC_PAGESIZE), 1L));
  return std::max(16 * kGiB, (2 * pages * page + kGiB - 1) / kGiB * kGiB);
}

Error memory_error(const char* what) {
  return fail(Status::OUT_OF_HOST_MEMORY, "isolate: %s: %s", what, std::strerror(errno));
}

}  // namespace

Result<SharedMemory> SharedMemory::create() {
  const int fd = memfd_create("calrt-isolate", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return memory_error("no shared memory (memfd_create)");
  SharedMemory memory(fd, most_memory(), most_memory());
  if (ftruncate(fd, static_cast<off_t>(memory.bytes())) != 0)
    return memory_error("shared memory cannot be sized (ftruncate)");
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return memory_error("shared memory cannot be sealed (F_ADD_SEALS)");
  CALRT_TRY(memory.map());
  memory.control().arena_bytes = memory.arena_bytes_;
  memory.control().staging_bytes = memory.staging_bytes_;
  return memory;
}

Result<SharedMemory> SharedMemory::attach(int fd) {
  uint64_t sizes[2] = {};  // the first fields of the control page
  if (pread(fd, sizes, sizeof sizes, 0) != sizeof sizes)
    return memory_error("shared memory cannot be read");
  SharedMemory memory(fd, sizes[0], sizes[1]);
  CALRT_TRY(memory.map());
  return memory;
}

Result<void> SharedMemory::map() {
  const uint64_t reserved = bytes() + Arena::kMostAlign;
  void* range =
      mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED)
    return fail(Status::OUT_OF_HOST_MEMORY,
                "isolate: no %llu bytes of address space for shared memory: %s; it is reserved, "
                "not used: lift the process's limit (ulimit -v unlimited)",
                static_cast<ull>(reserved), std::strerror(errno));
  const auto begin = reinterpret_cast<uintptr_t>(range);
  const auto aligned = (begin + Arena::kMostAlign - 1) / Arena::kMostAlign * Arena::kMostAlign;
  auto* base = reinterpret_cast<unsigned char*>(aligned);
  if (aligned != begin) munmap(range, aligned - begin);
  if (begin + reserved != aligned + bytes())
    munmap(base + bytes(), begin + reserved - aligned - bytes());
  if (mmap(base, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd_, 0) ==
      MAP_FAILED) {
    const Error error = memory_error("shared memory cannot be mapped");
    munmap(base, bytes());
    return error;
  }
  base_ = base;
  (void)madvise(base, bytes(), MADV_DONTDUMP);  // a core would be looked through page by page
  return {};
}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, bytes());
  if (fd_ >= 0) close(fd_);
}

}  // namespace calrt::isolate
