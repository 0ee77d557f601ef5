// SPDX-License-Identifier: Apache-2.0
// The tick machine in virtual time: the table of states, the order of jobs, and what each request
// gets among others, faults and cancels.
#include "engine/step_core.h"

#include "tests/chain_world.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

TEST(every_pair_of_state_and_event_is_listed) {
  // Columns: SUBMIT CHUNK_DONE PROMPT_DONE TOKEN_DONE JOB_FAILED END; the state after, - illegal.
  const char* expected[kRequestStates][kRequestEvents] = {
      {"PREFILL_BUSY", "-", "-", "-", "-", "ENDED"},         // QUEUED
      {"PREFILL_BUSY", "-", "-", "-", "-", "ENDED"},         // PREFILL
      {"-", "PREFILL", "DECODE", "-", "ENDED", "DRAINING"},  // PREFILL_BUSY
      {"DECODE_BUSY", "-", "-", "-", "-", "ENDED"},          // DECODE
      {"-", "-", "-", "DECODE", "ENDED", "DRAINING"},        // DECODE_BUSY
      {"-", "ENDED", "ENDED", "ENDED", "ENDED", "-"},        // DRAINING
      {"-", "-", "-", "-", "-", "-"},                        // ENDED
  };
  size_t legal = 0;
  for (size_t s = 0; s < kRequestStates; ++s) {
    for (size_t e = 0; e < kRequestEvents; ++e) {
      const auto state = RequestState(s);
      const auto event = RequestEvent(e);
      Record record(request(1, {1}, 1), *Sampler::make({}, kVocab));
      record.state = state;
      const auto applied = record.on(event);
      const bool allowed = std::string(expected[s][e]) != "-";
      legal += allowed;
      CHECK(applied.ok() == allowed);
      CHECK(transition(state, event).has_value() == allowed);
      if (allowed) CHECK(std::string(request_state_name(record.state)) == expected[s][e]);
      if (allowed) continue;
      CHECK(record.state == state);
      CHECK(applied.error().message.find(request_event_name(event)) != std::string::npos);
      CHECK(applied.error().message.find(request_state_name(state)) != std::string::npos);
    }
  }
  CHECK(legal == kTransitions.size());
}

TEST(one_chunk_between_two_ticks_while_a_lane_decodes) {
  World world(graphs({1, 4}, {4, 16}), 4, 64);
  std::mt19937 random(1);
  const Start first = request(1, prompt(random, 3), 7);
  const Start second = request(2, prompt(random, 40), 2);
  CHECK(world.start(first));
  world.step();
  CHECK(world.start(second));
  world.run();
  CHECK(words(world.device.log) == "p4:3 d1:1 p16:16 d1:1 p16:16 d1:1 p16:8 d4:2 d1:1 d1:1");
  check_exact(world, first, 64);
  check_exact(world, second, 64);
}

TEST(more_ticks_per_chunk_when_asked) {
  World world(graphs({4}, {4}), 2, 64, {0, 3});
  std::mt19937 random(2);
  CHECK(world.start(request(1, prompt(random, 4), 9)));
  world.step();
  CHECK(world.start(request(2, prompt(random, 8), 1)));
  world.run();
  CHECK(words(world.device.log) == "p4:4 d4:1 d4:1 d4:1 p4:4 d4:1 d4:1 d4:1 p4:4 d4:1 d4:1");
}

TEST(prompts_are_filled_in_the_order_of_their_start_with_the_smallest_chunk_that_holds_them) {
  World world(graphs({4}, {4, 8, 16}), 3, 64, {8, 1});  // 16 is above the limit of 8
  std::mt19937 random(3);
  CHECK(world.start(request(1, prompt(random, 21), 1)));
  CHECK(world.start(request(2, prompt(random, 5), 1)));
  CHECK(world.start(request(3, prompt(random, 4), 1)));
  world.run();
  CHECK(words(world.device.log) == "p8:8 p8:8 p8:5 p8:5 p4:4");
}

TEST(a_model_without_prefill_graphs_feeds_the_prompt_through_ticks) {
  for (bool n_valid : {true, false}) {
    // Without n_valid a chunk cannot be padded: the rest of 6 is fed one by one.
    World world(graphs({1, 2}, n_valid ? std::vector<uint32_t>{} : std::vector<uint32_t>{4},
                       CALD_LANE_MAP_ANY, n_valid),
                2, 32);
    std::mt19937 random(4);
    const Start start = request(1, prompt(random, 6), 2);
    CHECK(world.start(start));
    world.run();
    CHECK(words(world.device.log) ==
          (n_valid ? "d1:1 d1:1 d1:1 d1:1 d1:1 d1:1 d1:1" : "p4:4 d1:1 d1:1 d1:1"));
    check_exact(world, start, 32);
  }
}

TEST(more_lanes_than_the_largest_profile_take_turns) {
  World world(graphs({2}, {8}), 5, 64);
  std::mt19937 random(5);
  std::vector<Start> starts;
  for (uint64_t id = 1; id <= 5; ++id) {
    starts.push_back(request(id, prompt(random, 8), 9));
    CHECK(world.start(starts.back()));
  }
  size_t widest = 0;
  while (!world.loop.idle()) {
    world.step();
    if (world.loop.statistics().decoding == 5) {
      size_t least = SIZE_MAX, most = 0;
      for (auto& [id, out] : world.outcomes) {
        if (out.ended != 0) continue;
        least = std::min(least, out.tokens.size());
        most = std::max(most, out.tokens.size());
      }
      widest = std::max(widest, most - least);
    }
    if (!world.advance()) break;
  }
  CHECK(widest <= 5);  // those that began first are ahead only by what they had before
  for (const auto& start : starts) check_exact(world, start, 64);
}

TEST(every_ending_has_its_reason) {
  World world(graphs({4}, {8}), 4, 16);
  std::mt19937 random(6);
  Start full = request(1, prompt(random, 16), 5);  // the prompt fills the lane: one token
  Start nearly = request(2, prompt(random, 13), 50);
  Start budget = request(3, prompt(random, 2), 3);
  Start stop = request(4, prompt(random, 2), 9);
  stop.stop_tokens = {solo_run(stop, 16).tokens[2]};
  for (const auto& start : {full, nearly, budget, stop}) CHECK(world.start(start));
  world.run();
  for (const auto& start : {full, nearly, budget, stop}) check_exact(world, start, 16);
  CHECK(world.outcomes[1].finish == Finish::CONTEXT && world.outcomes[1].tokens.size() == 1);
  CHECK(world.outcomes[2].finish == Finish::CONTEXT && world.outcomes[2].tokens.size() == 4);
  CHECK(world.outcomes[3].finish == Finish::LENGTH && world.outcomes[3].tokens.size() == 3);
  CHECK(world.outcomes[4].finish == Finish::STOP);
  CHECK(world.table->free_lanes() == 4);
}

TEST(a_cancel_in_flight_ends_with_the_job_and_only_then_frees_the_lane) {
  World world(graphs({2}, {8}), 2, 32);
  std::mt19937 random(7);
  const Start other = request(2, prompt(random, 5), 4);
  CHECK(world.start(request(1, prompt(random, 20), 4)));
  CHECK(world.start(other));
  world.step();
  world.loop.core().cancel(1, world.now);
  world.loop.core().cancel(1, world.now);
  world.loop.core().cancel(77, world.now);
  world.step();
  CHECK(world.outcomes[1].ended == 0);
  CHECK(world.table->free_lanes() == 0);
  world.advance();
  world.step();
  CHECK(world.outcomes[1].ended == 1 && world.outcomes[1].finish == Finish::CANCELLED);
  CHECK(world.outcomes[1].tokens.empty());
  CHECK(world.table->free_lanes() == 1);
  world.run();
  check_exact(world, other, 32);
}

TEST(a_deadline_ends_a_request_without_waiting_for_news) {
  World world(graphs({2}, {8}), 2, 64);
  std::mt19937 random(8);
  Start start = request(1, prompt(random, 8), 50);
  start.deadline_ns = world.now + 5500;
  CHECK(world.start(start));
  world.run();
  CHECK(world.outcomes[1].finish == Finish::DEADLINE);
  CHECK(world.outcomes[1].tokens.size() == 5);
}

TEST(only_the_requests_of_a_failed_job_fail) {
  World world(graphs({4}, {8}), 3, 64);
  std::mt19937 random(9);
  const Start first = request(1, prompt(random, 4), 12), second = request(2, prompt(random, 4), 9);
  CHECK(world.start(first));
  CHECK(world.start(second));
  for (int i = 0; i < 4; ++i) world.step(), world.advance();
  CHECK(world.start(request(3, prompt(random, 11), 12)));
  world.device.fail_job = [](const JobPlan& plan) {  // the second chunk of the third request
    return plan.graph.prefill && plan.rows[0].position == 8 ? Status::TRANSFER_FAULT : Status::OK;
  };
  world.run();
  check_exact(world, first, 64);
  check_exact(world, second, 64);
  const Outcome& third = world.outcomes[3];
  CHECK(third.ended == 1 && third.finish == Finish::FAILED && third.prompt_done == 8);
  CHECK(third.status == int32_t(Status::TRANSFER_FAULT) && third.text == "job failed");
  CHECK(world.loop.statistics().failed_jobs == 1);
  CHECK(world.table->free_lanes() == 3);  // scrubbed

  world.device.fail_job = [](const JobPlan& plan) {  // a tick: all its lanes
    return plan.graph.prefill ? Status::OK : Status::EXECUTION_FAILED;
  };
  for (uint64_t id = 4; id <= 5; ++id) CHECK(world.start(request(id, prompt(random, 4), 5)));
  world.run();
  for (uint64_t id = 4; id <= 5; ++id) CHECK(world.outcomes[id].finish == Finish::FAILED);
  world.device.fail_job = [](const JobPlan&) { return Status::OK; };
  Start after = first;
  after.request = 6;
  CHECK(world.start(after));
  world.run();
  check_exact(world, after, 64);
}

TEST(lanes_of_a_lost_job_stay_poisoned_until_the_driver_answers) {
  World world(graphs({2}, {8}), 2, 64);
  std::mt19937 random(10);
  world.device.answer = false;
  bool lose = true;
  world.device.lose = [&] { return std::exchange(lose, false); };
  CHECK(world.start(request(1, prompt(random, 5), 3)));
  const Start second = request(2, prompt(random, 5), 3);
  CHECK(world.start(second));
  world.run();
  CHECK(world.outcomes[1].finish == Finish::FAILED);
  CHECK(world.outcomes[1].text.find("lost") != std::string::npos);
  check_exact(world, second, 64);
  CHECK(world.table->free_lanes() == 1);
  world.device.answer = true;
  CHECK(world.loop.wake_at() != UINT64_MAX);
  world.advance();
  world.step();
  CHECK(world.table->free_lanes() == 2);
  CHECK(world.loop.wake_at() == UINT64_MAX);
}

TEST(a_full_queue_is_waited_for_and_a_refusal_for_good_is_an_answer) {
  World world(graphs({2}, {8}), 2, 64);
  std::mt19937 random(11);
  int refusals = 0;
  world.device.refuse = [&] { return ++refusals % 3 != 0 ? Status::QUEUE_FULL : Status::OK; };
  const Start start = request(1, prompt(random, 5), 6);
  CHECK(world.start(start));
  world.run();
  check_exact(world, start, 64);
  CHECK(refusals == 18);

  world.device.refuse = [] { return Status::QUEUE_FULL; };  // for ever: ends by the job timeout
  CHECK(world.start(request(2, prompt(random, 5), 6)));
  const uint64_t before = world.now;
  world.run();
  CHECK(world.outcomes[2].finish == Finish::FAILED);
  CHECK(world.outcomes[2].status == int32_t(Status::QUEUE_FULL));
  CHECK(world.now - before >= kJobTimeout && world.now - before < 60 * kJobTimeout);

  int asked = 0;
  world.device.refuse = [&] { return ++asked == 1 ? Status::SUBMIT_FAILED : Status::OK; };
  const Start third = request(3, prompt(random, 5), 2);
  CHECK(world.start(third));  // once more is tried at once
  world.run();
  check_exact(world, third, 64);

  world.device.refuse = [] { return Status::SHAPE_MISMATCH; };
  CHECK(world.start(request(4, prompt(random, 5), 2)));
  world.run();
  CHECK(world.outcomes[4].status == int32_t(Status::SHAPE_MISMATCH));
  CHECK(world.table->free_lanes() == 2);
}

TEST(a_lost_device_fails_every_request) {
  World world(graphs({1}, {8}), 3, 64);
  std::mt19937 random(12);
  for (uint64_t id = 1; id <= 3; ++id) CHECK(world.start(request(id, prompt(random, 9), 5)));
  world.device.fail_job = [&](const JobPlan&) {
    return world.device.log.size() == 4 ? Status::DEVICE_LOST : Status::OK;
  };
  world.run();
  for (uint64_t id = 1; id <= 3; ++id) {
    CHECK(world.outcomes[id].ended == 1 && world.outcomes[id].finish == Finish::FAILED);
    CHECK(world.outcomes[id].status == int32_t(Status::DEVICE_LOST));
  }
}

TEST(a_row_without_a_finite_logit_fails_its_request) {
  World world(graphs({2}, {8}), 1, 64);
  std::mt19937 random(13);
  world.device.no_logits = [&] { return world.device.log.size() == 3; };
  CHECK(world.start(request(1, prompt(random, 4), 20)));
  world.run();
  CHECK(world.outcomes[1].finish == Finish::FAILED);
  CHECK(world.outcomes[1].status == int32_t(Status::INTERNAL));
  CHECK(world.outcomes[1].text.find("no finite logit") != std::string::npos);
}

TEST(no_job_begins_without_room_for_its_events) {
  World world(graphs({4}, {8}), 2, 64);
  std::mt19937 random(14);
  world.room = 4;  // a chunk needs 4 and the end of the request
  const Start start = request(1, prompt(random, 4), 2);
  CHECK(world.start(start));
  world.step();
  CHECK(world.loop.waits_for_room() && world.device.log.empty());
  world.room = 5;
  world.run();
  check_exact(world, start, 64);
}

TEST(a_completion_of_another_job_is_dropped) {
  World world(graphs({4}, {8}), 2, 64);
  std::mt19937 random(15);
  const Start start = request(1, prompt(random, 4), 4);
  CHECK(world.start(start));
  world.loop.completed(12345);
  world.step();
  world.loop.completed(world.device.ends_first() + 1);
  world.step();
  CHECK(world.loop.statistics().stale_completions == 2);
  world.run();
  check_exact(world, start, 64);
}

TEST(whoever_shares_the_device_gets_what_it_gets_alone) {
  struct Case {
    std::vector<GraphShape> shapes;
    uint32_t lanes;
  };
  const Case cases[] = {
      {graphs({1, 4, 8}, {4, 16}), 8},
      {graphs({2}, {8}), 6},
      {graphs({1, 4}, {}), 4},
      {graphs({1, 4}, {4, 8}, CALD_LANE_MAP_ANY, false), 4},
      {graphs({2, 4}, {}, CALD_LANE_MAP_IDENTITY), 4},
      {graphs({4}, {8}, CALD_LANE_MAP_IDENTITY), 4},
      {graphs({1}, {4}, CALD_LANE_MAP_NONE), 1},
  };
  size_t most[3] = {};  // jobs that were in flight at a time, by the limit
  for (const Case& test : cases) {
    for (uint32_t seed = 1; seed <= 50; ++seed) {
      std::mt19937 random(seed);
      constexpr uint32_t kCells = 40;
      const uint32_t in_flight = 1 + seed / 2 % 2;
      World world(test.shapes, test.lanes, kCells, {0, 1 + seed % 2}, in_flight);
      world.device.runs_at_once = 1 + seed % 3 % 2;
      const bool faults = seed % 5 == 0;
      world.device.duration = [&](const JobPlan& plan) {
        return 100 * plan.graph.size + random() % 500;
      };
      world.device.refuse = [&] { return random() % 10 == 0 ? Status::QUEUE_FULL : Status::OK; };
      world.device.fail_job = [&](const JobPlan&) {
        return faults && random() % 30 == 0 ? Status::EXECUTION_FAILED : Status::OK;
      };
      world.device.lose = [&] { return faults && random() % 60 == 0; };
      std::map<uint64_t, Start> starts;
      std::map<uint64_t, bool> cancelled;
      uint64_t next = 1;
      uint64_t arrival = world.now;
      for (int turns = 0; turns < 50000; ++turns) {
        while (next <= 40 && arrival <= world.now) {
          Start start = request(next, prompt(random, 1 + random() % 25), 1 + random() % 20);
          // Rows without a request write their lane's next cell under a job in flight, so cells put
          // in place from outside would not be safe there.
          const bool any = test.shapes[0].lane_map == CALD_LANE_MAP_ANY;
          if (any && random() % 4 == 0) start.history = prompt(random, 1 + random() % 14);
          if (random() % 2) start.sampling.temperature = 0.8f;
          if (random() % 3 == 0) start.sampling.repeat_penalty = 1.3f;
          start.sampling.seed = random();
          for (int i = 0; i < 2; ++i) start.stop_tokens.push_back(int32_t(random() % kVocab));
          if (random() % 10 == 0) start.deadline_ns = world.now + random() % 20000;
          if (!world.start(start)) break;
          starts[next++] = start;
          arrival = world.now + random() % 3000;
        }
        if (random() % 50 == 0) {
          const uint64_t victim = 1 + random() % next;
          cancelled[victim] = true;
          world.loop.core().cancel(victim, world.now);
        }
        world.step();
        if (next > 40 && world.loop.idle()) break;
        if (!world.advance(next <= 40 && world.table->free_lanes() > 0
                               ? std::max(arrival, world.now + 1)
                               : UINT64_MAX)) {
          world.now += 1000;
        }
      }
      CHECK(world.loop.idle() && next == 41);
      int exact = 0;
      for (auto& [id, start] : starts) {
        const Outcome& out = world.outcomes[id];
        const Solo solo = solo_run(start, kCells);
        CHECK(out.ended == 1);
        CHECK(out.tokens.size() <= solo.tokens.size() &&
              std::equal(out.tokens.begin(), out.tokens.end(), solo.tokens.begin()));
        switch (out.finish) {
          case Finish::CANCELLED:
            CHECK(cancelled[id]);
            break;
          case Finish::DEADLINE:
            CHECK(start.deadline_ns != UINT64_MAX);
            break;
          case Finish::FAILED:
            CHECK(faults && out.status == int32_t(Status::EXECUTION_FAILED));
            break;
          default:
            ++exact;
            CHECK(out.finish == solo.finish && out.tokens == solo.tokens);
        }
      }
      CHECK(exact >= (faults ? 1 : 10));
      most[in_flight] = std::max(most[in_flight], world.device.most);
      world.loop.step(world.room);
      CHECK(world.table->free_lanes() == test.lanes);
      if (failures() != 0) {
        std::fprintf(stderr, "case %d, seed %u\n", int(&test - cases), seed);
        return;
      }
    }
  }
  CHECK(most[1] == 1 && most[2] == 2);
}
