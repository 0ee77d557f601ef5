// SPDX-License-Identifier: Apache-2.0
#include "layers/trace_layer_sink.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace calrt::layers {
namespace {

constexpr size_t kMostThreads = 4096;  // later ones have a track without a name

// Microseconds with all digits of a nanosecond.
std::string micros(uint64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%llu.%03llu", static_cast<unsigned long long>(ns / 1000),
                static_cast<unsigned long long>(ns % 1000));
  return text;
}

std::string on_track(Track track) {
  return ",\"pid\":" + std::to_string(track.pid) + ",\"tid\":" + std::to_string(track.tid);
}

}  // namespace

void TraceArgs::put(const char* name, std::string_view json) {
  text_ += text_.empty() ? "\"" : ",\"";
  text_ += name;
  text_ += "\":";
  text_ += json;
}

TraceArgs& TraceArgs::add(const char* name, int64_t value) {
  put(name, std::to_string(value));
  return *this;
}
TraceArgs& TraceArgs::add(const char* name, uint64_t value) {
  put(name, std::to_string(value));
  return *this;
}
TraceArgs& TraceArgs::add(const char* name, double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6g", std::isfinite(value) ? value : 0.0);
  put(name, text);
  return *this;
}
TraceArgs& TraceArgs::add(const char* name, std::string_view text) {
  put(name, json_string(text));
  return *this;
}

void TraceSink::write(const std::string& members, const TraceArgs& args) {
  std::string event(events_++ == 0 ? "[\n{" : ",\n{");
  event += members;
  event += ",\"args\":";
  event += args.json();
  event += '}';
  file_->add(event);
}

void TraceSink::slice(Track on, std::string_view name, uint64_t from_ns, uint64_t to_ns,
                      const TraceArgs& args) {
  write("\"ph\":\"X\",\"name\":" + json_string(name) + on_track(on) + ",\"ts\":" + micros(from_ns) +
            ",\"dur\":" + micros(std::max(to_ns, from_ns) - from_ns),
        args);
}

void TraceSink::span(bool begin, uint64_t id, std::string_view name, uint64_t t_ns,
                     const TraceArgs& args) {
  write(std::string("\"ph\":\"") + (begin ? 'b' : 'e') +
            "\",\"cat\":\"job\",\"id\":" + std::to_string(id) + ",\"name\":" + json_string(name) +
            on_track({}) + ",\"ts\":" + micros(t_ns),
        args);
}

void TraceSink::counter(Track on, std::string_view name, uint64_t t_ns, int64_t value) {
  write("\"ph\":\"C\",\"name\":" + json_string(name) + on_track(on) + ",\"ts\":" + micros(t_ns),
        TraceArgs().add("value", value));
}

void TraceSink::instant(Track on, std::string_view name, uint64_t t_ns, const TraceArgs& args) {
  write("\"ph\":\"i\",\"s\":\"p\",\"name\":" + json_string(name) + on_track(on) +
            ",\"ts\":" + micros(t_ns),
        args);
}

void TraceSink::meta(const char* what, const char* member, Track track, std::string_view text) {
  write(std::string("\"ph\":\"M\",\"name\":\"") + what + "\"" + on_track(track),
        TraceArgs().add(member, text));
}

void TraceSink::name_process(uint64_t pid, std::string_view name) {
  meta("process_name", "name", {pid, 0}, name);
}
void TraceSink::label_process(uint64_t pid, std::string_view label) {
  meta("process_labels", "labels", {pid, 0}, label);
}
void TraceSink::name_track(Track track, std::string_view name) {
  meta("thread_name", "name", track, name);
}

Track TraceSink::thread() {
  static std::atomic<uint64_t> last{0};
  thread_local const uint64_t number = ++last;
  bool named = true;
  {
    const std::scoped_lock lock(mutex_);
    if (threads_.size() < kMostThreads) named = !threads_.insert(number).second;
  }
  const Track track{kHostPid, number};
  if (!named) {
    char name[64] = "";
    (void)pthread_getname_np(pthread_self(), name, sizeof name);
    name_track(track, "thread " + std::to_string(number) + " (" + name + ")");
  }
  return track;
}

void TraceSink::close() { file_->close("\n]\n"); }

}  // namespace calrt::layers
