// SPDX-License-Identifier: Apache-2.0
// Where the native part's log lines go: one function pointer for the process. Thread-safe.
#pragma once

#include <cstdint>
#include <span>

namespace calrt {

enum LogLevel : int32_t { LOG_DEBUG = 10, LOG_INFO = 20, LOG_WARNING = 30, LOG_ERROR = 40 };

// One line. What it points to is valid during the call of the sink only; strings are UTF-8 and
// never null.
struct LogRecord {
  int32_t level = LOG_INFO;
  const char* component = "?";
  const char* text = "";
  uint64_t job_seq = 0;                // the job it is about, 0 = none
  std::span<const uint64_t> requests;  // whom that job serves, as far as its submitter told
};

// Called on any thread, a driver's too; must not block for long and must not throw.
using LogSink = void (*)(const LogRecord& record);

// Null brings back the default, which writes warnings and errors to stderr. The old sink may still
// be running on another thread when this returns.
void set_log_sink(LogSink sink);

void log_record(const LogRecord& record);
void log_text(int32_t level, const char* component, const char* text);
[[gnu::format(printf, 3, 4)]] void log_line(int32_t level, const char* component,
                                            const char* format, ...);

}  // namespace calrt
