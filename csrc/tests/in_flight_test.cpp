// SPDX-License-Identifier: Apache-2.0
// Two jobs in flight: what may run beside what, and what becomes of the one when the other fails.
#include "tests/chain_world.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

TEST(with_two_in_flight_the_device_has_a_job_while_the_host_works) {
  World world(graphs({1}, {8}), 3, 64, {}, 2);
  std::mt19937 random(16);
  std::vector<Start> starts;
  for (uint64_t id = 1; id <= 3; ++id) {
    starts.push_back(request(id, prompt(random, 8), 3));
    CHECK(world.start(starts.back()));
  }
  world.run();
  // Lanes in turn, each job behind another one; between two chunks a tick, if there is one.
  CHECK(words(world.device.log) == "p8:8 +p8:8 +d1:1 +p8:8 +d1:1 +d1:1 +d1:1 +d1:1 +d1:1");
  for (const auto& start : starts) check_exact(world, start, 64);
}

TEST(beside_a_tick_only_one_that_fills_the_largest_profile_is_begun) {
  for (const uint32_t lanes : {5u, 8u}) {
    World world(graphs({1, 4}, {}), lanes, 64, {}, 2);
    std::mt19937 random(17);
    std::vector<Start> starts;
    for (uint64_t id = 1; id <= lanes; ++id) {
      starts.push_back(request(id, prompt(random, 1), 4));
      CHECK(world.start(starts.back()));
    }
    world.run();
    for (const auto& start : starts) check_exact(world, start, 64);
    CHECK(words(world.device.log) == (lanes == 8 ? "d4:4 +d4:4 +d4:4 +d4:4 +d4:4 +d4:4 +d4:4 +d4:4"
                                                 : "d4:4 d4:4 d4:4 d4:4 d4:2 d4:2"));
  }
}

TEST(a_tick_that_writes_lanes_nobody_asked_for_is_alone) {
  World world(graphs({4}, {8}, CALD_LANE_MAP_IDENTITY), 4, 64, {}, 2);
  std::mt19937 random(18);
  // The prefill graph serves lane 0 alone; lane 1 is fed through ticks.
  const Start first = request(1, prompt(random, 16), 3), second = request(2, prompt(random, 2), 3);
  CHECK(world.start(first));
  CHECK(world.start(second));
  world.run();
  check_exact(world, first, 64);
  check_exact(world, second, 64);
  CHECK(world.device.most == 1);
}

TEST(of_two_jobs_in_flight_one_may_fail_and_lanes_are_tried_when_both_have_ended) {
  World world(graphs({1}, {8}), 3, 64, {}, 2);
  std::mt19937 random(19);
  std::vector<Start> starts;
  for (uint64_t id = 1; id <= 3; ++id) {
    starts.push_back(request(id, prompt(random, 8), 9));
    CHECK(world.start(starts.back()));
  }
  world.device.fail_job = [&](const JobPlan& plan) {
    const bool second = plan.rows[0].record->start.request == 2;
    return second && !plan.graph.prefill ? Status::EXECUTION_FAILED : Status::OK;
  };
  world.run();
  CHECK(world.outcomes[2].finish == Finish::FAILED && world.outcomes[2].tokens.size() == 1);
  check_exact(world, starts[0], 64);
  check_exact(world, starts[2], 64);
  CHECK(world.table->free_lanes() == 3);  // World's recovery checks that it has the device alone

  world.device.fail_job = [&](const JobPlan&) {
    return world.device.log.back()[0] == '+' ? Status::DEVICE_LOST : Status::OK;
  };
  for (uint64_t id = 4; id <= 6; ++id) CHECK(world.start(request(id, prompt(random, 8), 9)));
  world.run();
  for (uint64_t id = 4; id <= 6; ++id) {
    CHECK(world.outcomes[id].ended == 1 && world.outcomes[id].finish == Finish::FAILED);
    CHECK(world.outcomes[id].status == int32_t(Status::DEVICE_LOST));
  }
}

TEST(a_full_queue_is_waited_for_beside_a_job_and_all_in_flight_is_cancelled) {
  World world(graphs({1}, {8}), 2, 64, {}, 2);
  std::mt19937 random(20);
  bool beside = false;
  world.device.refuse = [&] {  // a device that takes one job and no more
    beside = world.device.ends_first() != 0;
    return beside ? Status::QUEUE_FULL : Status::OK;
  };
  const Start first = request(1, prompt(random, 8), 6), second = request(2, prompt(random, 8), 6);
  CHECK(world.start(first));
  CHECK(world.start(second));
  world.run();
  check_exact(world, first, 64);
  check_exact(world, second, 64);
  CHECK(world.device.most == 1);

  world.device.refuse = [] { return Status::OK; };
  for (uint64_t id = 3; id <= 4; ++id) CHECK(world.start(request(id, prompt(random, 8), 6)));
  world.step();
  world.loop.cancel_all();
  CHECK(world.device.cancelled && world.table->free_lanes() == 0);
  world.run();
  CHECK(world.device.most == 2);
  for (uint64_t id = 3; id <= 4; ++id) CHECK(world.outcomes[id].finish == Finish::CANCELLED);
}
