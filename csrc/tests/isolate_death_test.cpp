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
  const auto warm = tour("-");
  CHECK(warm.lost == 0 && warm.other == 0);
  const Environment patience("CALRT_ISOLATE_DEADLINE", "0.1");
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
  std::printf("%d entries hang at 0.1 s: a whole tour takes %.2f s at most\n", entries, worst);
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

namespace {

// Jobs that null has taken and that do not end, in a child whose layers hold their ends.
struct Held {
  Environment layers;
  TableClient client;
  std::vector<JobHandle> jobs;
  explicit Held(const std::string& more = "", int count = 5)
      : layers("CALRT_ISOLATE_LAYERS", "fault:completion hold" + more), client("null", "", true) {
    for (int seq = 1; seq <= count; ++seq)
      jobs.push_back(client.submit(static_cast<uint64_t>(seq)));
  }
  // They end, as must be before they are destroyed.
  void cancel() {
    for (const JobHandle& job : jobs) {
      CHECK(client.cancel(job) == CALD_OK);
      CHECK(client.wait(job, 20'000) == CALD_OK);
    }
    jobs.clear();
  }
  // Each was told once, as lost.
  bool all_lost() {
    std::set<uint64_t> seqs;
    for (const auto& told : client.told()) {
      if (told.completion.status != CALD_DEVICE_LOST) return false;
      if (told.completion.state != CALD_JOB_FAILED) return false;
      seqs.insert(told.completion.job_seq);
    }
    return client.told().size() == jobs.size() && seqs.size() == jobs.size();
  }
};

}  // namespace

TEST(jobs_of_a_dead_child_end_once) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGABRT, SIGTERM}) {
    Held held;
    CHECK(held.client.told().empty() && held.client.wait(held.jobs[0], 5) == CALD_WAIT_TIMEOUT);
    const auto running = children();
    CHECK(running.size() == 1);
    kill(running[0], signal);
    const uint64_t begun = monotonic_ns();
    for (const JobHandle& job : held.jobs) {
      CHECK(held.client.wait(job, 20'000) == CALD_OK);
      cald_error why{};
      why.struct_size = sizeof why;
      CHECK(held.client.query(job, &why) == CALD_JOB_FAILED && why.code == CALD_DEVICE_LOST);
      CHECK(std::string(why.message).find("signal") != std::string::npos);
    }
    std::printf("5 jobs know of signal %d after %.1f ms\n", signal,
                static_cast<double>(monotonic_ns() - begun) / 1e6);
    CHECK(held.all_lost());
    CHECK(!held.client.try_submit(9).ok() && held.client.told().size() == 5);
  }
}

TEST(an_entry_that_never_returns_for_a_running_job) {
  const Environment patience("CALRT_ISOLATE_DEADLINE", "0.3");
  const std::pair<const char*, std::function<cald_status(Held&, cald_error*)>> entries[] = {
      {"job_query",
       [](Held& h, cald_error* e) {
         int32_t state = 0;
         return h.client.table().job_query(h.jobs[0].get().pointer, &state, e);
       }},
      {"job_cancel",
       [](Held& h, cald_error* e) {
         return h.client.table().job_cancel(h.jobs[0].get().pointer, e);
       }},
      {"job_timing", [](Held& h, cald_error* e) {
         cald_timing timing{};
         timing.struct_size = sizeof timing;
         return h.client.table().job_timing(h.jobs[0].get().pointer, &timing, e);
       }}};
  for (const auto& [entry, call] : entries) {
    Held held(std::string(" / ") + entry + " delay_ms=60000");
    cald_error error{};
    error.struct_size = sizeof error;
    const uint64_t begun = monotonic_ns();
    const cald_status status = call(held, &error);
    const double took_s = static_cast<double>(monotonic_ns() - begun) / 1e9;
    // Of a job that is lost job_query knows the end.
    CHECK(status == CALD_DEVICE_LOST || (status == CALD_OK && error.code == CALD_DEVICE_LOST));
    CHECK(took_s >= 0.3 && took_s < 5);
    CHECK(std::string(error.message).find(entry) != std::string::npos);
    CHECK(soon([&] { return held.all_lost(); }));
  }
}

// Nobody calls, and nobody but the watching thread can notice.
TEST(a_process_that_stands_still_with_jobs_is_lost) {
  for (const char* job_patience : {"", "600"}) {
    const Environment patience("CALRT_ISOLATE_DEADLINE", "0.3"),
        jobs("CALRT_ISOLATE_JOB_DEADLINE", job_patience);
    Held held;
    const uint64_t begun = monotonic_ns();
    kill(children().front(), SIGSTOP);
    for (const JobHandle& job : held.jobs) CHECK(held.client.wait(job, 20'000) == CALD_OK);
    const double took_s = static_cast<double>(monotonic_ns() - begun) / 1e9;
    CHECK(took_s >= 0.2 && took_s < 1.3);
    CHECK(held.all_lost());
    cald_error why{};
    why.struct_size = sizeof why;
    CHECK(held.client.query(held.jobs[0], &why) == CALD_JOB_FAILED);
    const std::string text = why.message;
    CHECK(text.find(*job_patience == 0 ? "was killed" : "no sign of life") != std::string::npos);
    std::printf("%s: %.2f s\n", why.message, took_s);
    CHECK(soon([] { return children().empty(); }));
  }
}

TEST(jobs_that_the_driver_never_ends_are_lost) {
  const Environment jobs("CALRT_ISOLATE_JOB_DEADLINE", "0.3");
  Held held;
  const uint64_t begun = monotonic_ns();
  for (const JobHandle& job : held.jobs) CHECK(held.client.wait(job, 20'000) == CALD_OK);
  const double took_s = static_cast<double>(monotonic_ns() - begun) / 1e9;
  CHECK(took_s >= 0.2 && took_s < 1.3);
  CHECK(held.all_lost());
  cald_error why{};
  why.struct_size = sizeof why;
  CHECK(held.client.query(held.jobs[0], &why) == CALD_JOB_FAILED);
  CHECK(std::string(why.message).find("ended none of its 5 job(s) for 0.3") != std::string::npos);
  std::printf("%s: %.2f s\n", why.message, took_s);
}

TEST(jobs_that_end_in_time_are_left_alone) {
  const Environment jobs("CALRT_ISOLATE_JOB_DEADLINE", "0.4");
  const Environment layers("CALRT_ISOLATE_LAYERS", "fault:completion delay_ms=150");
  TableClient client("null", "", true);
  for (int round = 0; round < 2; ++round) {  // between them it rests
    std::vector<JobHandle> held;
    for (uint64_t seq = 1; seq <= 6; ++seq) {
      held.push_back(client.submit(seq));
      CHECK(client.wait(held.back(), 20'000) == CALD_OK);
      CHECK(client.query(held.back()) == CALD_JOB_DONE);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(round == 0 ? 600 : 0));
  }
}

TEST(fifty_deaths_leave_nothing_behind) {
  {
    Held warm;
    warm.cancel();
  }
  CHECK(soon([] { return children().empty(); }));
  const Belongings before = Belongings::now();
  for (int round = 0; round < 50; ++round) {
    Held held("", 3);
    if (round % 2 == 0) {
      kill(children().front(), SIGKILL);
      for (const JobHandle& job : held.jobs) CHECK(held.client.wait(job, 20'000) == CALD_OK);
      CHECK(held.all_lost());
    } else {
      held.cancel();
    }
    held.jobs.clear();
    held.client.close();
  }
  CHECK(soon([&] { return Belongings::now() == before; }));
  const Belongings after = Belongings::now();
  std::printf("descriptors %zu, threads %zu, processes %zu, maps %zu; before %zu, %zu, %zu, %zu\n",
              after.fds, after.threads, after.processes, after.maps, before.fds, before.threads,
              before.processes, before.maps);
  CHECK(waitpid(-1, nullptr, WNOHANG) < 0);  // no zombie either
}

TEST(a_child_that_writes_nonsense_is_lost_and_hurts_nobody) {
  const Environment patience("CALRT_ISOLATE_DEADLINE", "0.5");
  int lost = 0;
  for (int seed = 1; seed <= 12; ++seed) {
    const Environment deadly("CALRT_DEADLY", "device_open scribble" + std::to_string(seed));
    const Tour tour("", "deadly", true);
    for (const Error& error : tour.errors) lost += error.code == Status::DEVICE_LOST;
  }
  CHECK(lost > 0);
  CHECK(tour("-").lost == 0);
}

// What the next test starts as another process, to kill it.
TEST(victim) {
  if (std::getenv("CALRT_ISOLATE_VICTIM") == nullptr) return;
  const auto device = Device::open("isolate:null", {}, {"", {}, {}});
  std::printf("%d\n", device.ok() ? children().front() : -1);
  std::fflush(stdout);
  for (;;) pause();
}

TEST(the_child_of_a_killed_parent_is_gone) {
  char self[4096] = "";
  CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const Environment victim("CALRT_ISOLATE_VICTIM", "1");
  FILE* parent = popen((std::string("echo $$; exec ") + self + " victim").c_str(), "r");
  int pid = 0, child = 0;
  CHECK(std::fscanf(parent, "%d %d", &pid, &child) == 2 && pid > 1 && child > 1);
  CHECK(kill(child, 0) == 0);
  kill(pid, SIGKILL);
  const uint64_t begun = monotonic_ns();
  // It is nobody's any more, so somebody else reaps it: gone is also a zombie.
  const auto gone = [child] {
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string text;
    std::getline(stat, text);
    return text.empty() || text.find(") Z") != std::string::npos;
  };
  CHECK(soon(gone));
  std::printf("gone %.1f ms after its parent\n", static_cast<double>(monotonic_ns() - begun) / 1e6);
  pclose(parent);
}
