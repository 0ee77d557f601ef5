// SPDX-License-Identifier: Apache-2.0
// One device's own trace on its way through the trace layer: drained, brought onto the host's
// clock, written as slices and counters, and kept for a program that traces the device itself.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "layers/layer.h"
#include "layers/trace_layer_clock.h"
#include "layers/trace_layer_sink.h"

namespace calrt::layers {

// Not thread-safe: whoever uses it has the device to himself.
class TracedDevice {
 public:
  // `capacity` 0: the layer starts no trace of its own.
  TracedDevice(TraceSink& sink, cald_device* device, uint64_t number, uint32_t capacity)
      : sink_(sink), device_(device), pid_(kFirstDevicePid + number), capacity_(capacity) {}

  // After device_open, with what is below the layer.
  void open(const Call& call);
  // Takes what the device has; two readings of the clocks stand around it.
  void drain(const Call& call);
  // Before device_close: takes the rest and says how well the clocks are aligned.
  void close(const Call& call);

  // A program's own entries, done here.
  void program_start(Call& call);
  void program_drain(Call& call);
  void program_stop(Call& call);

  bool on() const { return tracing_; }
  uint64_t events() const { return events_; }
  uint64_t dropped() const { return dropped_before_ + dropped_now_; }
  uint64_t unpaired() const { return unpaired_; }
  uint64_t residual_ns() const { return virtual_ ? 0 : clock_.residual_ns(); }

 private:
  struct Open {
    std::string name;
    uint64_t id, from_ns;
  };
  struct Row {  // one line of slices that nest
    std::vector<Open> open;
    uint64_t free_ns = 0;
  };

  bool start(const Call& call, uint32_t capacity);
  void read_clock(const Call& call);
  void write(const cald_trace_event& event);
  void begin(const cald_trace_event& event, uint64_t t_ns);
  void end(const cald_trace_event& event, uint64_t t_ns);
  void flush(bool all);
  void state_alignment();

  TraceSink& sink_;
  cald_device* const device_;
  const uint64_t pid_;
  const uint32_t capacity_;
  bool tracing_ = false, virtual_ = false;
  std::string class_;
  DeviceClock clock_;
  std::vector<cald_trace_event> room_;
  std::vector<cald_trace_event> held_;         // later than the last reading of the clocks
  std::map<uint32_t, std::vector<Row>> rows_;  // by track
  uint64_t events_ = 0, unpaired_ = 0;
  uint64_t dropped_before_ = 0, dropped_now_ = 0;  // by the device: earlier traces, this one

  bool program_on_ = false;
  uint32_t program_room_ = 0;
  std::deque<cald_trace_event> program_;  // not yet drained by it
  uint64_t program_dropped_ = 0;          // did not fit
  uint64_t program_base_ = 0;             // dropped() when its trace began
};

}  // namespace calrt::layers
