// SPDX-License-Identifier: Apache-2.0
// Native log lines into Python's logging. Threads of drivers never touch Python: lines wait in a
// bounded queue until the next call into the module comes back from native code.
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process.h"
#include "bind/errors.h"
#include "bind/module.h"

namespace calrt::bind {
namespace {

constexpr size_t kMostLines = 256;

struct Line {
  int32_t level;
  std::string component, text;
  uint64_t job_seq;
  std::vector<uint64_t> requests;
};

struct Queue {
  std::mutex mutex;
  std::deque<Line> lines;
  uint64_t dropped = 0;
};

// A fork's child has one of its own: these lines are its parent's to tell.
Queue& queue() { return per_process<Queue>(); }

void enqueue(const LogRecord& record) {
  Queue& waiting = queue();
  const std::lock_guard lock(waiting.mutex);
  try {
    if (waiting.lines.size() < kMostLines)
      waiting.lines.push_back({record.level,
                               record.component,
                               record.text,
                               record.job_seq,
                               {record.requests.begin(), record.requests.end()}});
    else
      ++waiting.dropped;
  } catch (const std::bad_alloc&) {
    ++waiting.dropped;
  }
  logs_waiting.store(true, std::memory_order_release);
}

py::object text_of(const std::string& text) {
  auto made = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  if (!made) throw py::error_already_set();
  return made;
}

// (level, component, text, job_seq, requests), as calrt.logs takes them.
py::tuple line_of(const Line& line) {
  py::tuple requests(line.requests.size());
  for (size_t i = 0; i < line.requests.size(); ++i) requests[i] = line.requests[i];
  return py::make_tuple(line.level, text_of(line.component), text_of(line.text), line.job_seq,
                        requests);
}

}  // namespace

std::atomic<bool> logs_waiting{false};

void deliver_logs() {
  std::deque<Line> lines;
  uint64_t dropped = 0;
  {
    Queue& waiting = queue();
    const std::lock_guard lock(waiting.mutex);
    lines.swap(waiting.lines);
    dropped = std::exchange(waiting.dropped, 0);
    logs_waiting.store(false, std::memory_order_release);
  }
  const py::error_scope pending;  // a logging handler's failure is not the caller's
  try {
    py::list told;
    for (const Line& line : lines) told.append(line_of(line));
    py::module_::import("calrt.logs").attr("deliver")(told, dropped);
  } catch (py::error_already_set& error) {
    // Ctrl-C is the program's, though it came here: whoever looks next sees it.
    if (error.matches(PyExc_KeyboardInterrupt)) return PyErr_SetInterrupt();
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
