// SPDX-License-Identifier: Apache-2.0
// The cpu driver's KV operations on bytes: random ones against a cell-wise reference of all lanes,
// so that a cell that should not have moved is seen; and refusals.
#include <cmath>

#include "check.h"
#include "cpu_kv_world.h"

using namespace calrt::testing;

namespace {

// All lanes, cell by cell: what each operation is, in its plainest words.
class Reference {
 public:
  Reference(const KvClient& kv, const TinyModel& tiny) : kv_(&kv), shape_(tiny.shape()) {
    const std::vector<std::string> part(kv.info.cells, std::string(kv.piece(), '\0'));
    lanes.assign(kv.info.lanes, LaneImage(size_t{2} * kv.info.n_layers, part));
  }
  void clear(const KvAsk& a) {
    for (auto& part : lanes[a.lane])
      for (uint32_t i = 0; i < a.n; ++i) part[a.cell + i].assign(kv_->piece(), '\0');
  }
  void copy(const KvAsk& a) {
    const LaneImage from = lanes[a.lane];
    for (size_t p = 0; p < from.size(); ++p)
      for (uint32_t i = 0; i < a.n; ++i) lanes[a.to_lane][p][a.to_cell + i] = from[p][a.cell + i];
  }
  void rotate(const KvAsk& a) {
    for (uint32_t l = 0; l < kv_->info.n_layers && a.delta != 0; ++l)
      for (uint32_t i = 0; i < a.n; ++i) turn(lanes[a.lane][size_t{2} * l][a.cell + i], a.delta);
  }

  std::vector<LaneImage> lanes;

 private:
  void turn(std::string& cell, int32_t delta) const {
    const bool bf16 = kv_->info.dtype == CALD_BF16;
    const uint32_t dim = shape_.head_dim;
    std::vector<float> x(size_t{shape_.kv_heads} * dim);
    std::vector<uint16_t> halves(x.size());
    std::memcpy(bf16 ? static_cast<void*>(halves.data()) : x.data(), cell.data(), cell.size());
    for (size_t i = 0; bf16 && i < x.size(); ++i) x[i] = calrt::f32_from_bf16(halves[i]);
    for (uint32_t h = 0; h < shape_.kv_heads; ++h)
      for (uint32_t i = 0; i < dim / 2; ++i) {
        const double angle = delta * std::pow(10000.0, -2.0 * i / dim);
        const auto c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
        const bool half = shape_.rope_style == CALD_ROPE_HALF;
        float& a = x[h * dim + (half ? i : 2 * i)];
        float& b = x[h * dim + (half ? i + dim / 2 : 2 * i + 1)];
        const float was_a = a, was_b = b;
        a = was_a * c - was_b * s;
        b = was_a * s + was_b * c;
      }
    for (size_t i = 0; bf16 && i < x.size(); ++i) halves[i] = calrt::bf16_from_f32(x[i]);
    std::memcpy(cell.data(), bf16 ? static_cast<const void*>(halves.data()) : x.data(),
                cell.size());
  }

  const KvClient* kv_;
  TinyShape shape_;
};

bool all_as(KvClient& kv, const Reference& reference) {
  for (uint32_t lane = 0; lane < kv.info.lanes; ++lane)
    if (kv.read(lane) != reference.lanes[lane]) return false;
  return true;
}

KvAsk some_ask(const KvClient& kv, std::mt19937& random) {
  constexpr uint32_t kOps[] = {CALD_KV_CLEAR,  CALD_KV_LANE_COPY, CALD_KV_RANGE_COPY,
                               CALD_KV_ROTATE, CALD_KV_READ,      CALD_KV_WRITE};
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  KvAsk ask;
  ask.op = kOps[below(6)];
  ask.n = 1 + below(below(4) == 0 ? kv.info.cells : 12);
  ask.lane = below(kv.info.lanes);
  ask.to_lane = below(kv.info.lanes);
  ask.cell = below(kv.info.cells - ask.n + 1);
  ask.to_cell = below(kv.info.cells - ask.n + 1);
  // Overlaps, and ranges that lie alike in their panels, come seldom by chance.
  if (below(2) == 0) ask.to_lane = ask.lane;
  if (below(3) == 0 && ask.cell >= 32) ask.to_cell = ask.cell - 32;
  if (below(3) == 0 && ask.cell + 32 + ask.n <= kv.info.cells) ask.to_cell = ask.cell + 32;
  if (ask.op == CALD_KV_LANE_COPY) ask.cell = ask.to_cell = 0;
  ask.delta = static_cast<int32_t>(below(200)) - 100;
  return ask;
}

void random_operations(const Setting& setting, uint32_t count) {
  KvWorld world(setting, 150);
  KvClient& kv = world.kv;
  CHECK(kv.info.ops == 63 && kv.info.lanes == 3 && kv.info.cells == 150);
  Reference reference(kv, world.tiny);
  CHECK(all_as(kv, reference));
  std::mt19937 random(setting.head_dim + setting.threads);
  for (uint32_t lane = 0; lane < kv.info.lanes; ++lane) {
    reference.lanes[lane] = some_cells(kv, kv.info.cells, random);
    CHECK(kv.write(lane, 0, reference.lanes[lane]) == CALD_OK);
  }
  for (uint32_t i = 0; i < count && failures() == 0; ++i) {
    const KvAsk ask = some_ask(kv, random);
    kv.offset = i % 3 == 0 ? random() % 70 : 0;
    if (ask.op == CALD_KV_CLEAR) reference.clear(ask);
    if (ask.op == CALD_KV_LANE_COPY || ask.op == CALD_KV_RANGE_COPY) reference.copy(ask);
    if (ask.op == CALD_KV_ROTATE) reference.rotate(ask);
    if (ask.op == CALD_KV_WRITE) {
      const LaneImage cells = some_cells(kv, ask.n, random);
      for (size_t p = 0; p < cells.size(); ++p)
        std::copy(cells[p].begin(), cells[p].end(),
                  reference.lanes[ask.lane][p].begin() + ask.cell);
      CHECK(kv.write(ask.lane, ask.cell, cells) == CALD_OK);
    } else if (ask.op == CALD_KV_READ) {
      const LaneImage part = kv.read(ask.lane, ask.cell, ask.n);
      for (size_t p = 0; p < part.size(); ++p)
        CHECK(std::equal(part[p].begin(), part[p].end(),
                         reference.lanes[ask.lane][p].begin() + ask.cell));
    } else {
      CHECK(kv.run(ask) == CALD_OK);
    }
    CHECK(all_as(kv, reference));
    if (failures() != 0)
      std::fprintf(stderr, "step %u: op %u lane %u cell %u n %u to %u, %u delta %d\n", i, ask.op,
                   ask.lane, ask.cell, ask.n, ask.to_lane, ask.to_cell, ask.delta);
  }
}

constexpr Setting kPlain = {2, 8, CALD_BF16, CALD_ROPE_INTERLEAVED, 1, ""};

}  // namespace

TEST(random_operations_bf16) {
  random_operations({2, 8, CALD_BF16, CALD_ROPE_INTERLEAVED, 1, ""}, 150);
  random_operations({3, 64, CALD_BF16, CALD_ROPE_HALF, 2, ""}, 100);
  random_operations({1, 80, CALD_BF16, CALD_ROPE_INTERLEAVED, 2, "portable"}, 100);
  random_operations({1, 6, CALD_BF16, CALD_ROPE_HALF, 1, "portable"}, 100);
}

TEST(random_operations_f32) {
  random_operations({2, 8, CALD_F32, CALD_ROPE_HALF, 1, ""}, 150);
  random_operations({1, 80, CALD_F32, CALD_ROPE_INTERLEAVED, 2, ""}, 100);
  random_operations({2, 64, CALD_F32, CALD_ROPE_INTERLEAVED, 1, "portable"}, 60);
}

// What leaves the caches goes by other stores: the whole of a large lane, and its middle.
TEST(a_large_state_is_the_same) {
  for (const char* isa : {"", "portable"}) {
    KvWorld world({4, 128, CALD_BF16, CALD_ROPE_HALF, 2, isa}, 8192);
    KvClient& kv = world.kv;
    CHECK(kv.info.bytes_per_cell * kv.info.cells == uint64_t{32} << 20);
    std::mt19937 random(3);
    LaneImage image = some_cells(kv, kv.info.cells, random);
    CHECK(kv.write(0, 0, image) == CALD_OK && kv.read(0) == image);
    CHECK(kv.run({CALD_KV_RANGE_COPY, 0, 11, 8000, 1, 43}) == CALD_OK);
    CHECK(kv.run({CALD_KV_RANGE_COPY, 1, 43, 8000, 2, 54}) == CALD_OK);
    for (auto& part : image) part = {part.begin() + 11, part.begin() + 8011};
    CHECK(kv.read(2, 54, 8000) == image);
  }
}

TEST(refusals_name_the_field_and_change_nothing) {
  KvWorld world(kPlain, 100);
  KvClient& kv = world.kv;
  std::mt19937 random(5);
  Reference reference(kv, world.tiny);
  reference.lanes[0] = some_cells(kv, 100, random);
  CHECK(kv.write(0, 0, reference.lanes[0]) == CALD_OK);
  const struct {
    KvAsk ask;
    cald_status code;
    const char* says;
  } cases[] = {
      {{0, 0, 0, 1}, CALD_INVALID_ARGUMENT, "op=0: exactly one"},
      {{CALD_KV_CLEAR | CALD_KV_ROTATE, 0, 0, 1}, CALD_INVALID_ARGUMENT, "op=0x9"},
      {{64, 0, 0, 1}, CALD_INVALID_ARGUMENT, "op=0x40"},
      {{CALD_KV_CLEAR, 3, 0, 1}, CALD_OUT_OF_RANGE, "lane=3, the model has 3 lanes"},
      {{CALD_KV_CLEAR, 0, 0, 0}, CALD_OUT_OF_RANGE, "0 cells from cell=0"},
      {{CALD_KV_ROTATE, 0, 99, 2}, CALD_OUT_OF_RANGE, "2 cells from cell=99 on, a lane has 100"},
      {{CALD_KV_CLEAR, 0, UINT32_MAX, 2}, CALD_OUT_OF_RANGE, "cell=4294967295"},
      {{CALD_KV_LANE_COPY, 0, 0, 1, 3}, CALD_OUT_OF_RANGE, "to_lane=3"},
      {{CALD_KV_RANGE_COPY, 0, 0, 2, 1, 99}, CALD_OUT_OF_RANGE, "to_cell=99"},
      {{CALD_KV_READ, 0, 0, 101}, CALD_OUT_OF_RANGE, "101 cells"}};
  for (const auto& c : cases) {
    CHECK(kv.run(c.ask) == c.code);
    if (kv.failure.text.find(c.says) == std::string::npos) {
      CHECK(false);
      std::fprintf(stderr, "\"%s\" lacks \"%s\"\n", kv.failure.text.c_str(), c.says);
    }
  }
  for (const uint32_t op : {CALD_KV_READ, CALD_KV_WRITE}) {
    cald_kv_desc good = kv.desc({op, 0, 0, 4});
    cald_kv_desc bad = good;
    bad.buffer = nullptr;
    CHECK(kv.run_desc(bad) == CALD_INVALID_HANDLE);
    bad = good;
    bad.bytes -= 1;
    CHECK(kv.run_desc(bad) == CALD_SHAPE_MISMATCH);
    CHECK(kv.failure.text.find("4 cells of 128 bytes are 512") != std::string::npos);
    bad = good;
    bad.offset = UINT64_MAX;
    CHECK(kv.run_desc(bad) == CALD_OUT_OF_RANGE);
    Device other;
    cald_buffer* foreign = nullptr;
    cpu_table().buffer_alloc(other.device, CALD_DOMAIN_HOST, 4096, 64, &foreign, nullptr);
    bad = good;
    bad.buffer = foreign;
    CHECK(kv.run_desc(bad) == CALD_INVALID_HANDLE);
    cpu_table().buffer_free(foreign);
    bad = good;
    bad.model = nullptr;
    CHECK(kv.run_desc(bad) == CALD_INVALID_HANDLE);
    bad = good;
    bad.struct_size = 8;
    CHECK(kv.run_desc(bad) == CALD_INVALID_ARGUMENT);
  }
  CHECK(all_as(kv, reference));
}
