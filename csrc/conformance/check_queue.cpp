// SPDX-License-Identifier: Apache-2.0
// JOB-19 to JOB-21 and CANCEL: several jobs at once.
#include <unistd.h>

#include <algorithm>

#include "conformance/queue_fill.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;
constexpr int kAttempts = 10;  // to be faster than a device that is fast itself
constexpr int kNoChance = 3;

uint32_t room_of(Kit& kit) { return kit.info().depth + kit.info().queue; }

void all_told_once(Kit& kit, QueueFill& fill) {
  if (!kit.calls_back()) return;
  for (Job& job : fill.jobs())
    if (job.told().count() != 1)
      broken_rule("JOB-11", "on_complete of job %llu came %zu times",
                  static_cast<ull>(job.job_seq()), job.told().count());
}

CONFORMANCE_CHECK("JOB-19", "") {
  const uint32_t room = room_of(kit);
  REQUIRE(room <= 4096, "depth %u and queue %u", kit.info().depth, kit.info().queue);
  int overruns = 0;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    QueueFill fill(kit);
    fill.add_all(room);
    REQUIRE(fill.jobs().size() == room, "QUEUE_FULL after %zu jobs: depth %u and queue %u are %u",
            fill.jobs().size(), kit.info().depth, kit.info().queue, room);
    const cald_status status = fill.add({1000});
    const bool conclusive = status != CALD_OK || !fill.any_ended();
    fill.wait_all();
    all_told_once(kit, fill);
    if (!conclusive) continue;
    // One that is ending may have left its room and not be shown as ended yet: not every time.
    if (status == CALD_OK && ++overruns < kNoChance) continue;
    REQUIRE(status != CALD_OK, "%u jobs were accepted: depth %u and queue %u are %u", room + 1,
            kit.info().depth, kit.info().queue, room);
    REQUIRE(status == CALD_QUEUE_FULL, "one job too many was answered %d, not QUEUE_FULL (%d)",
            status, CALD_QUEUE_FULL);
    REQUIRE(fill.refused()->count() == 0, "on_complete came for a job that was refused");
    for (Job& job : fill.jobs())
      REQUIRE(job.state() == CALD_JOB_DONE, "job %llu of a full queue ended in state %d",
              static_cast<ull>(job.job_seq()), job.state());
    REQUIRE(fill.add({2000}) == CALD_OK, "all jobs have ended, and one more is refused");
    fill.wait_all();
    return;
  }
  skip("jobs end before %u more can be submitted", room);
}

CONFORMANCE_CHECK("JOB-20", "") {
  if (kit.info().depth != 1) skip("%u jobs run at once", kit.info().depth);
  QueueFill fill(kit);
  fill.add_all(std::min(room_of(kit), 6u));
  std::vector<Job>& jobs = fill.jobs();
  for (bool all = false; !all;) {
    if (kit.polled()) kit.turn();
    // From the last to the first: what has ended by now ended before what is asked after it.
    bool behind_ended = false;
    all = true;
    for (size_t i = jobs.size(); i-- > 0;) {
      const bool ended = jobs[i].ended();
      REQUIRE(ended || !behind_ended, "job %zu of %zu ended before one that was submitted earlier",
              i + 2, jobs.size());
      behind_ended = behind_ended || ended;
      all = all && ended;
    }
    if (!all && !kit.polled()) jobs.back().wait();
  }
  if (!kit.calls_back()) return;
  for (size_t i = 1; i < jobs.size(); ++i)
    REQUIRE(jobs[i - 1].told().order() < jobs[i].told().order(),
            "on_complete of job %zu came before that of job %zu", i + 1, i);
}

CONFORMANCE_CHECK("JOB-21", "") {
  QueueFill fill(kit);
  fill.add_all(room_of(kit));
  std::vector<const Told*> told;
  for (Job& job : fill.jobs()) {
    told.push_back(&job.told());
    if (job.ended())
      job.forget();
    else
      job.abandon();  // it ends with its session
  }
  kit.close_session();
  if (!kit.calls_back()) skip("session_close came back; what became of the jobs is not told");
  for (int look = 0; look < 2; ++look) {
    for (size_t i = 0; i < told.size(); ++i) {
      REQUIRE(told[i]->count() == 1,
              "the session is closed, and on_complete of job %zu came %zu "
              "times",
              i + 1, told[i]->count());
      const cald_completion end = told[i]->last();
      if (end.status < 0 || end.status > 29)
        broken_rule("ERR-01", "a completion has the status %d", end.status);
      REQUIRE(end.state >= CALD_JOB_DONE && (end.state == CALD_JOB_DONE) == (end.status == CALD_OK),
              "the session is closed, and job %zu was told as state %d, status %d", i + 1,
              end.state, end.status);
    }
    usleep(5000);
  }
  fill.jobs().clear();
  Player player(kit);  // a new session works
  player.fill(player.call(0));
  player.call(0).run();
}

cald_status cancel(Kit& kit, Job& job) {
  return kit.call("job_cancel",
                  [&](cald_error* err) { return kit.table().job_cancel(job.handle(), err); });
}

void needs_cancel(Kit& kit) {
  NEEDS_ENTRY(kit, job_cancel);
  Player player(kit);
  player.fill(player.call(0));
  Job job = player.call(0).submit();
  job.wait();
  if (cancel(kit, job) == CALD_UNSUPPORTED) skip("the device cancels nothing");
}

CONFORMANCE_CHECK("CANCEL-01", "") {
  needs_cancel(kit);
  Player player(kit);
  player.fill(player.call(0));
  Job job = player.call(0).submit();
  job.expect(CALD_JOB_DONE, "a job");
  for (int again = 0; again < 2; ++again) {
    const cald_status status = cancel(kit, job);
    REQUIRE(status == CALD_OK, "cancelling an ended job was answered %d: %s", status,
            kit.message().c_str());
    REQUIRE(job.state() == CALD_JOB_DONE, "an ended job was cancelled, and is in state %d",
            job.state());
  }
  if (kit.calls_back())
    REQUIRE(job.told().count() == 1, "an ended job was cancelled and told %zu times",
            job.told().count());
}

// A queue in which the last job and the first are cancelled; the others are to end DONE.
struct Cancelled {
  QueueFill fill;
  size_t first = 0, last = 0;
  bool last_had_not_begun = false;
  explicit Cancelled(Kit& kit, bool also_first) : fill(kit) {
    needs_cancel(kit);
    fill.add_all(std::min(room_of(kit), 5u));
    std::vector<Job>& jobs = fill.jobs();
    last = jobs.size() - 1;
    if (cald_status status = cancel(kit, jobs[last]); status != CALD_OK)
      broken("job_cancel answered %d: %s", status, kit.message().c_str());
    last_had_not_begun = last > 0 && kit.info().depth == 1 && !jobs[0].ended();
    if (also_first)
      if (cald_status status = cancel(kit, jobs[0]); status != CALD_OK)
        broken("job_cancel answered %d: %s", status, kit.message().c_str());
    fill.wait_all();
  }
};

CONFORMANCE_CHECK("CANCEL-02", "") {
  Cancelled all(kit, true);
  for (Job& job : all.fill.jobs()) {
    const int32_t state = job.state();
    REQUIRE(state == CALD_JOB_DONE || state == CALD_JOB_CANCELLED,
            "a job that was cancelled ended in state %d", state);
    if (!kit.calls_back()) continue;
    REQUIRE(job.told().count() == 1, "on_complete of a cancelled job came %zu times",
            job.told().count());
    const cald_completion end = job.told().last();
    REQUIRE(end.state == state, "a job in state %d was told as state %d", state, end.state);
    REQUIRE(end.status == (state == CALD_JOB_CANCELLED ? CALD_CANCELLED : CALD_OK),
            "a job in state %d was told with status %d", state, end.status);
  }
}

CONFORMANCE_CHECK("CANCEL-03", "") {
  Cancelled all(kit, false);
  if (!all.last_had_not_begun) skip("jobs end before the last can be cancelled");
  if (all.fill.jobs()[all.last].state() != CALD_JOB_CANCELLED) return;  // best effort
  const Bytes out = all.fill.call(all.last).buffer(CALD_ROLE_LOGITS).read();
  REQUIRE(std::all_of(out.begin(), out.end(), [](uint8_t byte) { return byte == 0x5A; }),
          "a job that was cancelled before it began has written its output");
}

CONFORMANCE_CHECK("CANCEL-04", "") {
  Cancelled all(kit, false);
  for (size_t i = 0; i < all.last; ++i)
    REQUIRE(all.fill.jobs()[i].state() == CALD_JOB_DONE,
            "the last of %zu jobs was cancelled, and job %zu ended in state %d", all.last + 1,
            i + 1, all.fill.jobs()[i].state());
}

// The evidence level of a capability as the driver states it; 4, "no", where it does not.
int32_t level_of(Kit& kit, const char* name) {
  cald_device* device = kit.device();
  uint32_t count = 0;
  kit.ok("device_caps",
         [&](cald_error* err) { return kit.table().device_caps(device, nullptr, &count, err); });
  cald_cap blank{};
  blank.struct_size = sizeof blank;
  std::vector<cald_cap> caps(count, blank);
  kit.ok("device_caps", [&](cald_error* err) {
    return kit.table().device_caps(device, caps.data(), &count, err);
  });
  for (const cald_cap& cap : caps)
    if (cap.name != nullptr && std::strcmp(cap.name, name) == 0 && cap.value != 0) return cap.level;
  return 4;
}

CONFORMANCE_CHECK("CANCEL-05", "") {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    Cancelled all(kit, false);
    if (!all.last_had_not_begun) continue;
    if (all.fill.jobs()[all.last].state() == CALD_JOB_CANCELLED) return;
    const int32_t level = level_of(kit, "cancel");
    REQUIRE(level != 0,
            "a queued job was cancelled and ran all the same: cancel is declared as "
            "proven, level 0");
    skip(
        "a queued job was cancelled and ran all the same; cancel is declared at level %d, so it "
        "may",
        level);
  }
  skip("jobs end before the last can be cancelled");
}

}  // namespace
}  // namespace calrt::conformance
