// SPDX-License-Identifier: Apache-2.0
// A driver whose behaviour a test writes down: libcald_scripted. It counts what lives, so that a
// leak or a wrong order of closing is seen. Tests reach the script through its exported symbol.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "calrt/driver.h"

namespace scripted {

// How jobs end: inside submit, when told, from a thread, or in the poll `duration_ns` after the
// first.
enum class Ends { INSIDE, HELD, THREAD, POLLED };

struct Script {
  std::recursive_mutex mutex;
  std::map<std::string, int32_t> answers;       // entry -> status it returns instead of working
  std::map<std::string, int> throws;            // entry -> 1: std::exception, 2: not one
  std::map<std::string, std::string> messages;  // entry -> text of its error
  std::function<void(const char*)> on_entry;    // called at the head of some entries
  Ends ends = Ends::INSIDE;
  int completions = 1;     // callbacks a job makes
  uint64_t wrong_seq = 0;  // added to the completion's job_seq
  int32_t end_state = CALD_JOB_DONE, end_status = CALD_OK;
  std::string end_text;  // job_query's message
  int64_t end_native = 0;
  // Of the completion: what was moved, the vendor's number, and how long a struct the driver knows.
  uint64_t bytes_in = CALD_BYTES_UNKNOWN, bytes_out = CALD_BYTES_UNKNOWN;
  int64_t told_native = 0;
  uint32_t told_flags = 0, told_size = sizeof(cald_completion);
  bool one_device = false;   // device_open refuses a second one
  uint32_t queue_limit = 9;  // jobs not yet ended, on all sessions
  uint64_t footprint_host = 0, footprint_device = 0, memory_free = 0;
  int settle_polls = 0;     // job_wait says WAIT_TIMEOUT this often after an end
  bool wait_hangs = false;  // job_wait does not return before this is false again
  int32_t completion = CALD_COMPLETION_CALLBACK;
  uint32_t clock = CALD_CLOCK_REAL;
  uint64_t duration_ns = 0;
  uint32_t kv_ops = 0;
  const char* device_class = "test-class";
  const char* runtime = "1.2.3";

  std::map<std::string, int> alive;  // handles by kind
  std::map<std::string, int> calls;  // entries by name
  std::vector<std::string> order;    // every close, free, unload and destroy
  std::vector<std::string> wrong;    // broken promises of calrt, in words
  std::vector<uint64_t> held;        // job_seq of jobs that wait to be told
  std::vector<cald_binding> bound;   // of the last submit
  cald_job_desc last{};              // the last submit; its `bindings` are gone
  struct Run {
    uint32_t graph;
    std::vector<cald_binding> bound;
  };
  std::map<uint64_t, Run> runs;  // submitted and not ended, by job_seq
  cald_kv_desc last_kv{};        // the last kv_submit
  std::vector<uint64_t> polls;   // the times of poll
  int progress_answer = -1;

  void reset() {
    const std::scoped_lock lock(mutex);
    answers.clear();
    throws.clear();
    messages.clear();
    on_entry = nullptr;
    ends = Ends::INSIDE;
    completions = 1;
    wrong_seq = 0;
    end_state = CALD_JOB_DONE;
    end_status = CALD_OK;
    end_text.clear();
    end_native = 0;
    queue_limit = 9;
    one_device = false;
    footprint_host = footprint_device = memory_free = 0;
    settle_polls = 0;
    bytes_in = bytes_out = CALD_BYTES_UNKNOWN;
    told_native = 0;
    told_flags = 0;
    told_size = sizeof(cald_completion);
    wait_hangs = false;
    completion = CALD_COMPLETION_CALLBACK;
    clock = CALD_CLOCK_REAL;
    duration_ns = 0;
    kv_ops = 0;
    polls.clear();
    device_class = "test-class";
    runtime = "1.2.3";
    calls.clear();
    order.clear();
    wrong.clear();
    bound.clear();
    runs.clear();
    progress_answer = -1;
  }
  int living() {
    const std::scoped_lock lock(mutex);
    int sum = 0;
    for (const auto& [kind, count] : alive) sum += count;
    return sum;
  }
  int living(const std::string& kind) {
    const std::scoped_lock lock(mutex);
    return alive[kind];
  }
  std::function<void(const char*)> hook() {
    const std::scoped_lock lock(mutex);
    return on_entry;
  }
  int called(const std::string& entry) {
    const std::scoped_lock lock(mutex);
    return calls[entry];
  }
  // What the driver shall do from now on, set beside its running threads.
  template <class Change>
  void set(Change&& change) {
    const std::scoped_lock lock(mutex);
    change(*this);
  }
  // Ends a held job; false if there is none of that tag. Set by the library.
  std::function<bool(uint64_t job_seq)> finish;
};

}  // namespace scripted

extern "C" CALD_EXPORT scripted::Script* scripted_script();
