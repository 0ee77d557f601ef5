// SPDX-License-Identifier: Apache-2.0
// calrt076's jobs on an SDK with vices: each ends once, no caller waits for the SDK.
#include "tests/calrt076_client.h"

namespace calrt::testing {
namespace {

std::vector<std::vector<uint16_t>> logits_of(World& world, uint32_t n) {
  Step step(world);
  std::vector<std::vector<uint16_t>> all;
  for (uint32_t i = 0; i < n; ++i)
    all.push_back(step.run(static_cast<int32_t>(i * 7 % kVocab), static_cast<int32_t>(i), 1));
  return all;
}

// What the device gives without a vice.
const std::vector<std::vector<uint16_t>>& right() {
  static const std::vector<std::vector<uint16_t>> all = [] {
    Directory directory;
    World world;
    world.open(directory);
    return logits_of(world, 6);
  }();
  return all;
}

TEST(results_depend_on_the_tokens) {
  CHECK(right().size() == 6 && right()[0].size() == kVocab);
  for (size_t i = 1; i < right().size(); ++i) CHECK(right()[i] != right()[i - 1]);
}

struct Vice {
  const char* name;
  const char* counter;  // that has to rise, so that the vice is known to have struck; may be null
};

TEST(vices_that_are_survived_change_no_answer) {
  for (const Vice& vice : {Vice{"completion_twice", "stray_ends"},
                           {"completion_twice@2", "stray_ends"},
                           {"call_answers@3:wait=29", "wait_errors"},
                           {"outputbuf_reused_early@4", "reruns"},
                           {"late_completion@2:50", nullptr},
                           {"d0_padding", nullptr},
                           {"numbers_permuted", nullptr},
                           {"kv_silent_noops", nullptr},
                           {"abort_on_misuse", nullptr}}) {
    Directory directory;
    World world(vice.name);
    world.open(directory);
    CHECK(logits_of(world, 6) == right());
    CHECK(world.counter("jobs") == 6);
    if (vice.counter != nullptr) CHECK(world.counter(vice.counter) > 0);
  }
}

TEST(each_job_is_told_once_with_its_own_number) {
  Directory directory;
  World world("completion_twice,completion_after_cancel");
  world.open(directory);
  std::vector<std::unique_ptr<Step>> steps;
  for (int i = 0; i < 9; ++i) {
    steps.push_back(std::make_unique<Step>(world));
    CHECK(steps.back()->submit(i, i, 0, 1000 + static_cast<uint64_t>(i)) == CALD_OK);
    if (i % 3 == 2) CHECK(table().job_cancel(steps.back()->job, nullptr) == CALD_OK);
  }
  for (const auto& step : steps) CHECK(step->wait() == CALD_OK);
  usleep(20'000);
  for (size_t i = 0; i < steps.size(); ++i) {
    CHECK(steps[i]->told == 1);
    CHECK(steps[i]->end.job_seq == 1000 + i);
    CHECK(steps[i]->end.state == steps[i]->state());
  }
}

TEST(a_failed_run_keeps_the_sdks_number_and_promises_no_cell) {
  const struct {
    const char* vice;
    cald_status status;
    int64_t native;
  } ends[] = {{"run_fails@1:25", CALD_CCU_FAULT, 25},
              {"run_fails@1:27", CALD_DEVICE_LOST, 27},
              {"run_fails@1:20", CALD_EXECUTION_FAILED, 20},
              {"run_fails@1:16", CALD_EXECUTION_FAILED, 16},
              {"call_answers@1:infer=18", CALD_SUBMIT_FAILED, 18},
              {"call_answers@1:kv_apply=22", CALD_KV_NO_CAPACITY, 22}};
  for (const auto& wanted : ends) {
    Directory directory;
    World world(wanted.vice);
    world.open(directory);
    Step step(world);
    CHECK(step.run(1, 0, 0).empty());
    CHECK(step.told == 1 && step.end.state == CALD_JOB_FAILED);
    CHECK(step.end.status == wanted.status);
    CHECK(step.end.native_code == wanted.native);
    Failure why;
    int32_t state = 0;
    CHECK(table().job_query(step.job, &state, &why.raw) == CALD_OK);
    CHECK(why.raw.code == wanted.status && why.raw.native_code == wanted.native);
    CHECK(!step.run(1, 0, 0).empty());  // the next one is right
  }
}

void hangs_in(const char* vice) {
  Directory directory;
  World world(vice, true);
  world.open(directory);
  auto* ok = new Step(world);
  CHECK(!ok->run(3, 0, 0).empty());
  auto *hung = new Step(world), *late = new Step(world), *other = new Step(world);
  CHECK(hung->submit(4, 1, 0) == CALD_OK);
  CHECK(hung->wait(50'000'000) == CALD_WAIT_TIMEOUT);
  CHECK(hung->state() == CALD_JOB_RUNNING);
  CHECK(other->submit(5, 0, 1) == CALD_OK);
  CHECK(late->submit(5, 0, 2, 7, host_now_ns() + 20'000'000) == CALD_OK);
  // Its deadline is kept although the SDK does not come back, and a cancel as well.
  CHECK(late->wait() == CALD_OK);
  CHECK(late->told == 1 && late->end.status == CALD_EXECUTION_FAILED);
  CHECK(table().job_cancel(other->job, nullptr) == CALD_OK);
  CHECK(other->wait() == CALD_OK);
  CHECK(other->told == 1 && other->end.state == CALD_JOB_CANCELLED);
  CHECK(hung->told == 0);
}

TEST(nobody_waits_for_a_wait_that_never_returns) {
  CHECK(in_child([] { hangs_in("wait_never_returns@2"); }));
}
TEST(nobody_waits_for_a_run_that_never_ends) {
  CHECK(in_child([] { hangs_in("run_never_ends@2"); }));
}

}  // namespace
}  // namespace calrt::testing
