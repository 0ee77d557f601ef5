// SPDX-License-Identifier: Apache-2.0
#include "base/copied_bytes.h"

#include <atomic>

namespace calrt {
namespace {

std::atomic<uint64_t> copied{0};

}  // namespace

void count_copied(uint64_t bytes) noexcept { copied.fetch_add(bytes, std::memory_order_relaxed); }

uint64_t copied_bytes() noexcept { return copied.load(std::memory_order_relaxed); }

}  // namespace calrt
