// SPDX-License-Identifier: Apache-2.0
#include "base/process.h"

#include <pthread.h>

namespace calrt {

std::atomic<uint32_t> detail::process_generation{0};

namespace {

void forked() { detail::process_generation.fetch_add(1, std::memory_order_relaxed); }

const int registered = pthread_atfork(nullptr, nullptr, forked);

}  // namespace

}  // namespace calrt
