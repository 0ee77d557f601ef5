// SPDX-License-Identifier: Apache-2.0
// What a device can be asked, as dicts and lists that calrt.device_facts gives their names.
#include <pybind11/stl.h>

#include <cmath>

#include "bind/named.h"
#include "bind/objects.h"
#include "calrt/job.h"

namespace calrt::bind {
namespace {

// By number; "unknown" for what a newer driver may say.
std::string word(std::initializer_list<const char*> words, int64_t number) {
  const bool known = number >= 0 && number < static_cast<int64_t>(words.size());
  return known ? words.begin()[number] : "unknown";
}

py::list domain_names(uint32_t domains) {
  py::list names;
  for (const char* name : {"host", "host_pinned", "device", "shared"})
    if ((domains & domain_from_name(name)) != 0) names.append(name);
  return names;
}

py::dict device_info(const PyDevice& self) {
  const DeviceInfo info = unwrap(without_gil([&] { return self.device->info(); }), self.context());
  py::dict out;
  out["driver"] = info.driver;
  out["driver_version"] = info.driver_version;
  out["driver_path"] = info.driver_path;
  out["name"] = info.name;
  out["device_class"] = info.device_class;
  out["runtime"] = info.runtime;
  out["chips"] = info.chips;
  out["sessions"] = info.sessions;
  out["depth"] = info.depth;
  out["queue"] = info.queue;
  out["exclusive"] = info.exclusive;
  out["memory_bytes"] = info.memory_bytes;
  out["memory_free"] = info.memory_free;
  out["id"] = info.id;
  out["domains"] = domain_names(info.domains);
  out["completion"] = word({"callback", "wait", "poll"}, info.completion);
  out["clock"] = word({"real", "virtual"}, info.clock);
  return out;
}

py::object measured(double value) {
  return std::isnan(value) ? py::object(py::none()) : py::float_(value);
}

py::dict device_health(const PyDevice& self) {
  const cald_health health =
      unwrap(without_gil([&] { return self.device->health(); }), self.context());
  py::dict out;
  out["state"] = health.state == CALD_HEALTH_OK         ? "ok"
                 : health.state == CALD_HEALTH_DEGRADED ? "degraded"
                                                        : "failed";
  out["temperature_c"] = measured(health.temperature_c);
  out["power_w"] = measured(health.power_w);
  out["clock_mhz"] = measured(health.clock_mhz);
  return out;
}

py::list device_caps(const PyDevice& self) {
  py::list all;
  for (const Capability& cap :
       unwrap(without_gil([&] { return self.device->caps(); }), self.context())) {
    py::dict entry;
    entry["name"] = cap.name;
    entry["level"] = cap.level;
    entry["value"] = cap.value;
    entry["source"] = cap.source;
    all.append(entry);
  }
  return all;
}

py::dict device_counters(const PyDevice& self) {
  py::dict out;
  for (const auto& [name, value] :
       unwrap(without_gil([&] { return self.device->counters(); }), self.context()))
    out[py::str(name)] = value;
  out["calrt.stray_completions"] = stray_completions();
  out["calrt.late_completions"] = late_completions();
  return out;
}

py::object link_end(uint32_t chip) {
  return chip == CALD_HOST_CHIP ? py::object(py::none()) : py::int_(chip);
}

py::dict device_topology(const PyDevice& self) {
  const Topology topology =
      unwrap(without_gil([&] { return self.device->topology(); }), self.context());
  py::list chips, links, sessions;
  for (const Topology::Chip& chip : topology.chips)
    chips.append(py::make_tuple(chip.index, chip.name, chip.memory_bytes));
  for (const cald_link& link : topology.links)
    links.append(
        py::make_tuple(link_end(link.from), link_end(link.to), link.bytes_per_s, link.latency_ns));
  for (const uint64_t mask : topology.session_chips) {
    py::list of_session;
    for (uint32_t chip = 0; chip < 64; ++chip)
      if ((mask >> chip & 1) != 0) of_session.append(chip);
    sessions.append(py::tuple(of_session));
  }
  py::dict out;
  out["chips"] = chips;
  out["links"] = links;
  out["sessions"] = sessions;
  out["modes"] = topology.modes;
  out["placements"] = topology.placements;
  return out;
}

py::dict buffer_rules(const PyDevice& self, Arg<"domain", std::string> domain) {
  const uint32_t bit = domain_from_name(domain);
  const BufferRules rules =
      unwrap(without_gil([&] { return self.device->buffer_rules(bit); }), self.context());
  py::dict out;
  out["align"] = rules.align;
  out["padding"] = rules.padding;
  out["max_bytes"] = rules.max_bytes;
  return out;
}

py::tuple trace_drain(const PyDevice& self) {
  const DeviceTrace trace =
      unwrap(without_gil([&] { return self.device->trace_drain(); }), self.context());
  py::list events;
  for (const DeviceTrace::Event& event : trace.events)
    events.append(py::make_tuple(trace.host_ns(event.t_ns), event.name,
                                 word({"unknown", "begin", "end", "counter"}, event.phase),
                                 event.id, event.track, event.value));
  return py::make_tuple(events, trace.dropped, trace.residual_ns);
}

}  // namespace

void bind_device_queries(py::classh<PyDevice>& device) {
  device
      .def("info", &device_info,
           "driver, driver_version, driver_path, name, device_class, runtime, chips, sessions, "
           "depth, queue, exclusive, memory_bytes, memory_free (bytes, 0 = unknown), id, domains, "
           "completion (callback, wait, poll), clock (real, virtual).")
      .def("health", &device_health,
           "state (ok, degraded, failed), temperature_c, power_w, clock_mhz (None where unknown).")
      .def("caps", &device_caps, "Capabilities: name, level (0-4), value, source.")
      .def("counters", &device_counters,
           "The driver's counters by name, those of layers, and calrt's own of the whole process: "
           "'calrt.stray_completions' and 'calrt.late_completions'.")
      .def("topology", &device_topology,
           "chips [(index, name, memory_bytes)], links [(from, to, bytes_per_s, latency_ns)] with "
           "None for the host, sessions [(chip, ...)], modes, placements. UnsupportedError where "
           "the driver does not tell.")
      .def("buffer_rules", &buffer_rules, py::arg("domain"),
           "align, padding, max_bytes (0 = not stated) of buffers in one domain.")
      .def(
          "trace_start",
          [](const PyDevice& self, Arg<"capacity", uint32_t> capacity) {
            unwrap(without_gil([&] { return self.device->trace_start(capacity); }), self.context());
          },
          py::arg("capacity"), "Begins the device's own trace anew, keeping `capacity` events.")
      .def("trace_drain", &trace_drain,
           "([(host_ns, name, phase, job_seq, track, value)], dropped, residual_ns): what came "
           "since the last drain, oldest first.")
      .def(
          "trace_stop",
          [](const PyDevice& self) {
            unwrap(without_gil([&] { return self.device->trace_stop(); }), self.context());
          },
          "Ends the trace; what is there can still be drained.");
}

}  // namespace calrt::bind
