// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/presets.h"

#include <cstring>

namespace calrt::mock {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;
constexpr uint32_t kHostOnly = CALD_DOMAIN_HOST;
constexpr uint32_t kAllDomains = CALD_DOMAIN_HOST | CALD_DOMAIN_HOST_PINNED | CALD_DOMAIN_DEVICE;
constexpr uint32_t kAllOps = CALD_KV_CLEAR | CALD_KV_LANE_COPY | CALD_KV_RANGE_COPY |
                             CALD_KV_ROTATE | CALD_KV_READ | CALD_KV_WRITE;
constexpr uint32_t kNone = 1u << CALD_LANE_MAP_NONE, kIdentity = 1u << CALD_LANE_MAP_IDENTITY,
                   kAny = 1u << CALD_LANE_MAP_ANY;

constexpr const char* kMadeUp = "by construction; times and sizes are made up";

// One chip.
const cald_chip kSmallChip = {sizeof(cald_chip), 0, "mock chip", kGiB};
const cald_chip* const kOneChip[] = {&kSmallChip};
constexpr uint64_t kOneSession[] = {1};
constexpr const char* kNoParallel[] = {"none"};
constexpr Placement kOnePlacement[] = {{"any", 1}, {"chip:0", 1}};
constexpr const char* kOnePlacementNames[] = {"any", "chip:0"};
constexpr cald_link kOneLink[] = {{CALD_HOST_CHIP, 0, 16'000'000'000, 2'000},
                                  {0, CALD_HOST_CHIP, 12'000'000'000, 2'000}};

// Two chips.
const cald_chip kTwin0 = {sizeof(cald_chip), 0, "mock chip 0", 512 * kMiB};
const cald_chip kTwin1 = {sizeof(cald_chip), 1, "mock chip 1", 512 * kMiB};
const cald_chip* const kTwins[] = {&kTwin0, &kTwin1};
constexpr uint64_t kSessionPerChip[] = {1, 2};
constexpr const char* kNoneOrTensor[] = {"none", "tensor"};
constexpr Placement kTwinPlacements[] = {{"chip:0", 1}, {"chip:1", 2}, {"chips:0+1", 3}};
constexpr const char* kTwinPlacementNames[] = {"chip:0", "chip:1", "chips:0+1"};
constexpr cald_link kTwinLinks[] = {{CALD_HOST_CHIP, 0, 16'000'000'000, 2'000},
                                    {0, CALD_HOST_CHIP, 12'000'000'000, 2'000},
                                    {CALD_HOST_CHIP, 1, 16'000'000'000, 2'000},
                                    {1, CALD_HOST_CHIP, 12'000'000'000, 2'000},
                                    {0, 1, 64'000'000'000, 1'000},
                                    {1, 0, 64'000'000'000, 1'000}};

// Two large chips that work as one.
const cald_chip kLarge0 = {sizeof(cald_chip), 0, "mock chip 0", 16 * kGiB};
const cald_chip kLarge1 = {sizeof(cald_chip), 1, "mock chip 1", 16 * kGiB};
const cald_chip* const kLargePair[] = {&kLarge0, &kLarge1};
constexpr uint64_t kBothChips[] = {3};
constexpr const char* kTensor[] = {"tensor"};
constexpr Placement kPairPlacements[] = {{"any", 3}, {"chips:0+1", 3}};
constexpr const char* kPairPlacementNames[] = {"any", "chips:0+1"};

constexpr Pace kTinyTicks[] = {{1, 100'000}, {4, 120'000}, {8, 150'000}, {16, 200'000}};
constexpr Pace kTinyChunks[] = {{16, 150'000}, {64, 300'000}};
constexpr Pace kBareTicks[] = {{1, 2'000'000}};
constexpr Pace kBareChunks[] = {{64, 8'000'000}};
constexpr Pace kQwenTicks[] = {{1, 25'000'000}};
constexpr Pace kQwenChunks[] = {{64, 100'000'000}, {256, 300'000'000}};
constexpr Timing kTinyTiming = {
    {2'000, 16'000}, {2'000, 12'000}, {1'000, 100'000}, kTinyTicks, kTinyChunks};
constexpr Timing kBareTiming = {
    {10'000, 8'000}, {10'000, 6'000}, {2'000, 50'000}, kBareTicks, kBareChunks};
constexpr Timing kQwenTiming = {
    {10'000, 16'000}, {10'000, 12'000}, {2'000, 100'000}, kQwenTicks, kQwenChunks};

const Preset kPresets[] = {
    {"tiny",
     "mock-tiny",
     kMadeUp,
     "tiny: absent",
     kOneChip,
     kOneLink,
     kOneSession,
     kNoParallel,
     kOnePlacement,
     kOnePlacementNames,
     /*queue=*/8,
     kAllDomains,
     CALD_COMPLETION_CALLBACK,
     /*cancel=*/true,
     kAllOps,
     kAny | kIdentity | kNone,
     /*most_lanes=*/16,
     /*most_cells=*/4096,
     /*most_batch=*/16,
     /*most_chunk=*/4096,
     kGiB,
     0,
     0,
     kTinyTiming},
    {"bare",
     "mock-bare",
     "by construction: what the first hardware is known to have, no more",
     "bare: absent",
     kOneChip,
     kOneLink,
     kOneSession,
     kNoParallel,
     kOnePlacement,
     kOnePlacementNames,
     /*queue=*/2,
     kHostOnly,
     CALD_COMPLETION_WAIT,
     /*cancel=*/false,
     /*kv_ops=*/0,
     kNone,
     /*most_lanes=*/1,
     /*most_cells=*/40'960,
     /*most_batch=*/1,
     /*most_chunk=*/64,
     kGiB,
     0,
     0,
     kBareTiming},
    {"qwen3-30b-a3b",
     "mock-qwen3-30b-a3b",
     kMadeUp,
     "qwen3-30b-a3b: absent",
     kLargePair,
     kTwinLinks,
     kBothChips,
     kTensor,
     kPairPlacements,
     kPairPlacementNames,
     /*queue=*/8,
     kAllDomains,
     CALD_COMPLETION_CALLBACK,
     /*cancel=*/true,
     kAllOps,
     kAny | kIdentity | kNone,
     /*most_lanes=*/1,
     /*most_cells=*/40'960,
     /*most_batch=*/1,
     /*most_chunk=*/4096,
     32 * kGiB,
     18'187'039'015,  // 16.938 GiB
     98'304,          // 2 * 48 layers * 4 KV heads * 128 * 2 bytes: 3.750 GiB at 40,960 cells
     kQwenTiming},
    {"dual-chip",
     "mock-dual-chip",
     kMadeUp,
     "dual-chip: absent",
     kTwins,
     kTwinLinks,
     kSessionPerChip,
     kNoneOrTensor,
     kTwinPlacements,
     kTwinPlacementNames,
     /*queue=*/8,
     kAllDomains,
     CALD_COMPLETION_CALLBACK,
     /*cancel=*/true,
     kAllOps,
     kAny | kIdentity | kNone,
     /*most_lanes=*/16,
     /*most_cells=*/4096,
     /*most_batch=*/16,
     /*most_chunk=*/4096,
     kGiB,
     0,
     0,
     kTinyTiming},
};

}  // namespace

Result<const Preset*> find_preset(const char* name) {
  if (name == nullptr || *name == '\0') return &kPresets[0];
  std::string names;
  for (const Preset& preset : kPresets) {
    if (std::strcmp(name, preset.name) == 0) return &preset;
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  }
  return fail(Status::INVALID_ARGUMENT, "mock has no preset \"%.64s\"; it has: %s", name,
              names.c_str());
}

}  // namespace calrt::mock
