// SPDX-License-Identifier: Apache-2.0
// calrt076's loads and refusals: nothing that would be misuse of the SDK reaches it.
#include "tests/calrt076_client.h"

namespace calrt::testing {
namespace {

cald_status refused(World& world, Directory& directory, Ask ask, Failure* why) {
  const cald_status status = world.load(directory, ask, why);
  CHECK(world.model == nullptr);
  CHECK(why->raw.code == status);
  return status;
}

TEST(loads_that_the_sdk_cannot_serve_are_refused_by_name) {
  Directory directory;
  World world("abort_on_misuse");
  Failure why;
  CHECK(refused(world, directory, {4, 64, "chip:0"}, &why) == CALD_UNSUPPORTED);
  CHECK(why.says("C3"));
  CHECK(refused(world, directory, {4, 64, "any", 4}, &why) == CALD_UNSUPPORTED);
  CHECK(why.says("decode graph of batch 4"));
  CHECK(refused(world, directory, {17, 1}, &why) == CALD_OUT_OF_RANGE);
  CHECK(refused(world, directory, {1, 257}, &why) == CALD_OUT_OF_RANGE);
  directory.arch.vocab = kVocab + 1;
  CHECK(refused(world, directory, {}, &why) == CALD_PACKAGE_REJECTED);
  directory.arch.vocab = kVocab;
  CHECK(world.load(directory) == CALD_OK);  // what was refused left nothing loaded
  cald_model* first = world.model;
  CHECK(world.load(directory, {}, &why) == CALD_OUT_OF_DEVICE_MEMORY);
  CHECK(why.says("unload it first"));
  CHECK(world.model == first);
}

// 5 lanes of 52 cells are 260, and the arena has 256: a lane would find it full, and the SDK spin.
TEST(no_lane_can_find_the_arena_full) {
  Directory directory;
  Failure why;
  {
    World world;
    CHECK(refused(world, directory, {5, 52}, &why) == CALD_OUT_OF_DEVICE_MEMORY);
    CHECK(why.says("260") && why.says("256"));
  }
  CHECK(in_child([] {
    Directory full;
    World world;
    world.open(full, {4, 64});
    Step step(world);
    for (int32_t lane = 0; lane < 4; ++lane)
      for (int32_t at = 0; at < 64; ++at) CHECK(!step.run(1, at, lane).empty());
  }));
}

TEST(a_package_is_one_directory_that_is_still_there) {
  Failure why;
  World world;
  {
    Directory two;
    two.add("below/other.bin", "x");
    CHECK(refused(world, two, {}, &why) == CALD_PACKAGE_REJECTED);
    CHECK(why.says("one directory"));
  }
  {
    Directory gone;
    std::filesystem::remove(gone.path() + "/manifest.json");
    CHECK(refused(world, gone, {}, &why) == CALD_PACKAGE_CORRUPT);
  }
  {
    Directory replaced;
    std::filesystem::remove(replaced.path() + "/manifest.json");
    std::ofstream(replaced.path() + "/manifest.json") << "{}";
    CHECK(refused(world, replaced, {}, &why) == CALD_PACKAGE_CORRUPT);
  }
  {
    Directory nothing;
    for (cald_artifact& artifact : nothing.artifacts) close(artifact.fd), artifact.fd = -1;
    CHECK(refused(world, nothing, {}, &why) == CALD_PACKAGE_REJECTED);
  }
}

TEST(numbers_of_a_failed_load_are_mapped_and_kept) {
  const struct {
    const char* vice;
    cald_status status;
  } loads[] = {{"call_answers:load_model=11", CALD_PACKAGE_NOT_FOUND},
               {"call_answers:load_model=10", CALD_OUT_OF_DEVICE_MEMORY},
               {"call_answers:load_model=13", CALD_VERSION_MISMATCH}};
  for (const auto& load : loads) {
    Directory directory;
    World world(load.vice);
    Failure why;
    CHECK(refused(world, directory, {}, &why) == load.status);
    CHECK(why.raw.native_code == std::atoi(std::strchr(load.vice, '=') + 1));
  }
}

TEST(wrong_jobs_never_reach_the_sdk) {
  Directory directory;
  World world("abort_on_misuse");
  world.open(directory);
  Step step(world);
  Failure why;
  const struct {
    int32_t token, position, lane;
  } wrongs[] = {{-1, 0, 0}, {kVocab, 0, 0}, {0, -1, 0}, {0, 64, 0}, {0, 0, 4}, {0, 0, -2}};
  for (const auto& wrong : wrongs) {
    CHECK(step.submit(wrong.token, wrong.position, wrong.lane, 1, CALD_NO_DEADLINE, &why) ==
          CALD_OUT_OF_RANGE);
    CHECK(step.job == nullptr);
  }
  step.n_bindings = 3;
  CHECK(step.submit(0, 0, 0, 1, CALD_NO_DEADLINE, &why) == CALD_INVALID_ARGUMENT);
  step.n_bindings = 4;
  step.bindings[3].bytes /= 2;
  CHECK(step.submit(0, 0, 0, 1, CALD_NO_DEADLINE, &why) == CALD_SHAPE_MISMATCH);
  step.bindings[3].bytes *= 2;
  CHECK(step.told == 0);
  CHECK(!step.run(0, 0, 0).empty());
  CHECK(world.counter("jobs") == 1);
}

// The tests of the layout above it read each logit where the layout says, so that it is the true
// one.
TEST(the_layout_is_the_sdks_own) {
  for (const auto& [vice, rows] : {std::pair{"", 4u}, {"d0_padding", 7u}}) {
    Directory directory;
    World world(vice);
    world.open(directory);
    const cald_layout& layout = world.info.graphs[0]->outputs[0]->layout;
    CHECK(layout.n_axes == 3);
    CHECK(layout.axes[1].extent == rows && layout.axes[2].extent == 16);
    CHECK(layout.axes[2].stride == 2 && layout.axes[1].stride == 32);
    CHECK(layout.axes[0].stride == 32 * rows);
  }
}

TEST(the_runtime_is_one_for_all_drivers_of_a_process) {
  const cald_host host = make_host();
  cald_driver *first = nullptr, *second = nullptr;
  CHECK(table().driver_open(&host, &first, nullptr) == CALD_OK);
  CHECK(table().driver_open(&host, &second, nullptr) == CALD_OK);
  table().driver_close(first);
  uint32_t count = 0;
  CHECK(table().device_count(second, &count, nullptr) == CALD_OK && count == 1);
  const pid_t child = fork();
  if (child == 0) {
    cald_driver* third = nullptr;
    Failure why;
    _exit(table().driver_open(&host, &third, &why.raw) == CALD_INVALID_STATE && why.says("fork")
              ? 0
              : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
  table().driver_close(second);
  CHECK(table().driver_open(&host, &first, nullptr) == CALD_OK);  // it starts again
  table().driver_close(first);
}

}  // namespace
}  // namespace calrt::testing
