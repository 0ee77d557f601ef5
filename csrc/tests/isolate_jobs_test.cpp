// SPDX-License-Identifier: Apache-2.0
// The jobs of one child: each end is told once, whatever order answers, ends and the loss come in.
#include <vector>

#include "layers/isolate/jobs.h"
#include "tests/check.h"

using namespace calrt::isolate;

namespace {

struct World {
  Jobs jobs;
  std::vector<cald_completion> told;

  Job* add(uint64_t job_seq, bool timed = true) {
    const auto hear = [](void* user, const cald_completion* end) {
      static_cast<World*>(user)->told.push_back(*end);
    };
    return jobs.add(nullptr, job_seq, hear, this, timed);
  }
  bool end(uint64_t token, uint64_t job_seq) {
    cald_completion done{};
    done.struct_size = sizeof done;
    done.state = CALD_JOB_DONE;
    done.job_seq = job_seq;
    return jobs.end(token, done);
  }
  bool was_lost(size_t i, uint64_t job_seq) const {
    return i < told.size() && told[i].state == CALD_JOB_FAILED &&
           told[i].status == CALD_DEVICE_LOST && told[i].job_seq == job_seq;
  }
  bool counts(uint64_t accepted, uint64_t ended, uint64_t running, uint64_t timed) {
    const Jobs::Count now = jobs.count();
    return now.accepted == accepted && now.ended == ended && now.running == running &&
           now.timed == timed;
  }
};

}  // namespace

TEST(an_end_is_told_once_and_only_of_a_job_that_there_is) {
  World w;
  Job* const job = w.add(7);
  const uint64_t token = job->token;
  w.jobs.accept(job);
  CHECK(w.counts(1, 0, 1, 1) && w.jobs.ending(job).state == 0 && !w.jobs.wait(job, 0));
  CHECK(!w.end(token + 1, 7) && w.end(token, 7) && !w.end(token, 7));
  CHECK(w.told.size() == 1 && w.told[0].state == CALD_JOB_DONE && w.told[0].job_seq == 7);
  CHECK(w.counts(1, 1, 0, 0) && w.jobs.ending(job).state == CALD_JOB_DONE && w.jobs.wait(job, 0));
  w.jobs.lose_all();
  CHECK(w.told.size() == 1);
  w.jobs.forget(job);
  CHECK(!w.end(token, 7) && w.told.size() == 1);
}

TEST(an_end_may_come_before_the_answer_of_submit) {
  World w;
  Job* const job = w.add(1);
  CHECK(w.end(job->token, 1) && w.told.size() == 1);
  w.jobs.accept(job);
  CHECK(w.counts(1, 1, 0, 0));  // it does not run any more
}

TEST(what_has_not_ended_fails_with_the_child_once_submit_has_answered) {
  World w;
  Job* const second = w.add(2);
  Job* const first = w.add(1, false);
  Job* const asked = w.add(3);
  w.jobs.accept(first);
  w.jobs.accept(second);
  CHECK(w.counts(2, 0, 2, 1));
  w.jobs.lose_all();
  CHECK(w.told.size() == 2 && w.was_lost(0, 2) && w.was_lost(1, 1));  // as they were added
  CHECK(w.counts(2, 2, 0, 0));
  w.jobs.accept(asked);  // its answer had come before the loss
  CHECK(w.told.size() == 3 && w.was_lost(2, 3) && w.counts(3, 3, 0, 0));
  w.jobs.lose_all();
  CHECK(w.told.size() == 3);
}

TEST(a_job_that_is_refused_is_gone_unless_its_end_was_told) {
  World w;
  Job* const refused = w.add(1);
  const uint64_t token = refused->token;
  CHECK(!w.jobs.refuse(refused, false) && !w.end(token, 1));
  // The child died in submit: without an end the caller is told by the answer, with one it stays.
  CHECK(!w.jobs.refuse(w.add(2), true) && w.told.empty());
  Job* const told = w.add(3);
  CHECK(w.end(told->token, 3) && w.jobs.refuse(told, true));
  CHECK(w.told.size() == 1 && w.jobs.ending(told).state == CALD_JOB_DONE);
  CHECK(w.counts(1, 1, 0, 0));
}

TEST(a_job_that_is_forgotten_while_it_runs_does_not_run_any_more) {
  World w;
  Job* const job = w.add(1);
  w.jobs.accept(job);
  w.jobs.forget(job);
  CHECK(w.counts(1, 0, 0, 0));
  w.jobs.lose_all();
  CHECK(w.told.empty());
}
