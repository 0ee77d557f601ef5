// SPDX-License-Identifier: Apache-2.0
#include "calrt/driver_host.h"

#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

#include "base/checked.h"
#include "base/log.h"
#include "base/utf8.h"
#include "calrt/job.h"

namespace calrt {
namespace {

std::atomic<TraceSink> trace_sink{nullptr};

void host_log(void*, int32_t level, const char* component, const char* text) {
  if (text == nullptr) return;
  const std::string from = clean_utf8(component != nullptr ? component : "driver", 64);
  log_text(level, from.c_str(), clean_utf8(text, 4096).c_str());
}

void host_trace(void*, int32_t phase, const char* name, uint64_t id, uint64_t t_ns) {
  if (const TraceSink sink = trace_sink.load(std::memory_order_acquire))
    sink(phase, name, id, t_ns);
}

void* host_alloc(void*, uint64_t bytes, uint64_t align) {
  if (align < alignof(std::max_align_t)) align = alignof(std::max_align_t);
  uint64_t rounded = 0;
  if ((align & (align - 1)) != 0 || !checked_round_up(bytes == 0 ? 1 : bytes, align, &rounded))
    return nullptr;
  return std::aligned_alloc(align, rounded);
}

void host_free(void*, void* pointer) { std::free(pointer); }

uint64_t host_now(void*) { return monotonic_ns(); }

void host_log_job(void*, int32_t level, uint64_t job_seq, const char* component, const char* text) {
  if (text == nullptr) return;
  const std::string from = clean_utf8(component != nullptr ? component : "driver", 64);
  log_job(level, from.c_str(), job_seq, clean_utf8(text, 4096).c_str());
}

}  // namespace

uint64_t monotonic_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void set_trace_sink(TraceSink sink) { trace_sink.store(sink, std::memory_order_release); }

const cald_host& driver_host() {
  static const cald_host host = {sizeof(cald_host), CALD_ABI_VERSION, nullptr,
                                 host_log,          host_trace,       host_alloc,
                                 host_free,         host_now,         host_log_job};
  return host;
}

}  // namespace calrt
