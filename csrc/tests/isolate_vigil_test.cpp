// SPDX-License-Identifier: Apache-2.0
// When a process with jobs counts as hung, in times of the test's own.
#include <utility>

#include "layers/isolate/vigil.h"
#include "tests/check.h"

using namespace calrt::isolate;

namespace {

constexpr uint64_t kMs = 1'000'000;

// Looks every interval; how long until it is not WELL, in ms, or -1 after a minute.
struct Watch {
  Patience patience;
  Vigil vigil;
  Sighting seen{};
  Vigil::Verdict verdict = Vigil::Verdict::WELL;

  explicit Watch(uint64_t entry_ms, uint64_t job_ms = 0) : patience{entry_ms * kMs, job_ms * kMs} {
    seen.now_ns = 77'000 * kMs;
    seen.running = seen.timed = 1;
    seen.answered = true;
  }
  Vigil::Verdict look() {
    seen.now_ns += Vigil::interval_ns(patience);
    return verdict = vigil.look(seen, patience);
  }
  template <class Change>
  int64_t until_bad(Change&& change) {
    const uint64_t begun = seen.now_ns;
    while (seen.now_ns - begun < 60'000 * kMs) {
      change(seen);
      if (look() != Vigil::Verdict::WELL) return static_cast<int64_t>((seen.now_ns - begun) / kMs);
    }
    return -1;
  }
};

const auto nothing = [](Sighting&) {};

bool refuses(Patience& patience, const char* key, const char* value) {
  const auto taken = patience.take(key, value);
  return !taken.ok() && taken.error().code == calrt::Status::INVALID_ARGUMENT;
}

}  // namespace

TEST(jobs_that_do_not_end_are_stuck_after_their_patience) {
  for (const uint64_t job_ms : {80u, 1000u, 5000u}) {
    Watch watch(10'000, job_ms);
    const int64_t took = watch.until_bad(nothing);
    CHECK(watch.verdict == Vigil::Verdict::STUCK);
    CHECK(took >= static_cast<int64_t>(job_ms) && took <= static_cast<int64_t>(job_ms * 5 / 4));
  }
}

TEST(the_patience_of_an_entry_is_that_of_a_job_where_none_is_said) {
  Watch watch(2'000);
  const int64_t took = watch.until_bad(nothing);
  CHECK(watch.verdict == Vigil::Verdict::STUCK && took >= 2'000 && took <= 2'500);
}

TEST(a_process_that_does_not_answer_is_silent_although_jobs_may_take_long) {
  Watch watch(1'000, 3'600'000);
  const int64_t took = watch.until_bad([](Sighting& seen) { seen.answered = false; });
  CHECK(watch.verdict == Vigil::Verdict::SILENT && took >= 1'000 && took <= 1'300);
}

TEST(what_gets_on_is_well) {
  Watch ends(1'000);
  CHECK(ends.until_bad([](Sighting& seen) { ++seen.steps; }) == -1);
  // An answer now and then will do, and so will an end.
  Watch slow(1'000);
  int looks = 0;
  CHECK(slow.until_bad([&](Sighting& seen) {
    seen.answered = ++looks % 7 == 0;
    seen.steps += looks % 7 == 3;
  }) == -1);
}

TEST(without_jobs_nothing_is_judged) {
  Watch idle(100);
  CHECK(idle.until_bad([](Sighting& seen) {
    seen.running = seen.timed = 0;
    seen.answered = false;
  }) == -1);
  // Jobs on a clock that stands still need not end; but the process is to live.
  Watch polled(100);
  CHECK(polled.until_bad([](Sighting& seen) { seen.timed = 0; }) == -1);
  CHECK(polled.until_bad([](Sighting& seen) { seen.answered = false; }) >= 100);
  CHECK(polled.verdict == Vigil::Verdict::SILENT);
}

TEST(the_time_of_a_job_begins_when_it_runs) {
  Watch watch(1'000);
  watch.seen.running = watch.seen.timed = 0;
  CHECK(watch.until_bad(nothing) == -1);
  watch.seen.running = watch.seen.timed = 1;
  CHECK(watch.until_bad(nothing) >= 1'000);
}

TEST(time_in_which_this_process_stood_still_is_not_the_other_ones) {
  Watch watch(1'000);
  (void)watch.look();
  watch.seen.now_ns += 3'600'000 * kMs;  // stopped, both
  CHECK(watch.look() == Vigil::Verdict::WELL);
  CHECK(watch.until_bad(nothing) >= 500);
}

TEST(patience_is_in_seconds_within_bounds) {
  Patience patience;
  for (const auto& [text, ms] : {std::pair{"0.01", 10u}, {"2.5", 2'500u}, {"86400", 86'400'000u}}) {
    CHECK(patience.take("isolate_deadline", text).value() && patience.entry_ns == ms * kMs);
    CHECK(patience.take("isolate_job_deadline", text).value() && patience.job_ns == ms * kMs);
  }
  const Patience before = patience;
  for (const char* text : {"", "0", "0.009", "-1", "86401", "inf", "nan", "1s", "1 ", "one"})
    for (const char* key : {"isolate_deadline", "isolate_job_deadline"})
      CHECK(refuses(patience, key, text));
  CHECK(!patience.take("deadline", "1").value() && !patience.take(nullptr, "1").value());
  CHECK(patience.entry_ns == before.entry_ns && patience.job_ns == before.job_ns);
  CHECK(refuses(patience, "isolate_deadline", nullptr));
}

TEST(the_innermost_scope_says_what_is_usual) {
  const uint64_t usual = Patience::usual()->entry_ns;
  {
    const PatienceScope outer({1 * kMs, 0});
    {
      const PatienceScope inner({2 * kMs, 3 * kMs});
      CHECK(Patience::usual()->entry_ns == 2 * kMs && Patience::usual()->job_ns == 3 * kMs);
    }
    CHECK(Patience::usual()->entry_ns == 1 * kMs);
  }
  CHECK(Patience::usual()->entry_ns == usual);
}
