// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace calrt {
namespace {

void to_stderr(const LogRecord& record) {
  if (record.level < LOG_WARNING) return;
  char job[32] = "";
  if (record.job_seq != 0)
    std::snprintf(job, sizeof job, "job %llu: ", (unsigned long long)record.job_seq);
  std::fprintf(stderr, "calrt %s [%s] %s%s\n", record.level >= LOG_ERROR ? "error" : "warning",
               record.component, job, record.text);
}

std::atomic<LogSink> sink{to_stderr};

}  // namespace

void set_log_sink(LogSink wanted) {
  sink.store(wanted != nullptr ? wanted : to_stderr, std::memory_order_release);
}

void log_record(const LogRecord& record) { sink.load(std::memory_order_acquire)(record); }

void log_text(int32_t level, const char* component, const char* text) {
  LogRecord record;
  record.level = level;
  if (component != nullptr) record.component = component;
  if (text != nullptr) record.text = text;
  log_record(record);
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
