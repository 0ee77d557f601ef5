// SPDX-License-Identifier: Apache-2.0
// What calrt lends to every driver: log, trace, memory, clock.
#pragma once

#include <cstdint>

#include "calrt/driver.h"

namespace calrt {

// One table for all drivers, valid for the life of the process.
const cald_host& driver_host();

// CLOCK_MONOTONIC in ns, the clock of every deadline.
uint64_t monotonic_ns();

// Where drivers' trace events go; null (the default) drops them. Called on any thread, must not
// block. Thread-safe.
using TraceSink = void (*)(int32_t phase, const char* name, uint64_t id, uint64_t t_ns);
void set_trace_sink(TraceSink sink);

}  // namespace calrt
