// SPDX-License-Identifier: Apache-2.0
#include "conformance/host.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"
#include "calrt/driver_host.h"

namespace calrt::conformance {
namespace {

constexpr uint64_t kBehindBytes = 64;
constexpr int kBehind = 0xA7;
constexpr uint64_t kMostBytes = uint64_t{1} << 38;  // of one block: no host has more

}  // namespace

Host::Host() {
  table_.struct_size = sizeof table_;
  table_.abi_version = CALD_ABI_VERSION;
  table_.user = this;
  table_.log = [](void* user, int32_t, const char*, const char*) { ++self(user)->calls_; };
  table_.trace = [](void* user, int32_t, const char*, uint64_t, uint64_t) { ++self(user)->calls_; };
  table_.alloc = [](void* user, uint64_t bytes, uint64_t align) {
    return self(user)->take(bytes, align);
  };
  table_.free = [](void* user, void* pointer) { self(user)->give(pointer); };
  table_.now_ns = [](void* user) {
    ++self(user)->calls_;
    return monotonic_ns();
  };
  table_.log_job = [](void* user, int32_t, uint64_t, const char*, const char*) {
    ++self(user)->calls_;
  };
}

void* Host::take(uint64_t bytes, uint64_t align) {
  ++calls_;
  align = std::max<uint64_t>(align, alignof(std::max_align_t));
  uint64_t guarded = 0, rounded = 0;
  if (bytes > kMostBytes || (align & (align - 1)) != 0 ||
      !checked_add(bytes, kBehindBytes, &guarded) || !checked_round_up(guarded, align, &rounded))
    return nullptr;
  auto* block = static_cast<unsigned char*>(std::aligned_alloc(align, rounded));
  if (block == nullptr) return nullptr;
  // What a driver reads of it without having written it should not happen to be zero.
  std::memset(block, 0xCD, std::min<uint64_t>(bytes, 4096));
  std::memset(block + bytes, kBehind, kBehindBytes);
  const std::scoped_lock lock(mutex_);
  blocks_[block] = {block, bytes};
  return block;
}

void Host::give(void* pointer) {
  ++calls_;
  if (pointer == nullptr) return;
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(pointer);
  if (found == blocks_.end()) {
    damage_ = "a pointer was freed that alloc did not give, or twice";
    return;
  }
  const auto* guard = static_cast<const unsigned char*>(pointer) + found->second.bytes;
  if (std::any_of(guard, guard + kBehindBytes, [](unsigned char byte) { return byte != kBehind; }))
    damage_ = "a block of " + std::to_string(found->second.bytes) +
              " bytes of the host's was written behind its end";
  blocks_.erase(found);
  std::free(pointer);
}

uint64_t Host::live_blocks() const {
  const std::scoped_lock lock(mutex_);
  return blocks_.size();
}

std::string Host::damage() const {
  const std::scoped_lock lock(mutex_);
  return damage_;
}

}  // namespace calrt::conformance
