// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace calrt {
namespace {

void to_stderr(int32_t level, const char* component, const char* text) {
  if (level < LOG_WARNING) return;
  std::fprintf(stderr, "calrt %s [%s] %s\n", level >= LOG_ERROR ? "error" : "warning", component,
               text);
}

std::atomic<LogSink> sink{to_stderr};

}  // namespace

void set_log_sink(LogSink wanted) {
  sink.store(wanted != nullptr ? wanted : to_stderr, std::memory_order_release);
}

void log_text(int32_t level, const char* component, const char* text) {
  sink.load(std::memory_order_acquire)(level, component != nullptr ? component : "?",
                                       text != nullptr ? text : "");
}

void log_line(int32_t level, const char* component, const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_text(level, component, text);
}

}  // namespace calrt
