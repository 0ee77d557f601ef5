// SPDX-License-Identifier: Apache-2.0
// Native log lines into Python's logging. Threads of drivers never touch Python: lines wait in a
// bounded queue until the next call into the module comes back from native code.
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "base/log.h"
#include "bind/errors.h"
#include "bind/module.h"

namespace calrt::bind {
namespace {

constexpr size_t kMostLines = 256;

struct Line {
  int32_t level;
  std::string component, text;
};

struct Queue {
  std::mutex mutex;
  std::deque<Line> lines;
  uint64_t dropped = 0;
};

Queue& queue() {
  static auto* made = new Queue;  // never destroyed: a driver may log while the process ends
  return *made;
}

void enqueue(int32_t level, const char* component, const char* text) {
  Queue& waiting = queue();
  std::lock_guard lock(waiting.mutex);
  if (waiting.lines.size() < kMostLines)
    waiting.lines.push_back({level, component, text});
  else
    ++waiting.dropped;
  logs_waiting.store(true, std::memory_order_release);
}

}  // namespace

std::atomic<bool> logs_waiting{false};

void deliver_logs() {
  std::deque<Line> lines;
  uint64_t dropped = 0;
  {
    Queue& waiting = queue();
    std::lock_guard lock(waiting.mutex);
    lines.swap(waiting.lines);
    dropped = std::exchange(waiting.dropped, 0);
    logs_waiting.store(false, std::memory_order_release);
  }
  py::error_scope pending;  // a logging handler's failure is not the caller's
  try {
    const py::object logger_of = py::module_::import("logging").attr("getLogger");
    for (const Line& line : lines)
      logger_of("calrt." + line.component).attr("log")(line.level, "%s", line.text);
    if (dropped > 0)
      logger_of("calrt").attr("warning")("%d native log lines were dropped: too many at once",
                                         dropped);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("calrt's native log");
  }
}

void bind_log() {
  set_log_sink(&enqueue);
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    if (logs_waiting.load()) deliver_logs();
    set_log_sink(nullptr);
  }));
}

}  // namespace calrt::bind
