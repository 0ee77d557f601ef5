// SPDX-License-Identifier: Apache-2.0
// A host that runs out of memory in a step: at whichever allocation, each request ends once, its
// lane comes back, and who comes after it is served.
#include "tests/chain_world.h"
#include "tests/failing_new.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

constexpr uint32_t kLanes = 4, kCells = 64;

// A step as the runner makes it. An allocation of it fails if `allocations_left` says so.
void step(World& world, int* left) {
  allocations_left = *left;
  bool failed = false;
  try {
    world.loop.step(world.room);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  *left = allocations_left;
  allocations_left = -1;
  if (failed) world.loop.core().fail_all(fail(Status::OUT_OF_HOST_MEMORY, "no memory"), world.now);
  world.collect();
  CHECK(world.loop.core().check_invariants().ok());
}

// False if the run made fewer allocations than `nth`.
bool survives(const std::vector<GraphShape>& shapes, uint32_t in_flight, int nth) {
  World world(shapes, kLanes, kCells, {}, in_flight);
  std::mt19937 random(3);
  std::vector<Start> starts;
  for (uint64_t id = 1; id <= 3; ++id) {
    starts.push_back(request(id, prompt(random, 11), 4));
    starts.back().sampling.n_probs = 2;
    CHECK(world.start(starts.back()));
  }
  int left = nth;
  for (int turns = 0; turns < 1000 && !world.loop.idle(); ++turns) {
    step(world, &left);
    if (!world.loop.idle() && !world.advance()) break;
  }
  CHECK(world.loop.idle());
  const bool reached = left < 0;
  for (const Start& start : starts) {
    const Outcome& out = world.outcomes[start.request];
    CHECK(out.ended == 1);
    if (out.finish == Finish::FAILED)
      CHECK(reached && out.status == int32_t(Status::OUT_OF_HOST_MEMORY));
    else
      check_exact(world, start, kCells);
  }
  const Start after = request(9, prompt(random, 9), 3);
  CHECK(world.start(after));
  world.run();
  check_exact(world, after, kCells);
  world.step();
  CHECK(world.table->free_lanes() == kLanes);
  return reached;
}

}  // namespace

TEST(a_step_without_memory_ends_every_request_and_serves_the_next) {
  for (const uint32_t in_flight : {1u, 2u}) {
    for (const auto& shapes :
         {graphs({1}, {8}), graphs({1, 4}, {8}), graphs({4}, {8}, CALD_LANE_MAP_IDENTITY)}) {
      int nth = 0;
      while (nth < 2000 && survives(shapes, in_flight, nth) && failures() == 0) ++nth;
      CHECK(nth > 10 && nth < 2000);
      if (failures() != 0) {
        std::fprintf(stderr, "in_flight %u, allocation %d\n", in_flight, nth);
        return;
      }
    }
  }
}
