// SPDX-License-Identifier: Apache-2.0
#include "layers/trace_layer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layers/answer.h"
#include "layers/completion_tap.h"
#include "layers/trace_layer_device.h"
#include "layers/visit.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;
constexpr uint64_t kDrainNs = 20'000'000;

class TraceLayer;

struct TracedJob final : CompletionTap {
  void complete(const cald_completion& completion) override;

  std::weak_ptr<TraceLayer> layer;
  cald_session* session = nullptr;
  uint64_t id = 0, job_seq = 0;  // id: of its span, the layer's own
  std::string name;              // "decode_b4", "kv clear"
  void (*on_complete)(void*, const cald_completion*) = nullptr;
  void* user = nullptr;
  // Guarded by the layer's mutex:
  uint64_t submitted_ns = 0, ended_ns = 0;  // 0: not ended as far as is known
  int32_t state = 0, status = 0;
};

// The device of a call whose first argument it is.
cald_device* device_of(const Call& call) {
  cald_device* found = nullptr;
  visit_arguments(call, [&](auto& first, auto&...) {
    if constexpr (std::is_same_v<decltype(first), cald_device*&>) found = first;
  });
  return found;
}

const char* kv_name(uint32_t op) {
  switch (op) {
    case CALD_KV_CLEAR:
      return "kv clear";
    case CALD_KV_LANE_COPY:
      return "kv lane_copy";
    case CALD_KV_RANGE_COPY:
      return "kv range_copy";
    case CALD_KV_ROTATE:
      return "kv rotate";
    case CALD_KV_READ:
      return "kv read";
    case CALD_KV_WRITE:
      return "kv write";
    default:
      return "kv";
  }
}

class TraceLayer final : public Layer, public std::enable_shared_from_this<TraceLayer> {
 public:
  TraceLayer(std::unique_ptr<LayerFile> file, uint32_t device_events)
      : sink_(std::move(file)), device_events_(device_events) {
    sink_.name_process(kHostPid, "calrt");
  }
  ~TraceLayer() override { sink_.close(); }

  const char* name() const override { return "trace"; }
  bool replace(Call& call) override;
  std::vector<std::pair<std::string, uint64_t>> counters() override;
  void completed(TracedJob& job, const cald_completion& completion);

 private:
  using JobRef = std::shared_ptr<TracedJob>;
  // Its mutex is held during calls on the device's handle, which come one at a time: the layer's
  // own come between them.
  struct Device {
    std::mutex alone;
    TracedDevice traced;
    Device(TraceSink& sink, cald_device* device, uint64_t number, uint32_t events)
        : traced(sink, device, number, events) {}
  };
  using DeviceRef = std::shared_ptr<Device>;

  void work(Call& call);
  void on_device(Call& call, const DeviceRef& device);
  void note_graphs(const Call& call);
  std::string graph_name(const cald_job_desc& desc);
  template <auto Member>
  void submit(Call& call, std::string name);
  void job_destroy(Call& call);
  void ended(const cald_job* handle, int32_t state);
  void write_end(const TracedJob& job, const cald_timing& timing);
  void end_jobs(const cald_session* of);
  void drain_some(const Call& call);
  TraceArgs facts(const Call& call);
  JobRef find(const cald_job* handle);

  TraceSink sink_;
  const uint32_t device_events_;
  std::mutex mutex_;
  std::map<const cald_job*, JobRef> jobs_;
  std::map<const cald_model*, std::vector<std::string>> graphs_;  // their names
  std::map<const cald_device*, DeviceRef> devices_;
  std::atomic<uint64_t> devices_made_{0};
  uint64_t jobs_made_ = 0;
  uint64_t device_numbers_[3] = {};  // of closed devices: events, dropped, unpaired
  uint64_t residual_ns_ = 0;         // of closed devices, the largest
  std::atomic<uint64_t> drained_ns_{0};
};

bool TraceLayer::replace(Call& call) {
  const Track track = sink_.thread();
  const uint64_t from = steady_ns();
  TraceArgs args = facts(call);
  try {
    work(call);
  } catch (...) {
    sink_.slice(track, entry_name(call.entry), from, steady_ns(),
                args.add("threw", static_cast<int64_t>(1)));
    throw;
  }
  const uint64_t to = steady_ns();
  if (call.has_status) args.add("status", static_cast<int64_t>(call.status));
  sink_.slice(track, entry_name(call.entry), from, to, args);
  if (call.entry == Entry::driver_close)
    sink_.close();
  else
    drain_some(call);
  return true;
}

TraceArgs TraceLayer::facts(const Call& call) {
  TraceArgs args;
  switch (call.entry) {
    case Entry::submit:
      return args.add("job_seq", std::get<1>(call.of<&Table::submit>())->job_seq);
    case Entry::kv_submit:
      return args.add("job_seq", std::get<1>(call.of<&Table::kv_submit>())->job_seq);
    case Entry::buffer_alloc:
      return args.add("bytes", std::get<2>(call.of<&Table::buffer_alloc>()));
    case Entry::buffer_h2d:
      return args.add("bytes", std::get<3>(call.of<&Table::buffer_h2d>()));
    case Entry::buffer_d2h:
      return args.add("bytes", std::get<3>(call.of<&Table::buffer_d2h>()));
    case Entry::buffer_transfer: {
      const cald_transfer& transfer = *std::get<0>(call.of<&Table::buffer_transfer>());
      return args.add("bytes", transfer.bytes)
          .add("to", transfer.direction == CALD_TO_DEVICE ? "device" : "host");
    }
    default:
      visit_arguments(call, [&](auto& first, auto&...) {
        if constexpr (std::is_same_v<decltype(first), cald_job*&>)
          if (const JobRef job = find(first)) args.add("job_seq", job->job_seq);
      });
      return args;
  }
}

void TraceLayer::work(Call& call) {
  if (cald_device* const handle = device_of(call)) {
    DeviceRef device;
    {
      const std::scoped_lock lock(mutex_);
      if (const auto found = devices_.find(handle); found != devices_.end()) device = found->second;
    }
    if (device != nullptr) return on_device(call, device);
  }
  switch (call.entry) {
    case Entry::device_open: {
      call.forward();
      cald_device* const handle = *std::get<2>(call.of<&Table::device_open>());
      if (call.status != CALD_OK || handle == nullptr) return;
      const auto device = std::make_shared<Device>(sink_, handle, devices_made_++, device_events_);
      device->traced.open(call);
      const std::scoped_lock lock(mutex_);
      devices_[handle] = device;
      return;
    }
    case Entry::model_info:
      call.forward();
      if (call.status == CALD_OK) note_graphs(call);
      return;
    case Entry::model_unload: {
      const std::scoped_lock lock(mutex_);
      graphs_.erase(std::get<0>(call.of<&Table::model_unload>()));
      break;
    }
    case Entry::submit:
      return submit<&Table::submit>(call, graph_name(*std::get<1>(call.of<&Table::submit>())));
    case Entry::kv_submit:
      return submit<&Table::kv_submit>(call,
                                       kv_name(std::get<1>(call.of<&Table::kv_submit>())->op));
    case Entry::job_wait:
      call.forward();
      if (call.status == CALD_OK) ended(std::get<0>(call.of<&Table::job_wait>()), 0);
      return;
    case Entry::job_query: {
      call.forward();
      const int32_t state = *std::get<1>(call.of<&Table::job_query>());
      if (call.status == CALD_OK && state >= CALD_JOB_DONE)
        ended(std::get<0>(call.of<&Table::job_query>()), state);
      return;
    }
    case Entry::job_destroy:
      return job_destroy(call);
    case Entry::session_close:
      call.forward();
      return end_jobs(std::get<0>(call.of<&Table::session_close>()));
    default:
      break;
  }
  call.forward();
}

void TraceLayer::note_graphs(const Call& call) {
  const auto& [model, info, error] = call.of<&Table::model_info>();
  std::vector<std::string> names;
  for (uint32_t i = 0; i < info->n_graphs && info->graphs != nullptr; ++i)
    names.emplace_back(info->graphs[i]->name != nullptr ? info->graphs[i]->name : "?");
  const std::scoped_lock lock(mutex_);
  graphs_[model] = std::move(names);
}

std::string TraceLayer::graph_name(const cald_job_desc& desc) {
  const std::scoped_lock lock(mutex_);
  const auto found = graphs_.find(desc.model);
  if (found != graphs_.end() && desc.graph < found->second.size()) return found->second[desc.graph];
  return "graph " + std::to_string(desc.graph);
}

void TraceLayer::on_device(Call& call, const DeviceRef& device) {
  const std::scoped_lock alone(device->alone);
  switch (call.entry) {
    case Entry::trace_start:
      return device->traced.program_start(call);
    case Entry::trace_drain:
      return device->traced.program_drain(call);
    case Entry::trace_stop:
      return device->traced.program_stop(call);
    case Entry::device_close: {
      device->traced.close(call);
      const std::scoped_lock lock(mutex_);
      const TracedDevice& done = device->traced;
      device_numbers_[0] += done.events();
      device_numbers_[1] += done.dropped();
      device_numbers_[2] += done.unpaired();
      residual_ns_ = std::max(residual_ns_, done.residual_ns());
      devices_.erase(std::get<0>(call.of<&Table::device_close>()));
      break;
    }
    default:
      break;
  }
  call.forward();
}

// A device that is busy with a call is left for the next time.
void TraceLayer::drain_some(const Call& call) {
  const uint64_t now = steady_ns();
  uint64_t last = drained_ns_.load();
  if (now - last < kDrainNs || !drained_ns_.compare_exchange_strong(last, now)) return;
  std::vector<DeviceRef> devices;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [handle, device] : devices_) devices.push_back(device);
  }
  for (const DeviceRef& device : devices)
    if (const std::unique_lock alone(device->alone, std::try_to_lock); alone.owns_lock())
      if (device->traced.on()) device->traced.drain(call);
}

// ---- jobs --------------------------------------------------------------------------------------

TraceLayer::JobRef TraceLayer::find(const cald_job* handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(handle);
  return found != jobs_.end() ? found->second : nullptr;
}

template <auto Member>
void TraceLayer::submit(Call& call, std::string name) {
  const auto& [session, desc, out, error] = call.of<Member>();
  const auto job = std::make_shared<TracedJob>();
  job->layer = weak_from_this();
  job->session = session;
  job->job_seq = desc->job_seq;
  job->name = std::move(name);
  job->on_complete = desc->on_complete;
  job->user = desc->user;
  job->submitted_ns = steady_ns();
  if (desc->on_complete != nullptr)
    job->template forward<Member>(call);
  else
    call.forward();
  if (call.status != CALD_OK || *out == nullptr) return;
  {
    const std::scoped_lock lock(mutex_);
    job->id = ++jobs_made_;
    jobs_[*out] = job;
  }
  sink_.span(true, job->id, job->name, job->submitted_ns, TraceArgs().add("job_seq", job->job_seq));
}

void TraceLayer::completed(TracedJob& job, const cald_completion& completion) {
  const uint64_t from = steady_ns();
  {
    const std::scoped_lock lock(mutex_);
    if (job.ended_ns == 0) {
      job.ended_ns = from;
      job.state = completion.state;
      job.status = completion.status;
    }
  }
  job.on_complete(job.user, &completion);
  sink_.slice(sink_.thread(), "on_complete", from, steady_ns(),
              TraceArgs()
                  .add("job_seq", completion.job_seq)
                  .add("state", static_cast<int64_t>(completion.state))
                  .add("status", static_cast<int64_t>(completion.status)));
}

void TraceLayer::ended(const cald_job* handle, int32_t state) {
  const uint64_t now = steady_ns();
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(handle);
  if (found == jobs_.end()) return;
  TracedJob& job = *found->second;
  if (job.ended_ns == 0) job.ended_ns = now;
  if (job.state == 0) job.state = state;
}

void TraceLayer::job_destroy(Call& call) {
  cald_job* const handle = std::get<0>(call.of<&Table::job_destroy>());
  JobRef job;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = jobs_.find(handle); found != jobs_.end()) {
      job = found->second;
      jobs_.erase(found);
    }
  }
  if (job == nullptr) return call.forward();
  cald_timing timing{};
  timing.struct_size = sizeof timing;
  const auto time = call.lower<&Table::job_timing>();
  if (time == nullptr || ask([&] { return time(handle, &timing, nullptr); }) != CALD_OK)
    timing = {};
  if (job->ended_ns == 0) job->ended_ns = steady_ns();
  call.forward();
  write_end(*job, timing);
}

// The stages are written with the job's end, inside its span: what they add up to may be more than
// the span, as the device's clock has it.
void TraceLayer::write_end(const TracedJob& job, const cald_timing& timing) {
  uint64_t at = std::clamp(timing.submitted_ns, job.submitted_ns, job.ended_ns);
  for (const auto& [name, lasted] :
       {std::pair("queue", timing.queue_ns), std::pair("h2d", timing.h2d_ns),
        std::pair("infer", timing.infer_ns), std::pair("d2h", timing.d2h_ns)}) {
    if (lasted == 0) continue;
    const uint64_t until = at + std::min(lasted, job.ended_ns - at);
    sink_.span(true, job.id, name, at, TraceArgs().add("ns", lasted));
    sink_.span(false, job.id, name, until, {});
    at = until;
  }
  sink_.span(false, job.id, job.name, job.ended_ns,
             TraceArgs()
                 .add("state", static_cast<int64_t>(job.state))
                 .add("status", static_cast<int64_t>(job.status)));
}

// Jobs that end with their session.
void TraceLayer::end_jobs(const cald_session* of) {
  const std::scoped_lock lock(mutex_);
  std::erase_if(jobs_, [&](const auto& entry) {
    TracedJob& job = *entry.second;
    if (job.session != of) return false;
    if (job.ended_ns == 0) job.ended_ns = steady_ns();
    write_end(job, {});
    return true;
  });
}

std::vector<std::pair<std::string, uint64_t>> TraceLayer::counters() {
  std::vector<DeviceRef> devices;
  uint64_t numbers[3], residual_ns = 0, jobs = 0;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& [handle, device] : devices_) devices.push_back(device);
    std::copy(std::begin(device_numbers_), std::end(device_numbers_), numbers);
    residual_ns = residual_ns_;
    jobs = jobs_made_;
  }
  for (const DeviceRef& device : devices) {
    const std::scoped_lock alone(device->alone);
    numbers[0] += device->traced.events();
    numbers[1] += device->traced.dropped();
    numbers[2] += device->traced.unpaired();
    residual_ns = std::max(residual_ns, device->traced.residual_ns());
  }
  return {{"events", sink_.events()},      {"jobs", jobs},
          {"bytes", sink_.file().bytes()}, {"left_out", sink_.file().left_out()},
          {"device_events", numbers[0]},   {"device_dropped", numbers[1]},
          {"device_unpaired", numbers[2]}, {"residual_ns", residual_ns}};
}

void TracedJob::complete(const cald_completion& completion) {
  if (const auto owner = layer.lock()) owner->completed(*this, completion);
}

}  // namespace

Result<std::shared_ptr<Layer>> make_trace_layer(const std::string& config) {
  CALRT_TRY_ASSIGN(FileConfig read, FileConfig::parse("trace", config,
                                                      {{"events", 65536, 0, 1u << 20},
                                                       {"mb", 1024, 1, 1u << 20},
                                                       {"wait_ms", 100, 0, 10'000}}));
  CALRT_TRY_ASSIGN(auto file, LayerFile::create("trace", read.path, read.values.at("mb") << 20,
                                                read.values.at("wait_ms")));
  const auto events = static_cast<uint32_t>(read.values.at("events"));
  return std::shared_ptr<Layer>(std::make_shared<TraceLayer>(std::move(file), events));
}

}  // namespace calrt::layers
