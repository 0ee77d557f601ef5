// SPDX-License-Identifier: Apache-2.0
// Where the native part's log lines go: one function pointer for the process. Thread-safe.
#pragma once

#include <cstdint>

namespace calrt {

enum LogLevel : int32_t { LOG_DEBUG = 10, LOG_INFO = 20, LOG_WARNING = 30, LOG_ERROR = 40 };

// Called on any thread, a driver's too; must not block for long and must not throw. The strings
// are valid during the call only and are UTF-8.
using LogSink = void (*)(int32_t level, const char* component, const char* text);

// Null brings back the default, which writes warnings and errors to stderr. The old sink may still
// be running on another thread when this returns.
void set_log_sink(LogSink sink);

void log_text(int32_t level, const char* component, const char* text);
[[gnu::format(printf, 3, 4)]] void log_line(int32_t level, const char* component,
                                            const char* format, ...);

}  // namespace calrt
