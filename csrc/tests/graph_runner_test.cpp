// SPDX-License-Identifier: Apache-2.0
// The end of a model with jobs in flight: what is cancelled, waited for, refused and given back.
#include "engine/graph_runner.h"

#include <thread>

#include "tests/check.h"
#include "tests/job_rig.h"

using namespace calrt;
using engine::GraphCall;
using engine::GraphRunner;
using engine::LaneJob;
using scripted::Ends;

namespace {

constexpr uint32_t kDecodeFour = 0, kDecodeOne = 1;  // graphs of the tests' package

struct Runner {
  Rig rig;
  std::shared_ptr<GraphRunner> runner = *GraphRunner::make(rig.model);
  kv::LaneRef lane = *runner->queue()->reserve(8, 0)->commit();

  Result<std::shared_ptr<LaneJob>> submit(uint64_t ms = 60'000) {
    static const int32_t zero = 0;
    GraphCall call;
    call.tokens = call.positions = {&zero, 1};
    call.lanes = {&lane, 1};
    call.deadline_ns = in(ms);
    return runner->submit(kDecodeOne, call);
  }
};

Status code_of(const Result<void>& result) {
  return result.ok() ? Status::OK : result.error().code;
}

}  // namespace

TEST(close_cancels_what_is_in_flight_and_waits_for_it) {
  Runner at;
  script().ends = Ends::HELD;
  auto job = *at.submit();
  CHECK(!job->job()->terminal());
  CHECK(at.runner->close(in(20'000)).ok());
  CHECK(script().called("job_cancel") == 1 && job->job()->state() == JobState::CANCELLED);
  CHECK(at.rig.model->closed() && at.runner->close(in(20'000)).ok());
  CHECK(script().called("job_cancel") == 1);
  const auto lane = *at.runner->queue()->table()->snapshot(at.lane);
  CHECK(lane.state != kv::LaneState::POISONED && lane.length == 0);  // as it was, not poisoned
  CHECK(at.submit().error().code == Status::MODEL_UNLOADED);
  // Whatever else is wrong with the call: what is closed says so first.
  CHECK(at.runner->submit(kDecodeOne, {}).error().code == Status::MODEL_UNLOADED);
}

TEST(close_waits_for_an_end_that_comes_late) {
  Runner at;
  script().ends = Ends::HELD;
  script().answers["job_cancel"] = CALD_UNSUPPORTED;
  auto job = *at.submit();
  std::thread device([&] {
    CHECK(eventually([] { return script().called("job_cancel") == 1; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(script().finish(job->job()->job_seq()));
  });
  CHECK(at.runner->close(in(20'000)).ok() && job->job()->state() == JobState::DONE);
  device.join();
}

TEST(close_says_which_job_did_not_end) {
  Runner at;
  script().ends = Ends::HELD;
  script().answers["job_cancel"] = CALD_UNSUPPORTED;
  auto job = *at.submit();
  const Result<void> closed = at.runner->close(in(30));
  CHECK(code_of(closed) == Status::WAIT_TIMEOUT && at.rig.model->closed());
  const std::string number = "job " + std::to_string(job->job()->job_seq()) + " did not end";
  CHECK(!closed.ok() && closed.error().message.find(number) != std::string::npos);
  CHECK(script().finish(job->job()->job_seq()));
}

TEST(close_ends_the_waits_for_a_lane) {
  Runner at;
  std::vector<kv::Reservation> lanes;
  for (int i = 0; i < 3; ++i) lanes.push_back(*at.runner->queue()->reserve(1, 0));
  CHECK(at.runner->queue()->reserve(1, 0).error().code == Status::KV_TIMEOUT);
  std::atomic<int> ended{0};
  std::thread waits([&] {
    CHECK(at.runner->queue()->reserve(1, in(60'000)).error().code == Status::MODEL_UNLOADED);
    ++ended;
  });
  CHECK(at.runner->close(in(1000)).ok() && eventually([&] { return ended == 1; }));
  waits.join();
  CHECK(at.runner->queue()->reserve(1, 0).error().code == Status::MODEL_UNLOADED);
}

TEST(close_gives_the_pools_buffers_back) {
  Runner at;
  const int before = script().living("buffer");
  CHECK((*at.submit())->job()->terminal());
  CHECK(script().living("buffer") > before);  // kept for the next run
  CHECK(at.runner->close(in(1000)).ok());
  CHECK(eventually([&] { return script().living("buffer") == before; }));
}

TEST(a_lane_that_is_refused_frees_those_booked_before_it) {
  Runner at;
  const kv::LaneRef other = *at.runner->queue()->reserve(8, 0)->commit();
  const kv::LaneRef lanes[] = {at.lane, other};
  const int32_t tokens[] = {1, 1}, positions[] = {0, 3};  // the other holds nothing yet
  GraphCall call;
  call.tokens = tokens;
  call.positions = positions;
  call.lanes = lanes;
  call.deadline_ns = in(60'000);
  const auto refused = at.runner->submit(kDecodeFour, call);
  CHECK(refused.error().code == Status::INVALID_ARGUMENT && script().called("submit") == 0);
  CHECK(at.submit().ok());
}

TEST(nothing_is_written_into_buffers_that_a_lost_job_may_read) {
  Runner at;
  script().ends = Ends::HELD;
  std::shared_ptr<BindingSet> set = *at.rig.model->make_bindings(kDecodeOne);
  set->ints(CALD_ROLE_TOKENS)[0] = 1;
  auto job = *at.runner->submit_filled(set, {&at.lane, 1}, std::nullopt, in(300));
  CHECK(!job->job()->wait(in(20'000)).ok() && job->job()->state() == JobState::LOST);
  set->ints(CALD_ROLE_POSITIONS)[0] = 41;
  const kv::LaneRef other = *at.runner->queue()->reserve(8, 0)->commit();
  const auto refused = at.runner->submit_filled(set, {&other, 1}, std::nullopt, in(30'000));
  CHECK(refused.error().code == Status::INVALID_STATE);
  CHECK(set->ints(CALD_ROLE_POSITIONS)[0] == 41);
  CHECK(script().finish(job->job()->job_seq()));
  CHECK(at.runner->submit_filled(set, {&other, 1}, std::nullopt, in(30'000)).ok());
}

TEST(a_lane_given_back_during_its_job_goes_to_who_waits_when_that_has_ended) {
  Runner at;
  const auto queue = at.runner->queue();
  std::vector<kv::Reservation> others;
  for (int i = 0; i < 3; ++i) others.push_back(*queue->reserve(1, 0));
  script().ends = Ends::HELD;
  auto job = *at.submit();
  const auto waiter = *queue->enqueue(1, UINT64_MAX);
  CHECK(queue->table()->release(at.lane).ok() && !waiter->poll());
  CHECK(script().finish(job->job()->job_seq()));
  CHECK(waiter->take().ok());  // nobody has polled
}

// It may still write there.
TEST(the_lane_of_a_lost_job_is_nobodys_until_the_driver_answers) {
  Runner at;
  const kv::LaneTable& table = *at.runner->queue()->table();
  script().ends = Ends::HELD;
  auto job = *at.submit(300);
  CHECK(!job->job()->wait(in(20'000)).ok() && job->job()->state() == JobState::LOST);
  CHECK(table.snapshot(at.lane)->job_seq == job->job()->job_seq());
  CHECK(at.runner->queue()->table()->release(at.lane).ok());
  CHECK(table.snapshot(at.lane.lane).state == kv::LaneState::DRAINING);
  CHECK(script().finish(job->job()->job_seq()));
  CHECK(table.poisoned(0, true) == std::vector<uint32_t>{at.lane.lane});
}

TEST(who_asks_to_be_told_after_the_end_is_told_at_once) {
  Runner at;
  script().ends = Ends::HELD;
  auto job = *at.submit();
  const auto fd = *engine::CompletionFd::make();
  job->notify(fd, 1);
  CHECK(fd->drain().empty() && script().finish(job->job()->job_seq()));
  CHECK(fd->drain() == std::vector<uint64_t>{1});
  job->notify(fd, 2);
  CHECK(fd->drain() == std::vector<uint64_t>{2});
}

TEST(a_job_in_flight_outlives_its_handle) {
  Runner at;
  script().ends = Ends::HELD;
  auto job = *at.submit();
  const uint64_t job_seq = job->job()->job_seq();
  const std::weak_ptr<LaneJob> seen = job;
  job.reset();
  at.runner->sweep();
  CHECK(!seen.expired() && script().called("job_cancel") == 0);
  CHECK(script().finish(job_seq));
  at.runner->sweep();
  CHECK(seen.expired());
}
