// SPDX-License-Identifier: Apache-2.0
// A lane's state in slabs: what is damaged, or changes while it is read, fills no lane.
#include "engine/kv_state.h"

#include <span>
#include <vector>

#include "tests/kv_rig.h"

using namespace calrt;
using namespace calrt::engine;
using namespace calrt::testing;

namespace {

constexpr uint32_t kHeld = 20, kSlab = 4;

struct World : KvRig {
  World() : KvRig({.slab_bytes = kSlab * sizeof(Cell)}) {}
  std::vector<unsigned char> saved(const kv::LaneRef& lane, KvMover& by) {
    std::vector<unsigned char> blob(*state_bytes(by, kHeld, 0));
    MemorySink sink(blob);
    CHECK(save_state(by, lane, {}, sink, call()).ok());
    return blob;
  }
  Status load(const kv::LaneRef& lane, StateSource& source) {
    const auto got = load_state(*mover, lane, source, call());
    return got.ok() ? Status::OK : got.error().code;
  }
  bool holds(const kv::LaneRef& lane, const Cells& cells) {
    const auto got = read(lane, kRigCells, call());
    return got.ok() && *got == cells;
  }
};

// Its last byte changes once it was read twice: with the header, and to be checked.
struct Fickle final : StateSource {
  std::vector<unsigned char> blob;
  int ends = 0;
  uint64_t size() const override { return blob.size(); }
  Result<std::span<const unsigned char>> at(uint64_t offset, uint64_t n) override {
    if (offset + n == blob.size() && ++ends == 3) blob.back() ^= 1;
    return std::span<const unsigned char>(blob).subspan(offset, n);
  }
};

}  // namespace

TEST(a_state_goes_into_another_lane_slab_by_slab) {
  World w;
  const kv::LaneRef from = w.filled(cells_of(1, kHeld)), to = w.filled(cells_of(2, 5));
  CHECK(w.mover->slab_cells() == kSlab);
  const auto blob = w.saved(from, *w.mover);
  MemorySource source(blob);
  CHECK(w.load(to, source) == Status::OK && w.holds(to, cells_of(1, kHeld)));
}

TEST(a_damaged_slab_is_found_before_the_first_is_written) {
  World w;
  const kv::LaneRef from = w.filled(cells_of(1, kHeld)), to = w.filled(cells_of(2, 5));
  const auto blob = w.saved(from, *w.mover);
  const size_t header = blob.size() - kHeld * sizeof(Cell);
  for (size_t slab = 0; slab < kHeld / kSlab; ++slab) {
    std::vector<unsigned char> damaged = blob;
    damaged[header + slab * kSlab * sizeof(Cell) + 3] ^= 4;
    MemorySource source(damaged);
    CHECK(w.load(to, source) == Status::KV_INVALID_SEQUENCE);
    CHECK(w.table->poisoned_lanes() == 0 && w.holds(to, cells_of(2, 5)));
  }
}

TEST(a_source_that_changes_while_it_is_read_is_noticed) {
  World w;
  const kv::LaneRef from = w.filled(cells_of(1, kHeld)), to = w.filled(cells_of(2, 5));
  Fickle source;
  source.blob = w.saved(from, *w.mover);
  CHECK(w.load(to, source) == Status::KV_INVALID_SEQUENCE);
  CHECK(w.table->snapshot(to)->state == kv::LaneState::POISONED);  // its first slabs are there
}

TEST(slabs_that_do_not_fit_the_staging_buffers_are_refused) {
  World w;
  const kv::LaneRef from = w.filled(cells_of(1, kHeld)), to = w.filled(cells_of(2, 5));
  const auto blob = w.saved(from, *w.whole);  // in one
  MemorySource source(blob);
  CHECK(w.load(to, source) == Status::OUT_OF_RANGE && w.holds(to, cells_of(2, 5)));
}

TEST(what_is_pending_is_done_before_a_lane_is_saved) {
  World w;
  const kv::LaneRef lane = w.filled(cells_of(1, kHeld + 4)), to = w.reserve();
  CHECK(w.table->shift(lane, 2, 4).ok() && !w.table->snapshot(lane)->canonical);
  const auto blob = w.saved(lane, *w.mover);
  MemorySource source(blob);
  CHECK(w.load(to, source) == Status::OK);
  CHECK(*w.read(to, kRigCells, w.call()) == *w.read(lane, kRigCells, w.call()));
}

TEST(token_ids_are_one_for_each_cell) {
  World w;
  const kv::LaneRef lane = w.filled(cells_of(1, kHeld));
  std::vector<unsigned char> blob(*state_bytes(*w.mover, kHeld, kHeld));
  MemorySink sink(blob);
  const auto saved = save_state(*w.mover, lane, {1, 2, 3}, sink, w.call());
  CHECK(!saved.ok() && saved.error().code == Status::SHAPE_MISMATCH);
  CHECK(save_state(*w.mover, lane, std::vector<int32_t>(kHeld, 7), sink, w.call()).ok());
}
