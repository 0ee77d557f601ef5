// SPDX-License-Identifier: Apache-2.0
#include "layers/trace_layer_device.h"

#include <algorithm>

#include "base/log.h"
#include "layers/answer.h"
#include "layers/visit.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;

constexpr uint32_t kBatch = 4096;       // events of one call of trace_drain
constexpr int kMostBatches = 256;       // of one drain: a device that never ends is left for now
constexpr size_t kMostRows = 16;        // of one track
constexpr size_t kMostOpen = 64;        // slices within each other
constexpr size_t kMostHeld = 1u << 20;  // events later than the clocks' last reading

cald_trace_info blank_info() {
  cald_trace_info info{};
  info.struct_size = sizeof info;
  return info;
}

}  // namespace

void TracedDevice::open(const Call& call) {
  cald_device_info info{};
  info.struct_size = sizeof info;
  if (ask([&] { return call.driver.device_info(device_, &info, nullptr); }) == CALD_OK) {
    if (info.device_class != nullptr) class_ = info.device_class;
    virtual_ = info.clock == CALD_CLOCK_VIRTUAL;
  }
  sink_.name_process(pid_, "device " + std::to_string(pid_ - kFirstDevicePid) + " " + class_);
  if (capacity_ != 0) tracing_ = start(call, capacity_);
  if (tracing_) state_alignment();
}

bool TracedDevice::start(const Call& call, uint32_t capacity) {
  const auto begin = call.lower<&Table::trace_start>();
  if (begin == nullptr || call.lower<&Table::trace_drain>() == nullptr) return false;
  if (ask([&] { return begin(device_, capacity, nullptr); }) != CALD_OK) return false;
  dropped_before_ += std::exchange(dropped_now_, 0);
  read_clock(call);
  return true;
}

void TracedDevice::read_clock(const Call& call) {
  const auto take = call.lower<&Table::trace_drain>();
  uint32_t none = 0;
  cald_trace_info info = blank_info();
  if (take == nullptr) return;
  if (ask([&] { return take(device_, nullptr, &none, &info, nullptr); }) != CALD_OK) return;
  clock_.add(info.device_ns, info.host_ns, info.residual_ns);
  dropped_now_ = std::max(dropped_now_, info.dropped);
}

void TracedDevice::drain(const Call& call) {
  const auto take = call.lower<&Table::trace_drain>();
  if (take == nullptr) return;
  if (room_.empty()) room_.resize(kBatch);
  for (int batch = 0; batch < kMostBatches; ++batch) {
    uint32_t count = kBatch;
    cald_trace_info info = blank_info();
    if (ask([&] { return take(device_, room_.data(), &count, &info, nullptr); }) != CALD_OK) return;
    count = std::min(count, kBatch);
    clock_.add(info.device_ns, info.host_ns, info.residual_ns);
    dropped_now_ = std::max(dropped_now_, info.dropped);
    for (uint32_t i = 0; i < count; ++i) {
      if (held_.size() < kMostHeld) held_.push_back(room_[i]);
      if (!program_on_) continue;
      if (program_.size() < program_room_)
        program_.push_back(room_[i]);
      else
        ++program_dropped_;
    }
    if (count < kBatch) break;
  }
  flush(false);
}

// What lies between two readings is exact; what is later waits for the next one.
void TracedDevice::flush(bool all) {
  if (!clock_.known()) return;
  const auto later = std::stable_partition(held_.begin(), held_.end(), [&](const auto& event) {
    return all || clock_.covers(event.t_ns);
  });
  std::for_each(held_.begin(), later, [&](const auto& event) { write(event); });
  held_.erase(held_.begin(), later);
}

void TracedDevice::close(const Call& call) {
  if (!tracing_) return;
  const auto stop = call.lower<&Table::trace_stop>();
  if (stop != nullptr) (void)ask([&] { return stop(device_, nullptr); });
  drain(call);
  read_clock(call);
  flush(true);
  for (auto& [track, rows] : rows_)
    for (Row& row : rows) unpaired_ += row.open.size();
  tracing_ = false;
  state_alignment();
  const std::string text = virtual_ ? "virtual clock, shown as it is" : clock_.text();
  log_line(LOG_INFO, "trace", "device %llu %.64s: %s; %llu events, %llu dropped by the device",
           static_cast<unsigned long long>(pid_ - kFirstDevicePid), class_.c_str(), text.c_str(),
           static_cast<unsigned long long>(events_), static_cast<unsigned long long>(dropped()));
}

void TracedDevice::state_alignment() {
  TraceArgs args;
  args.add("clock", virtual_ ? "virtual" : "real")
      .add("offset_ns", clock_.offset_ns())
      .add("drift_ppm", clock_.drift_ppm())
      .add("residual_ns", clock_.residual_ns())
      .add("readings", clock_.pairs())
      .add("device_dropped", dropped())
      .add("text", virtual_ ? "virtual clock, shown as it is" : clock_.text());
  sink_.instant({pid_, 0}, "clock alignment", steady_ns(), args);
  sink_.label_process(pid_, virtual_ ? "virtual clock, shown as it is" : clock_.text());
}

// ---- events ------------------------------------------------------------------------------------

void TracedDevice::write(const cald_trace_event& event) {
  ++events_;
  const uint64_t t_ns = clock_.to_host(event.t_ns);
  if (event.phase == CALD_TRACE_BEGIN) return begin(event, t_ns);
  if (event.phase == CALD_TRACE_END) return end(event, t_ns);
  const char* name = event.name != nullptr ? event.name : "?";
  if (event.phase == CALD_TRACE_COUNTER)
    return sink_.counter({pid_, event.track * kMostRows}, name, t_ns, event.value);
  ++unpaired_;
}

// Jobs may overlap on one track of a device, slices of one line must nest: each job that overlaps
// gets a line below.
void TracedDevice::begin(const cald_trace_event& event, uint64_t t_ns) {
  auto& rows = rows_[event.track];
  const auto fits = [&](const Row& row) {
    return row.open.empty() ? t_ns >= row.free_ns
                            : row.open.back().id == event.id && t_ns >= row.open.back().from_ns &&
                                  row.open.size() < kMostOpen;
  };
  auto row = std::find_if(rows.begin(), rows.end(), fits);
  if (row == rows.end()) {
    if (rows.size() == kMostRows || rows_.size() > kMostRows) {
      ++unpaired_;
      return;
    }
    rows.emplace_back();
    row = rows.end() - 1;
    std::string name = "track " + std::to_string(event.track);
    if (rows.size() > 1) name += " (" + std::to_string(rows.size()) + ")";
    sink_.name_track({pid_, event.track * kMostRows + rows.size() - 1}, name);
  }
  row->open.push_back({event.name != nullptr ? event.name : "?", event.id, t_ns});
}

void TracedDevice::end(const cald_trace_event& event, uint64_t t_ns) {
  auto& rows = rows_[event.track];
  for (size_t i = 0; i < rows.size(); ++i) {
    Row& row = rows[i];
    if (row.open.empty() || row.open.back().id != event.id) continue;
    if (event.name != nullptr && row.open.back().name != event.name) continue;
    const Open ended = row.open.back();
    row.open.pop_back();
    row.free_ns = std::max(ended.from_ns, t_ns);
    TraceArgs args;
    if (event.id != 0) args.add("job_seq", event.id);
    return sink_.slice({pid_, event.track * kMostRows + i}, ended.name, ended.from_ns, row.free_ns,
                       args);
  }
  ++unpaired_;
}

// ---- a program's own trace ---------------------------------------------------------------------

void TracedDevice::program_start(Call& call) {
  if (tracing_) drain(call);
  call.forward();
  if (call.status != CALD_OK) return;
  dropped_before_ += std::exchange(dropped_now_, 0);
  tracing_ = true;
  program_on_ = true;
  program_room_ = std::get<1>(call.of<&Table::trace_start>());
  program_.clear();
  program_dropped_ = 0;
  program_base_ = dropped();
  read_clock(call);
}

void TracedDevice::program_drain(Call& call) {
  auto& [device, out, count, info, error] = call.of<&Table::trace_drain>();
  if (!tracing_ && program_.empty()) return call.forward();
  if (tracing_) drain(call);
  const uint32_t room = out != nullptr ? *count : 0;
  // The driver itself fills `info`, as long as the caller's struct is.
  const auto take = call.lower<&Table::trace_drain>();
  uint32_t none = 0;
  call.status = take(device, nullptr, &none, info, error);
  if (call.status != CALD_OK) return;
  if (info != nullptr && has_field(*info, &cald_trace_info::dropped))
    info->dropped = program_on_ ? dropped() - program_base_ + program_dropped_ : program_dropped_;
  const auto n = static_cast<uint32_t>(std::min<size_t>(room, program_.size()));
  std::copy_n(program_.begin(), n, out);
  program_.erase(program_.begin(), program_.begin() + n);
  *count = n;
}

void TracedDevice::program_stop(Call& call) {
  if (!program_on_) return call.forward();
  call.forward();
  drain(call);
  program_on_ = false;
  program_dropped_ += dropped() - program_base_;
  tracing_ = capacity_ != 0 && start(call, capacity_);
}

}  // namespace calrt::layers
