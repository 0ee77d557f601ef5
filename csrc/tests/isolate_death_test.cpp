// SPDX-License-Identifier: Apache-2.0
// A driver that hangs, crashes or ends in any of its entries: the caller has DEVICE_LOST in time,
// every job ends once, a new open works, and nothing is left behind.
#include <sys/wait.h>

#include <atomic>
#include <set>

#include "calrt/device.h"
#include "calrt/job.h"
#include "calrt/model.h"
#include "tests/entry_tour.h"
#include "tests/isolate_rig.h"

using namespace calrt;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
// Of a job that has ended, the parent answers these by itself.
const std::set<std::string> kNotAsked = {"job_wait", "job_query", "job_cancel"};

struct Outcome {
  int lost = 0;        // DEVICE_LOST answers
  int other = 0;       // other errors
  double worst_s = 0;  // of a call
};

// The tour with a driver that does `wish` at one entry.
Outcome tour(const std::string& wish) {
  const Environment deadly("CALRT_DEADLY", wish);
  const uint64_t begun = monotonic_ns();
  Outcome out;
  {
    const Tour tour("", "deadly", true);
    for (const Error& error : tour.errors) {
      ++(error.code == Status::DEVICE_LOST ? out.lost : out.other);
      if (error.code != Status::DEVICE_LOST)
        std::fprintf(stderr, "%s: %s\n", wish.c_str(), error_text(error).c_str());
    }
  }
  out.worst_s = static_cast<double>(monotonic_ns() - begun) / 1e9;
  return out;
}

}  // namespace

TEST(an_entry_that_never_returns) {
  const Environment patience("CALRT_ISOLATE_DEADLINE", "0.5");
  {
    const auto warm = tour("-");
    CHECK(warm.lost == 0 && warm.other == 0);
  }
  int entries = 0;
  double worst = 0;
  for (const auto& [entry, has_status] : kEntries) {
    const Outcome out = tour(std::string(entry) + " hang");
    worst = std::max(worst, out.worst_s);
    ++entries;
    // A hang of a closer is seen by whatever comes after it, or by nobody.
    if (has_status && !kNotAsked.contains(entry) && out.lost == 0)
      std::fprintf(stderr, "%s: nothing was lost\n", entry);
    if (has_status && !kNotAsked.contains(entry)) CHECK(out.lost > 0);
    CHECK(out.other == 0);
    CHECK(out.worst_s < 10);
  }
  std::printf("%d entries hang at 0.5 s: a whole tour takes %.2f s at most\n", entries, worst);
  CHECK(soon([] { return children().empty(); }));
}

TEST(an_entry_that_ends_the_process) {
  {
    const auto warm = tour("-");
    CHECK(warm.lost == 0);
  }
  for (const char* how : {"abort", "segv", "exit", "kill", "after_abort"}) {
    for (const auto& [entry, has_status] : kEntries) {
      const Outcome out = tour(std::string(entry) + " " + how);
      if (has_status && !kNotAsked.contains(entry)) CHECK(out.lost > 0);
      CHECK(out.other == 0);
      CHECK(out.worst_s < 10);
    }
  }
  CHECK(tour("-").lost == 0);  // a new one works
}
