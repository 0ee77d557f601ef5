// SPDX-License-Identifier: Apache-2.0
// TRACE and POLL: a device's own record, and devices that move when they are told.
#include <unistd.h>

#include <algorithm>
#include <map>

#include "conformance/player.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;

struct Trace {
  Kit& kit;
  cald_device* device;
  explicit Trace(Kit& on) : kit(on), device(nullptr) {
    NEEDS_ENTRY(kit, trace_start);
    if (!CONFORMANCE_HAS(kit, trace_drain) || !CONFORMANCE_HAS(kit, trace_stop))
      broken_rule("TRACE-02", "there is trace_start, and no trace_drain or trace_stop");
    device = kit.device();
  }
  cald_status start(uint32_t capacity) {
    return kit.call("trace_start", [&](cald_error* err) {
      return kit.table().trace_start(device, capacity, err);
    });
  }
  void stop() {
    kit.ok("trace_stop", [&](cald_error* err) { return kit.table().trace_stop(device, err); });
  }
  std::vector<cald_trace_event> drain(uint32_t room, cald_trace_info* info = nullptr) {
    cald_trace_event blank;
    std::memset(static_cast<void*>(&blank), 0x5A, sizeof blank);
    std::vector<cald_trace_event> events(room + 4, blank);
    uint32_t count = room;
    if (info != nullptr) {
      *info = {};
      info->struct_size = sizeof *info;
    }
    kit.ok("trace_drain", [&](cald_error* err) {
      return kit.table().trace_drain(device, events.data(), &count, info, err);
    });
    if (count > room)
      broken_rule("TRACE-04", "%u events were drained with room for %u", count, room);
    for (uint32_t i = count; i < events.size(); ++i)
      if (std::memcmp(&events[i], &blank, sizeof blank) != 0)
        broken_rule("TRACE-04", "event %u was written, and %u were drained", i, count);
    events.resize(count);
    return events;
  }
  // So many jobs with job_seq `first` and on.
  void jobs(uint64_t first, uint32_t count) {
    Player player(kit);
    for (uint32_t i = 0; i < count; ++i) {
      player.fill(player.call(0));
      player.call(0).run({first + i});
    }
  }
};

CONFORMANCE_CHECK("TRACE-01", "") {
  Trace trace(kit);
  for (const uint32_t capacity : {0u, UINT32_MAX}) {
    const cald_status status = trace.start(capacity);
    if (status == CALD_OK) trace.stop();
    REQUIRE(status != CALD_OK, "a trace of %u events was begun", capacity);
  }
}

CONFORMANCE_CHECK("TRACE-02", "") {
  Trace trace(kit);
  (void)kit.model();
  REQUIRE(trace.start(4096) == CALD_OK, "trace_start: %s", kit.message().c_str());
  cald_trace_info before{}, after{};
  trace.drain(0, &before);
  const uint64_t began = kit.now_ns();
  trace.jobs(501, 3);
  const uint64_t ended = kit.now_ns();
  const std::vector<cald_trace_event> events = trace.drain(4096, &after);
  trace.stop();
  REQUIRE(!events.empty(), "3 jobs have left no event");
  // The host's clock to the device's, at the second reading.
  const auto slack = static_cast<int64_t>(before.residual_ns + after.residual_ns) + 1000;
  const auto shift = static_cast<int64_t>(after.device_ns - after.host_ns);
  std::map<std::pair<uint32_t, std::string>, int> open;
  std::map<uint64_t, int> of_job;
  uint64_t last = 0;
  for (const cald_trace_event& event : events) {
    REQUIRE(event.name != nullptr && *event.name != '\0', "an event has no name");
    REQUIRE(event.phase >= CALD_TRACE_BEGIN && event.phase <= CALD_TRACE_COUNTER,
            "event \"%s\" is of phase %d", event.name, event.phase);
    REQUIRE(event.t_ns >= last, "events are not oldest first: %llu after %llu",
            static_cast<ull>(event.t_ns), static_cast<ull>(last));
    last = event.t_ns;
    const auto at = static_cast<int64_t>(event.t_ns) - shift;
    REQUIRE(at >= static_cast<int64_t>(began) - slack && at <= static_cast<int64_t>(ended) + slack,
            "event \"%s\" lies %lld ns outside of the time of its jobs", event.name,
            static_cast<long long>(at < static_cast<int64_t>(began)
                                       ? static_cast<int64_t>(began) - at
                                       : at - static_cast<int64_t>(ended)));
    REQUIRE(event.id == 0 || (event.id >= 501 && event.id <= 503),
            "event \"%s\" is of job %llu; jobs 501 to 503 have run", event.name,
            static_cast<ull>(event.id));
    ++of_job[event.id];
    int& depth = open[{event.track, event.name}];
    depth += event.phase == CALD_TRACE_BEGIN ? 1 : event.phase == CALD_TRACE_END ? -1 : 0;
    REQUIRE(depth >= 0, "event \"%s\" ends and has not begun", event.name);
  }
  for (const auto& [what, depth] : open)
    REQUIRE(depth == 0, "event \"%s\" of track %u begins and does not end", what.second.c_str(),
            what.first);
  for (const uint64_t job : {501, 502, 503})
    REQUIRE(of_job.count(job) == 1, "job %llu has left no event", static_cast<ull>(job));
}

CONFORMANCE_CHECK("TRACE-03", "") {
  Trace trace(kit);
  (void)kit.model();
  const uint32_t capacity = 8;
  REQUIRE(trace.start(capacity) == CALD_OK, "trace_start: %s", kit.message().c_str());
  trace.jobs(1, 1);
  cald_trace_info info{};
  const auto each = static_cast<uint32_t>(trace.drain(64, &info).size());
  REQUIRE(info.dropped == 0 || each > 0, "one job, and %llu events did not fit into %u",
          static_cast<ull>(info.dropped), capacity);
  REQUIRE(trace.start(capacity) == CALD_OK, "trace_start: %s", kit.message().c_str());
  const uint32_t jobs = 12;
  trace.jobs(1, jobs);
  const std::vector<cald_trace_event> events = trace.drain(64, &info);
  trace.stop();
  REQUIRE(events.size() <= capacity, "%zu events in a trace of %u", events.size(), capacity);
  REQUIRE(events.size() + info.dropped == uint64_t{each} * jobs,
          "%zu events are there and %llu did not fit: %u jobs of %u events each make %u",
          events.size(), static_cast<ull>(info.dropped), jobs, each, each * jobs);
}

CONFORMANCE_CHECK("TRACE-04", "") {
  Trace trace(kit);
  (void)kit.model();
  REQUIRE(trace.start(4096) == CALD_OK, "trace_start: %s", kit.message().c_str());
  trace.jobs(1, 2);
  const std::vector<cald_trace_event> one = trace.drain(1), rest = trace.drain(4095);
  REQUIRE(one.size() == 1, "%zu events were drained with room for 1", one.size());
  REQUIRE(rest.empty() || rest.front().t_ns >= one.front().t_ns,
          "the event drained first is not the oldest");
  REQUIRE(trace.drain(4096).empty(), "events were drained twice");
  trace.jobs(10, 1);
  for (const cald_trace_event& event : trace.drain(4096))
    REQUIRE(event.id == 10 || event.id == 0, "an event of job %llu was drained twice",
            static_cast<ull>(event.id));
  trace.stop();
}

CONFORMANCE_CHECK("TRACE-05", "") {
  Trace trace(kit);
  (void)kit.session();
  REQUIRE(trace.start(16) == CALD_OK, "trace_start: %s", kit.message().c_str());
  if (kit.virtual_clock()) kit.poll(kit.now_ns() + 5000);
  uint64_t device = 0;
  for (int round = 0; round < 4; ++round) {
    cald_trace_info info{};
    const uint64_t before = kit.now_ns();
    trace.drain(0, &info);
    const uint64_t after = kit.now_ns();
    REQUIRE(info.host_ns >= before && info.host_ns <= after,
            "the host's clock was read at %llu, the call was from %llu to %llu",
            static_cast<ull>(info.host_ns), static_cast<ull>(before), static_cast<ull>(after));
    REQUIRE(info.residual_ns <= after - before, "a residual of %llu ns, the call took %llu",
            static_cast<ull>(info.residual_ns), static_cast<ull>(after - before));
    REQUIRE(info.device_ns >= device, "the device's clock went back from %llu to %llu",
            static_cast<ull>(device), static_cast<ull>(info.device_ns));
    device = info.device_ns;
  }
  trace.stop();
}

CONFORMANCE_CHECK("TRACE-06", "") {
  Trace trace(kit);
  (void)kit.model();
  REQUIRE(trace.start(4096) == CALD_OK, "trace_start: %s", kit.message().c_str());
  trace.jobs(1, 1);
  trace.stop();
  trace.jobs(2, 2);
  const std::vector<cald_trace_event> events = trace.drain(4096);
  REQUIRE(!events.empty(), "what was recorded cannot be drained after trace_stop");
  for (const cald_trace_event& event : events)
    REQUIRE(event.id <= 1, "job %llu was recorded after trace_stop", static_cast<ull>(event.id));
  REQUIRE(trace.start(4096) == CALD_OK, "trace_start: %s", kit.message().c_str());
  trace.jobs(3, 1);
  REQUIRE(trace.start(4096) == CALD_OK, "trace_start: %s", kit.message().c_str());
  cald_trace_info info{};
  REQUIRE(trace.drain(4096, &info).empty() && info.dropped == 0,
          "a trace that begins anew holds events of the last");
  trace.stop();
}

void needs_poll(Kit& kit) {
  if (!kit.polled()) skip("the device moves by itself: completion is not POLL");
}

CONFORMANCE_CHECK("POLL-01", "") {
  needs_poll(kit);
  kit.close_session();
  for (int i = 0; i < 3; ++i) {
    const uint64_t next = kit.poll(kit.now_ns() + 10);
    REQUIRE(next == CALD_NO_DEADLINE, "an idle session wants to be polled at %llu",
            static_cast<ull>(next));
  }
  Player player(kit);
  player.fill(player.call(0));
  player.call(0).run();
  REQUIRE(kit.poll(kit.now_ns() + 10) == CALD_NO_DEADLINE,
          "a session whose jobs have ended wants to be polled");
}

CONFORMANCE_CHECK("POLL-02", "") {
  needs_poll(kit);
  Player player(kit);
  GraphCall& call = player.call(player.all().back());
  for (int round = 0; round < 3; ++round) {
    player.fill(call);
    Job job = call.submit();
    REQUIRE(job.told().count() == 0 && !job.ended(), "a job ended outside of poll, in submit");
    usleep(2000);
    REQUIRE(job.told().count() == 0 && !job.ended(), "a job ended while nobody polled");
    job.wait();
    REQUIRE(job.told().count() == 1, "on_complete came %zu times", job.told().count());
    REQUIRE(job.told().thread() == std::this_thread::get_id(),
            "on_complete came on another thread than that of poll");
  }
}

CONFORMANCE_CHECK("POLL-03", "") {
  if (!kit.virtual_clock()) skip("the clock is not virtual");
  Player player(kit);
  for (const uint32_t graph : player.all()) {
    player.fill(player.call(graph));
    Job job = player.call(graph).submit();
    for (int turns = 0; !job.ended(); ++turns) {
      REQUIRE(turns < 1000, "a job has not ended after 1000 of the times that poll asked for");
      const uint64_t now = kit.now_ns(), next = kit.poll(now);
      if (job.ended()) break;
      REQUIRE(next != CALD_NO_DEADLINE, "a job has not ended, and poll asks for no time");
      if (next <= now) {
        kit.poll(now + 1);
        continue;
      }
      if (next - now > 2) {
        const uint64_t again = kit.poll(next - 1);
        REQUIRE(!job.ended(), "a job ended 1 ns before the time that poll had asked for");
        REQUIRE(again == next, "poll asked for %llu, then for %llu", static_cast<ull>(next),
                static_cast<ull>(again));
      }
      kit.poll(next);
    }
    job.expect(CALD_JOB_DONE, "a job in virtual time");
  }
}

CONFORMANCE_CHECK("POLL-04", "") {
  if (!kit.virtual_clock()) skip("the clock is not virtual");
  std::vector<uint64_t> times[2];
  for (std::vector<uint64_t>& run : times) {
    kit.close_device();
    Player player(kit);
    for (const uint32_t graph : player.all()) {
      player.fill(player.call(graph));
      const uint64_t start = kit.now_ns();
      Job job = player.call(graph).submit();
      job.wait();
      run.push_back(kit.now_ns() - start);
    }
  }
  REQUIRE(times[0] == times[1], "the same jobs took other virtual times the second time");
}

}  // namespace
}  // namespace calrt::conformance
