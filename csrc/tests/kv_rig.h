// SPDX-License-Identifier: Apache-2.0
// A model on mock with its lanes and what moves them, and lanes as lists of cells.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "calrt/device.h"
#include "calrt/model.h"
#include "calrt/session.h"
#include "engine/kv_mover.h"
#include "tests/check.h"
#include "tests/package_for_test.h"

namespace calrt::testing {

// One of mock: its K is its position, its V a mix of its token.
struct Cell {
  int32_t position = 0;
  uint32_t mix = 0;
  bool operator==(const Cell&) const = default;
};
using Cells = std::vector<Cell>;

inline constexpr uint32_t kRigCells = 64;

// Cells of a sequence that has no other's mixes.
inline Cells cells_of(uint32_t who, uint32_t n) {
  Cells cells;
  for (uint32_t i = 0; i < n; ++i) cells.push_back({static_cast<int32_t>(i), who << 16 | (i + 1)});
  return cells;
}

struct KvRigSettings {
  std::string faults;                 // of the fault layer
  std::vector<const char*> withheld;  // capabilities
  uint64_t slab_bytes = engine::KvMover::kSlabBytes;
  uint32_t lanes = 4;
  const char* spec = "mock";
};

struct KvRig {
  std::shared_ptr<Device> device;
  std::shared_ptr<Model> model;
  std::shared_ptr<Session> session;
  std::shared_ptr<kv::LaneTable> table;
  std::shared_ptr<engine::ReserveQueue> queue;
  std::shared_ptr<engine::KvMover> mover, whole;  // `whole` moves a lane at once

  explicit KvRig(const KvRigSettings& with = {}) {
    OpenSettings settings;
    settings.layers = with.faults.empty() ? "" : "fault:" + with.faults;
    device = *Device::open(with.spec, {{"speed", "0"}}, settings);
    LoadRequest request;
    request.lanes = with.lanes;
    request.cells = kRigCells;
    for (const char* name : with.withheld) request.withheld[name] = "withheld by the test";
    model = *Model::load(device, PackageForTest::make("mock", "mock-tiny"), request);
    session = *device->session();
    table = kv::LaneTable::make(with.lanes, kRigCells, static_cast<uint32_t>(model->generation()),
                                engine::KvMover::caps_of(*model));
    queue = std::make_shared<engine::ReserveQueue>(table);
    mover = *engine::KvMover::make(model, session, queue, with.slab_bytes);
    whole = *engine::KvMover::make(model, session, queue);
  }
  ~KvRig() { CHECK(table->check_integrity().ok()); }

  engine::MoveCall within(uint64_t ms) const { return {session->now_ns() + ms * 1'000'000, {}}; }
  engine::MoveCall call() const { return within(60'000); }

  kv::LaneRef reserve() { return *table->try_reserve(kRigCells, session->now_ns())->commit(); }
  // A lane with these cells; one job.
  kv::LaneRef filled(const Cells& cells) {
    const kv::LaneRef lane = reserve();
    CHECK(write(lane, cells, kRigCells, call()).ok());
    return lane;
  }

  engine::KvMover& by(uint32_t slab) { return slab > mover->slab_cells() ? *whole : *mover; }

  // In slabs of `slab` cells.
  Result<void> write(const kv::LaneRef& lane, const Cells& cells, uint32_t slab,
                     const engine::MoveCall& call) {
    size_t at = 0;
    return by(slab).write(
        lane, static_cast<uint32_t>(cells.size()), slab,
        [&](std::span<unsigned char> out) -> Result<void> {
          auto* words = reinterpret_cast<uint32_t*>(out.data());
          const size_t n = out.size() / sizeof(Cell);
          for (size_t i = 0; i < n; ++i, ++at) {
            words[i] = static_cast<uint32_t>(cells[at].position);
            words[n + i] = cells[at].mix;
          }
          return {};
        },
        call);
  }
  Result<Cells> read(const kv::LaneRef& lane, uint32_t slab, const engine::MoveCall& call) {
    Cells cells;
    CALRT_TRY_ASSIGN(const kv::LaneSnapshot now, table->snapshot(lane));
    CALRT_TRY(by(slab).read(
        lane, engine::KvMover::Cells::OWN, now.length, slab,
        [&](std::span<const unsigned char> in) -> Result<void> {
          const auto* words = reinterpret_cast<const uint32_t*>(in.data());
          const size_t n = in.size() / sizeof(Cell);
          for (size_t i = 0; i < n; ++i)
            cells.push_back({static_cast<int32_t>(words[i]), words[n + i]});
          return {};
        },
        call));
    return cells;
  }

  // What lies in a lane, by its number, whatever the table thinks of it. Not while jobs run.
  Cells raw(uint32_t lane, uint32_t n) {
    auto buffer = *device->alloc(n * sizeof(Cell), CALD_DOMAIN_HOST, 64);
    for (int time = 0; time < 2; ++time) {  // a fault may be met once here, too
      auto job = Job::submit_kv(session, model, {CALD_KV_READ, lane, 0, 0, 0, n, 0},
                                {buffer, 0, n * sizeof(Cell)}, within(60'000).deadline_ns);
      if (!job.ok() || !(*job)->wait(UINT64_MAX).ok()) continue;
      const auto* words = static_cast<const uint32_t*>(buffer->data());
      Cells cells;
      for (uint32_t i = 0; i < n; ++i)
        cells.push_back({static_cast<int32_t>(words[i]), words[n + i]});
      return cells;
    }
    return {};
  }
};

}  // namespace calrt::testing
