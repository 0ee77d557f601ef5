// SPDX-License-Identifier: Apache-2.0
// The child's half of entries_device.cpp and entries_data.cpp.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "isolate/job_waiter.h"
#include "isolate/served_own.h"

namespace calrt::isolate::served {
namespace {

constexpr uint32_t kMostListed = 65536;

template <class T>
T* handle(Request& r, uint64_t token) {
  return static_cast<T*>(r.program.handles.find(token));
}
template <class T>
T* handle(Request& r) {
  return handle<T>(r, r.in.get<uint64_t>());
}

void close_all(const std::vector<int>& fds) {
  for (const int fd : fds) close(fd);
}

}  // namespace

cald_status driver_open(Request& r, cald_error* error) {
  cald_driver* driver = nullptr;
  const cald_status status = r.program.table->driver_open(&r.program.host, &driver, error);
  r.out.pod(r.program.handles.add(driver));
  return status;
}

cald_status device_caps(Request& r, cald_error* error) {
  auto* device = handle<cald_device>(r);
  const bool wants = r.in.get<uint8_t>() != 0;
  auto count = r.in.get<uint32_t>();
  if (!r.in.good() || (wants && count > kMostListed)) return refuse_malformed(error);
  std::vector<cald_cap> caps(wants ? count : 0);
  std::vector<uint32_t> sizes(caps.size());
  for (size_t i = 0; i < caps.size(); ++i) {
    sizes[i] = std::min(r.in.get<uint32_t>(), static_cast<uint32_t>(sizeof(cald_cap)));
    caps[i].struct_size = sizes[i];
  }
  const cald_status status =
      r.program.table->device_caps(device, wants ? caps.data() : nullptr, &count, error);
  r.out.pod(count);
  const auto given = std::min(count, static_cast<uint32_t>(status == CALD_OK ? caps.size() : 0));
  r.out.pod(given);
  for (uint32_t i = 0; i < given; ++i) {
    caps[i].struct_size = sizes[i];
    carry(r.out, caps[i]);
  }
  return status;
}

cald_status device_counters(Request& r, cald_error* error) {
  auto* device = handle<cald_device>(r);
  const bool wants = r.in.get<uint8_t>() != 0;
  auto count = r.in.get<uint32_t>();
  if (!r.in.good() || (wants && count > kMostListed)) return refuse_malformed(error);
  std::vector<cald_counter> counters(wants ? count : 0);
  const cald_status status =
      r.program.table->device_counters(device, wants ? counters.data() : nullptr, &count, error);
  r.out.pod(count);
  const auto given =
      std::min(count, static_cast<uint32_t>(status == CALD_OK ? counters.size() : 0));
  r.out.pod(given);
  for (uint32_t i = 0; i < given; ++i) carry(r.out, counters[i]);
  return status;
}

cald_status trace_drain(Request& r, cald_error* error) {
  auto* device = handle<cald_device>(r);
  const auto room = r.in.get<uint32_t>();
  const bool wants_info = r.in.get<uint8_t>() != 0;
  cald_trace_info info{};
  if (wants_info) carry(r.in, info);
  if (!r.in.good() || room > kMostListed) return refuse_malformed(error);
  const uint32_t size = info.struct_size;
  std::vector<cald_trace_event> events(room);
  uint32_t count = room;
  const cald_status status = r.program.table->trace_drain(device, events.data(), &count,
                                                          wants_info ? &info : nullptr, error);
  const uint32_t given = status == CALD_OK ? std::min(count, room) : 0;
  r.out.pod(given);
  for (uint32_t i = 0; i < given; ++i) carry(r.out, events[i]);
  info.struct_size = size;
  if (wants_info) carry(r.out, info);
  return status;
}

// Says what the device's clock is, too; and a device that calls back nobody gets a waiter.
cald_status session_open(Request& r, cald_error* error) {
  auto* device = handle<cald_device>(r);
  const auto index = r.in.get<uint32_t>();
  if (!r.in.good()) return refuse_malformed(error);
  cald_session* session = nullptr;
  const cald_status status = r.program.table->session_open(device, index, &session, error);
  const uint64_t token = r.program.handles.add(session);
  cald_device_info info{};
  info.struct_size = sizeof info;
  if (token != 0) (void)r.program.table->device_info(device, &info, nullptr);
  if (token != 0 && info.completion == CALD_COMPLETION_WAIT) {
    const std::scoped_lock lock(r.program.waiters_mutex);
    r.program.waiters[token] = std::make_unique<JobWaiter>(*r.program.table);
  }
  r.out.pod(token);
  r.out.pod(static_cast<uint8_t>(info.clock == CALD_CLOCK_VIRTUAL));
  return status;
}

cald_status session_close(Request& r, cald_error*) {
  const auto token = r.in.get<uint64_t>();
  r.program.table->session_close(handle<cald_session>(r, token));
  r.program.handles.forget(token);
  const std::scoped_lock lock(r.program.waiters_mutex);
  r.program.waiters.erase(token);
  return CALD_OK;
}

cald_status buffer_map(Request& r, cald_error* error) {
  auto* buffer = handle<cald_buffer>(r);
  if (!r.in.good()) return refuse_malformed(error);
  void* address = nullptr;
  const cald_status status = r.program.table->buffer_map(buffer, &address, error);
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto base = reinterpret_cast<uintptr_t>(r.program.memory.arena());
  const bool shared = at >= base && at - base < r.program.memory.arena_bytes();
  r.out.pod(static_cast<uint8_t>(shared));
  r.out.pod(shared ? uint64_t{at - base} : uint64_t{0});
  return status;
}

// buffer_transfer and its two older forms.
template <class Call>
static cald_status transfer(Request& r, cald_error* error, Call&& call) {
  cald_transfer what{};
  what.struct_size = sizeof what;
  what.buffer = handle<cald_buffer>(r);
  r.in.pod(what.direction);
  r.in.pod(what.offset);
  r.in.pod(what.bytes);
  const auto place = r.in.get<uint64_t>(), staged = r.in.get<uint64_t>();
  const SharedMemory& memory = r.program.memory;
  if (!r.in.good() || place > memory.staging_bytes() || staged > memory.staging_bytes() - place)
    return refuse_malformed(error);
  what.host = memory.staging() + place;
  if (staged != what.bytes)  // nothing so large can be moved: whatever the driver has to say
    return refuse(error, CALD_OUT_OF_RANGE, "buffer_transfer",
                  "more bytes than any buffer has, or a null host");
  const cald_status status = call(what);
  r.out.pod(what.moved);
  return status;
}

cald_status buffer_transfer(Request& r, cald_error* error) {
  return transfer(r, error, [&](cald_transfer& what) {
    return r.program.table->buffer_transfer(&what, error);
  });
}
cald_status buffer_h2d(Request& r, cald_error* error) {
  return transfer(r, error, [&](cald_transfer& what) {
    return r.program.table->buffer_h2d(what.buffer, what.offset, what.host, what.bytes, error);
  });
}
cald_status buffer_d2h(Request& r, cald_error* error) {
  return transfer(r, error, [&](cald_transfer& what) {
    what.moved = what.bytes;
    return r.program.table->buffer_d2h(what.buffer, what.offset, what.host, what.bytes, error);
  });
}

// ---- packages -----------------------------------------------------------------------------------

namespace {

// A package as it was sent, its descriptors in place.
struct Package {
  cald_device* device;
  std::vector<int> fds;
  cald_package package{};
  cald_load_options options{};
  explicit Package(Request& r) : device(handle<cald_device>(r)) {
    fds = r.program.take_parcel(r.in.get<uint64_t>());
    carry(r.in, package);
    carry(r.in, options);
    size_t next = 0;
    for (uint32_t i = 0; i < package.n_artifacts; ++i) {
      auto* artifact = const_cast<cald_artifact*>(package.artifacts[i]);  // the pool's own
      if (artifact == nullptr || artifact->fd < 0) continue;
      r.in.check(next < fds.size());
      artifact->fd = next < fds.size() ? fds[next++] : -1;
    }
  }
};

// A sign of life in the middle of a load.
int32_t report_progress(void* user, uint64_t done, uint64_t total) {
  auto& r = *static_cast<Request*>(user);
  Writer message(r.channel.message(), kMessageBytes);
  message.pod(done);
  message.pod(total);
  r.channel.give(Turn::PARENT, Kind::PROGRESS, static_cast<uint32_t>(message.bytes()));
  r.channel.wait_child();
  return r.channel.kind() == Kind::GO_ON && r.channel.message()[0] != 0 ? 0 : 1;
}

}  // namespace

cald_status model_footprint(Request& r, cald_error* error) {
  Package given(r);
  Held<cald_footprint*> out(r, error);
  if (!r.in.good()) return close_all(given.fds), refuse_malformed(error);
  const cald_status status = r.program.table->model_footprint(
      given.device, &given.package, &given.options, out.argument(), error);
  close_all(given.fds);
  out.reply(r);
  return status;
}

cald_status model_load(Request& r, cald_error* error) {
  Package given(r);
  (void)r.in.get<uint8_t>();  // whether somebody listens: a sign of life is given in any case
  if (!r.in.good()) return close_all(given.fds), refuse_malformed(error);
  given.options.user = &r;
  given.options.progress = report_progress;
  cald_model* model = nullptr;
  const cald_status status =
      r.program.table->model_load(given.device, &given.package, &given.options, &model, error);
  const uint64_t token = r.program.handles.add(model);
  if (token == 0) {
    close_all(given.fds);
  } else {
    const std::scoped_lock lock(r.program.models_mutex);
    r.program.model_fds[token] = given.fds;
  }
  r.out.pod(token);
  return status;
}

cald_status model_unload(Request& r, cald_error*) {
  const auto token = r.in.get<uint64_t>();
  r.program.table->model_unload(handle<cald_model>(r, token));
  r.program.handles.forget(token);
  const std::scoped_lock lock(r.program.models_mutex);
  close_all(r.program.model_fds[token]);
  r.program.model_fds.erase(token);
  return CALD_OK;
}

}  // namespace calrt::isolate::served
