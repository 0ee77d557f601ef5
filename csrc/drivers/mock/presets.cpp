// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/presets.h"

#include <cstring>

namespace calrt::mock {
namespace {

constexpr uint64_t kMebibyte = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;
constexpr uint32_t kAllDomains = CALD_DOMAIN_HOST | CALD_DOMAIN_HOST_PINNED | CALD_DOMAIN_DEVICE;
constexpr uint32_t kAllOps = CALD_KV_CLEAR | CALD_KV_LANE_COPY | CALD_KV_RANGE_COPY |
                             CALD_KV_ROTATE | CALD_KV_READ | CALD_KV_WRITE;
constexpr uint32_t kNone = 1u << CALD_LANE_MAP_NONE, kIdentity = 1u << CALD_LANE_MAP_IDENTITY,
                   kAny = 1u << CALD_LANE_MAP_ANY;

constexpr const char* kMadeUp = "by construction; times and sizes are made up";
constexpr const char* kKnown = "by construction: what is known of the hardware, and no more";

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
const cald_chip kTwin0 = {sizeof(cald_chip), 0, "mock chip 0", 512 * kMebibyte};
const cald_chip kTwin1 = {sizeof(cald_chip), 1, "mock chip 1", 512 * kMebibyte};
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
    {
        .name = "tiny",
        .device_class = "mock-tiny",
        .id = "mock:tiny",
        .source = kMadeUp,
        .absent = "tiny: absent",
        .chips = kOneChip,
        .links = kOneLink,
        .session_chips = kOneSession,
        .modes = kNoParallel,
        .placements = kOnePlacement,
        .placement_names = kOnePlacementNames,
        .queue = 8,
        .domains = kAllDomains,
        .completion = CALD_COMPLETION_CALLBACK,
        .cancel = true,
        .kv_ops = kAllOps,
        .lane_maps = kAny | kIdentity | kNone,
        .most_lanes = 16,
        .most_cells = 4096,
        .most_batch = 16,
        .most_chunk = 4096,
        .memory_bytes = kGiB,
        .timing = kTinyTiming,
    },
    {
        .name = "bare",
        .device_class = "mock-bare",
        .id = "mock:bare",
        .source = kKnown,
        .absent = "bare: absent",
        .chips = kOneChip,
        .links = kOneLink,
        .session_chips = kOneSession,
        .modes = kNoParallel,
        .placements = kOnePlacement,
        .placement_names = kOnePlacementNames,
        .queue = 2,
        .domains = CALD_DOMAIN_HOST,
        .completion = CALD_COMPLETION_WAIT,
        .cancel = false,
        .kv_ops = 0,
        .lane_maps = kNone,
        .most_lanes = 1,
        .most_cells = 40'960,
        .most_batch = 1,
        .most_chunk = 64,
        .memory_bytes = kGiB,
        .timing = kBareTiming,
    },
    {
        .name = "qwen3-30b-a3b",
        .device_class = "mock-qwen3-30b-a3b",
        .id = "mock:qwen3-30b-a3b",
        .source = kMadeUp,
        .absent = "qwen3-30b-a3b: absent",
        .chips = kLargePair,
        .links = kTwinLinks,
        .session_chips = kBothChips,
        .modes = kTensor,
        .placements = kPairPlacements,
        .placement_names = kPairPlacementNames,
        .queue = 8,
        .domains = kAllDomains,
        .completion = CALD_COMPLETION_CALLBACK,
        .cancel = true,
        .kv_ops = kAllOps,
        .lane_maps = kAny | kIdentity | kNone,
        .most_lanes = 1,
        .most_cells = 40'960,
        .most_batch = 1,
        .most_chunk = 4096,
        .memory_bytes = 32 * kGiB,
        .weight_bytes = 18'187'039'015,  // 16.938 GiB
        .kv_bytes_per_cell =
            98'304,  // 2 * 48 layers * 4 KV heads * 128 * 2 bytes: 3.750 GiB a lane
        .timing = kQwenTiming,
    },
    {
        .name = "dual-chip",
        .device_class = "mock-dual-chip",
        .id = "mock:dual-chip",
        .source = kMadeUp,
        .absent = "dual-chip: absent",
        .chips = kTwins,
        .links = kTwinLinks,
        .session_chips = kSessionPerChip,
        .modes = kNoneOrTensor,
        .placements = kTwinPlacements,
        .placement_names = kTwinPlacementNames,
        .queue = 8,
        .domains = kAllDomains,
        .completion = CALD_COMPLETION_CALLBACK,
        .cancel = true,
        .kv_ops = kAllOps,
        .lane_maps = kAny | kIdentity | kNone,
        .most_lanes = 16,
        .most_cells = 4096,
        .most_batch = 16,
        .most_chunk = 4096,
        .memory_bytes = kGiB,
        .timing = kTinyTiming,
    },
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
