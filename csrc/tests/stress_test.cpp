// SPDX-License-Identifier: Apache-2.0
// Many threads on one device, one model, one session, doing everything at once; meant to run under
// the thread and address sanitizers. CALRT_STRESS_OPERATIONS sets how much in all (default 8e5).
#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <thread>

#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using scripted::Ends;

namespace {

constexpr int kThreads = 4;
constexpr uint64_t kLong = 600'000;  // ms; nothing is lost unless a test wants it

// Of each of the two tests.
int operations() {
  const char* asked = std::getenv("CALRT_STRESS_OPERATIONS");
  return (asked != nullptr ? std::max(std::atoi(asked), 2000) : 800'000) / 2;
}

// Counts the ends of each job it is told of; a second end of one job is seen.
struct Census : CompletionSink {
  std::atomic<uint64_t> ends{0}, doubled{0}, odd{0};
  std::array<std::atomic<uint64_t>, 1 << 12> last{};  // by tag: rises, so an old tag is a double
  void completed(uint64_t job_seq, JobState state, int32_t status) noexcept override {
    ++ends;
    if (state < JobState::DONE || (state == JobState::DONE) != (status == 0)) ++odd;
    uint64_t seen = last[job_seq % last.size()].exchange(job_seq);
    if (seen == job_seq) ++doubled;
  }
};

struct Shared {
  std::shared_ptr<Device> device;
  std::shared_ptr<Model> model;
  std::shared_ptr<Session> session;
  Census census;
  std::atomic<uint64_t> submitted{0}, refused{0}, done{0}, wrong{0};
};

// One thread's share. A job that was dropped while it ran keeps its set: another one is made then.
void work(Shared& all, int seed, int n) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::vector<std::shared_ptr<Job>> mine;
  std::vector<std::shared_ptr<BindingSet>> sets;
  for (int i = 0; i < 4; ++i) sets.push_back(*all.model->make_bindings(0));
  for (int i = 0; i < n;) {
    const uint32_t dice = random() % 16;
    Job* job = mine.empty() ? nullptr : mine[random() % mine.size()].get();
    if (dice < 5 || job == nullptr) {
      auto& set = sets[random() % sets.size()];
      if (set->busy()) {  // its job was dropped, or has not ended yet
        std::this_thread::yield();
        continue;
      }
      auto made = Job::submit(all.session, all.model, set, in(kLong), &all.census);
      if (made.ok()) {
        ++all.submitted;
        mine.push_back(*std::move(made));
      } else {
        ++all.refused;
        const Status code = made.error().code;
        if (code != Status::QUEUE_FULL && code != Status::INVALID_STATE &&
            code != Status::MODEL_UNLOADED)
          ++all.wrong;
      }
    } else if (dice < 7) {
      const auto waited = job->wait(dice == 5 ? 0 : in(kLong));
      const bool early = !waited.ok() && waited.error().code == Status::WAIT_TIMEOUT;
      if (dice == 6 && (early || !job->terminal())) ++all.wrong;
    } else if (dice < 8) {
      if (!job->cancel().ok()) ++all.wrong;
    } else if (dice < 10) {
      if (job->terminal() != (job->state() >= JobState::DONE) && !job->terminal()) ++all.wrong;
    } else if (dice < 11) {
      const auto timing = job->timing();
      const Status code = timing.ok() ? Status::OK : timing.error().code;
      // WAIT_TIMEOUT: the script has told the end and is not through with the job yet.
      if (code != Status::OK && code != Status::INVALID_STATE && code != Status::WAIT_TIMEOUT)
        ++all.wrong;
    } else if (dice < 12) {
      const auto session = all.device->session();
      if (!session.ok() && session.error().code != Status::INVALID_STATE) ++all.wrong;
    } else if (mine.size() > 2 || dice == 15) {
      mine.erase(mine.begin() + static_cast<long>(random() % mine.size()));
    }
    ++i;
    ++all.done;
  }
}

// Model and device are closed while the last of the work is done: running jobs end all the same.
void storm(Shared& all, int n) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(work, std::ref(all), t + 1, n / kThreads);
  std::thread closer([&] {
    const auto most = static_cast<uint64_t>(n - n / 50);
    while (all.done < most) std::this_thread::yield();
    all.model->close();
    all.device->close();
  });
  for (auto& thread : threads) thread.join();
  closer.join();
  CHECK(eventually([&] { return all.census.ends == all.submitted; }));
  CHECK(all.census.doubled == 0 && all.census.odd == 0 && all.wrong == 0);
  CHECK(all.submitted > static_cast<uint64_t>(n) / 50);
  std::printf("%llu operations, %llu jobs, %llu submits refused\n", (unsigned long long)all.done,
              (unsigned long long)all.submitted, (unsigned long long)all.refused);
}

}  // namespace

TEST(null) {
  Shared all;
  all.device = *Device::open("null", {});
  all.model = *Model::load(all.device, PackageForTest::make("null", "null"), {});
  all.session = *all.device->session();
  storm(all, operations());
}

// Jobs end on threads of the driver's, in any order.
TEST(scripted) {
  Rig rig([](scripted::Script& now) {
    now.ends = Ends::HELD;
    now.queue_limit = 64;
  });
  const uint64_t strays = stray_completions();
  Shared all;
  all.device = rig.device;
  all.model = rig.model;
  all.session = rig.session;
  std::atomic<bool> over{false};
  std::vector<std::thread> enders;
  for (int t = 0; t < 2; ++t)
    enders.emplace_back([&, t] {
      while (!over) {
        uint64_t tag = 0;
        script().set([&](scripted::Script& now) {
          if (!now.held.empty()) tag = t == 0 ? now.held.front() : now.held.back();
        });
        if (tag == 0 || !script().finish(tag)) std::this_thread::yield();
      }
    });
  storm(all, operations());
  over = true;
  for (auto& thread : enders) thread.join();
  CHECK(stray_completions() == strays);
}
