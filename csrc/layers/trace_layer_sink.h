// SPDX-License-Identifier: Apache-2.0
// Events of Chrome's trace format, into a file. Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <set>

#include "layers/layer_file.h"

namespace calrt::layers {

// The members of an event's "args".
class TraceArgs {
 public:
  TraceArgs& add(const char* name, int64_t value);
  TraceArgs& add(const char* name, uint64_t value);
  TraceArgs& add(const char* name, double value);
  TraceArgs& add(const char* name, std::string_view text);
  std::string json() const { return "{" + text_ + "}"; }

 private:
  void put(const char* name, std::string_view json);
  std::string text_;
};

struct Track {
  uint64_t pid = 1, tid = 0;
};
inline constexpr uint64_t kHostPid = 1, kFirstDevicePid = 10;

class TraceSink {
 public:
  explicit TraceSink(std::unique_ptr<LayerFile> file) : file_(std::move(file)) {}

  void slice(Track on, std::string_view name, uint64_t from_ns, uint64_t to_ns,
             const TraceArgs& args);
  // Spans of one id nest in the order in which they are written.
  void span(bool begin, uint64_t id, std::string_view name, uint64_t t_ns, const TraceArgs& args);
  void counter(Track on, std::string_view name, uint64_t t_ns, int64_t value);
  void instant(Track on, std::string_view name, uint64_t t_ns, const TraceArgs& args);
  void name_process(uint64_t pid, std::string_view name);
  void label_process(uint64_t pid, std::string_view label);
  void name_track(Track track, std::string_view name);
  // The calling thread's track, named at its first use.
  Track thread();
  void close();  // the end of the array

  uint64_t events() const { return events_.load(); }
  const LayerFile& file() const { return *file_; }

 private:
  void write(const std::string& members, const TraceArgs& args);
  void meta(const char* what, const char* member, Track track, std::string_view text);

  std::unique_ptr<LayerFile> file_;
  std::atomic<uint64_t> events_{0};
  std::mutex mutex_;
  std::set<uint64_t> threads_;  // that have a name in this file
};

}  // namespace calrt::layers
