// SPDX-License-Identifier: Apache-2.0
// pack and unpack against a slow reference that looks every element up by its formula.
#include "layout/pack.h"

#include <algorithm>
#include <random>

#include "check.h"
#include "layout/convert.h"
#include "layout/layout.h"
#include "layout/loops.h"

using namespace calrt;

namespace {

using Shape = std::vector<uint64_t>;

struct Random {
  std::mt19937 engine{20261129};
  uint64_t in(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(engine);
  }
};

// Byte offset of the element with a row-major number.
uint64_t offset_of(const cald_layout& layout, const Shape& shape, uint64_t number) {
  uint64_t index[CALD_MAX_RANK] = {};
  for (size_t d = shape.size(); d-- > 0; number /= shape[d]) index[d] = number % shape[d];
  return layout_offset(layout, index);
}

// Both ways, with bytes beside the tensor and in its padding that must stay.
bool agrees(const cald_layout& layout, int32_t dtype, const Shape& shape) {
  const uint64_t size = dtype_size(dtype);
  const auto rank = static_cast<uint32_t>(shape.size());
  uint64_t elements = 1;
  for (uint64_t dim : shape) elements *= dim;
  std::vector<float> dense(elements), got(elements + 2, -1.0f);
  for (uint64_t i = 0; i < elements; ++i) dense[i] = static_cast<float>(i) * 0.37f - 5.0f;
  constexpr uint64_t kGuard = 64;
  std::vector<unsigned char> want(layout.bytes + 2 * kGuard, 0xa5), packed = want;
  for (uint64_t i = 0; i < elements; ++i) {
    const uint16_t half = bf16_from_f32(dense[i]);
    const void* element = dtype == CALD_F32 ? static_cast<const void*>(&dense[i]) : &half;
    std::memcpy(want.data() + kGuard + offset_of(layout, shape, i), element, size);
    if (dtype == CALD_BF16) dense[i] = f32_from_bf16(half);
  }
  if (!pack_f32(layout, dtype, shape.data(), rank, dense.data(), packed.data() + kGuard).ok())
    return false;
  if (!unpack_f32(layout, dtype, shape.data(), rank, want.data() + kGuard, got.data() + 1).ok())
    return false;
  const uint64_t row_elements = elements / std::max<uint64_t>(shape[0], 1);
  std::vector<float> one(row_elements);
  for (uint64_t row = 0; row < shape[0]; ++row) {
    const LayoutRow lies = layout_row(layout, row);
    const unsigned char* at = want.data() + kGuard + lies.offset;
    if (!unpack_f32(lies.layout, dtype, shape.data() + 1, rank - 1, at, one.data()).ok() ||
        !std::equal(one.begin(), one.end(),
                    dense.begin() + static_cast<ptrdiff_t>(row * row_elements)))
      return false;
  }
  return packed == want && std::equal(dense.begin(), dense.end(), got.begin() + 1) &&
         got.front() == -1.0f && got.back() == -1.0f;
}

TEST(device_tiles_of_logits) {
  for (int32_t dtype : {CALD_BF16, CALD_F32})
    for (uint64_t tile : {1, 8, 16, 32, 24})
      for (uint64_t rows : {1, 3, 4, 8, 17})
        for (uint64_t columns : {1, 15, 16, 64, 1000}) {
          const Shape shape{rows, columns}, padded{(rows + 15) / 16 * 16, columns + 8};
          for (const std::vector<int32_t>& order : std::vector<std::vector<int32_t>>{
                   {-1, 0, -2}, {0, -1, -2}, {-1, -2, 0}, {0, -2, -1}}) {
            CHECK(agrees(*tiled_layout(dtype, shape, 1, tile, order), dtype, shape));
            CHECK(agrees(*tiled_layout(dtype, shape, 1, tile, order, padded), dtype, shape));
          }
          CHECK(agrees(*tiled_layout(dtype, shape, 0, tile, {-1, 1, -2}), dtype, shape));
          CHECK(agrees(*linear_layout(dtype, shape, padded), dtype, shape));
          CHECK(agrees(*linear_layout(dtype, shape), dtype, shape));
        }
}

#ifdef __x86_64__  // where streaming stores exist
// Large enough for streaming stores and for panels whose rows take turns.
TEST(tiles_larger_than_the_caches) {
  // An odd row length, so that rows begin anywhere in a line; the last tile ends early.
  const uint64_t columns = 20016 - 3;
  uint64_t rows = 4;
  while (!outgrows_caches(rows * columns * sizeof(float))) rows *= 2;
  const Shape shape{rows, columns}, padded{(rows + 48) / 32 * 32, columns};
  for (uint64_t tile : {4, 8, 16, 24, 32, 500}) {
    CHECK(agrees(*tiled_layout(CALD_BF16, shape, 1, tile, {-1, 0, -2}), CALD_BF16, shape));
    CHECK(agrees(*tiled_layout(CALD_BF16, shape, 1, tile, {-1, 0, -2}, padded), CALD_BF16, shape));
  }
  const Shape boxes{3, rows / 2, columns};
  CHECK(agrees(*tiled_layout(CALD_BF16, boxes, 2, 16, {0, -1, 1, -2}), CALD_BF16, boxes));
  const Shape wide{1, rows * columns};  // one row, most of which is padding
  CHECK(agrees(*tiled_layout(CALD_BF16, wide, 1, 8, {-1, 0, -2}, {8, wide[1]}), CALD_BF16, wide));
  const Shape long_rows{rows, columns};
  CHECK(agrees(*linear_layout(CALD_BF16, long_rows, {rows, columns + 7}), CALD_BF16, long_rows));
}
#endif

TEST(random_tiled_layouts) {
  Random random;
  for (int round = 0; round < 1500; ++round) {
    const int32_t dtype = random.in(0, 1) != 0 ? CALD_BF16 : CALD_F32;
    Shape shape, padded;
    for (uint64_t rank = random.in(1, 4); shape.size() < rank;) {
      shape.push_back(random.in(1, random.in(0, 3) == 0 ? 40 : 6));
      padded.push_back(shape.back() + random.in(0, 2));
    }
    const auto axis = static_cast<uint32_t>(random.in(0, shape.size() - 1));
    std::vector<int32_t> order{-1, -2};
    for (size_t i = 0; i < shape.size(); ++i)
      if (i != axis) order.push_back(static_cast<int32_t>(i));
    std::shuffle(order.begin(), order.end(), random.engine);
    const auto layout = tiled_layout(dtype, shape, axis, random.in(1, 18), order, padded);
    CHECK(layout.ok() && agrees(*layout, dtype, shape));
  }
}

// What the formula of an axis allows beyond one tile: tiles of tiles, on several dimensions, in any
// order, the outermost with a modulus or without.
TEST(random_tiles_of_tiles) {
  Random random;
  for (int round = 0; round < 1500; ++round) {
    const int32_t dtype = random.in(0, 1) != 0 ? CALD_BF16 : CALD_F32;
    Shape shape;
    for (uint64_t rank = random.in(1, 3); shape.size() < rank;) shape.push_back(random.in(1, 30));
    std::vector<cald_axis> axes;
    for (uint32_t d = 0; d < shape.size(); ++d) {
      uint64_t divisor = 1;
      for (uint64_t levels = random.in(0, 2); levels-- > 0;) {
        const uint64_t tile = random.in(1, 5);
        axes.push_back({d, 0, divisor, tile, tile, 0});
        divisor *= tile;
      }
      const uint64_t extent = (shape[d] + divisor - 1) / divisor + random.in(0, 1);
      axes.push_back({d, 0, divisor, random.in(0, 1) != 0 ? extent : 0, extent, 0});
    }
    if (axes.size() > CALD_MAX_AXES) continue;
    std::shuffle(axes.begin(), axes.end(), random.engine);
    cald_layout layout{};
    uint64_t reach = dtype_size(dtype);
    for (size_t a = axes.size(); a-- > 0;) {
      axes[a].stride = reach;
      reach *= axes[a].extent;
      layout.axes[a] = axes[a];
    }
    layout.n_axes = static_cast<uint32_t>(axes.size());
    layout.bytes = reach;
    CHECK(agrees(layout, dtype, shape));
  }
}

// A modulus that no index reaches is none, also where it does not nest with the tiles.
TEST(a_modulus_beyond_the_dimension_takes_no_part) {
  for (uint64_t size : {17, 33, 40, 100})
    for (uint64_t modulus = size; modulus < size + 20; ++modulus) {
      cald_layout layout{};
      layout.n_axes = 2;
      layout.axes[0] = {0, 0, 16, 0, (size + 15) / 16, 4096};  // each tile also moves by a page
      layout.axes[1] = {0, 0, 1, modulus, size, sizeof(float)};
      layout.bytes = 4096 * layout.axes[0].extent;
      CHECK(agrees(layout, CALD_F32, {size}));
    }
}

TEST(random_strided_layouts) {
  Random random;
  int accepted = 0;
  for (int round = 0; round < 1500; ++round) {
    const int32_t dtype = random.in(0, 1) != 0 ? CALD_BF16 : CALD_F32;
    Shape shape, strides;
    for (uint64_t rank = random.in(1, 3); shape.size() < rank;) {
      shape.push_back(random.in(1, 9));
      strides.push_back(dtype_size(dtype) * random.in(0, 60));
    }
    const auto layout = strided_layout(dtype, shape, strides);
    if (!layout.ok()) continue;
    ++accepted;
    CHECK(agrees(*layout, dtype, shape));
  }
  CHECK(accepted > 300);
}

// Moved as blocks, not element by element: what keeps tiled logits as fast as linear ones.
TEST(common_layouts_are_few_loops) {
  const auto loops = [](const cald_layout& layout, const Shape& shape) {
    const auto nests = loop_nests(layout, 2, shape.data(), static_cast<uint32_t>(shape.size()));
    return nests.ok() && nests->size() == 1 ? (*nests)[0].loops.size() : 99;
  };
  const Shape one{1, 151936}, four{4, 151936};
  CHECK(loops(*linear_layout(CALD_BF16, four), four) == 1);
  CHECK(loops(*linear_layout(CALD_BF16, four, {4, 152064}), four) == 2);
  CHECK(loops(*tiled_layout(CALD_BF16, one, 1, 16, {-1, 0, -2}), one) == 1);
  CHECK(loops(*tiled_layout(CALD_BF16, four, 1, 16, {0, -1, -2}), four) == 1);
  CHECK(loops(*tiled_layout(CALD_BF16, four, 1, 16, {-1, 0, -2}), four) == 3);
  CHECK(loops(*tiled_layout(CALD_BF16, four, 0, 16, {-1, 1, -2}), four) == 2);
}

Status code_of(const Result<void>& result) {
  return result.ok() ? Status::OK : result.error().code;
}

TEST(malformed_layouts_are_refused_before_a_byte_moves) {
  const uint64_t shape[] = {4, 32};
  std::vector<float> dense(128, 1.0f), memory(4096, 2.0f);
  const auto both = [&](const cald_layout& layout, int32_t dtype = CALD_F32) {
    const Status unpacked =
        code_of(unpack_f32(layout, dtype, shape, 2, memory.data(), dense.data()));
    const Status packed = code_of(pack_f32(layout, dtype, shape, 2, dense.data(), memory.data()));
    CHECK(unpacked == packed);
    CHECK(dense == std::vector<float>(128, 1.0f) && memory == std::vector<float>(4096, 2.0f));
    return unpacked;
  };
  const cald_layout good = *tiled_layout(CALD_F32, {4, 32}, 1, 16, {-1, 0, -2});
  CHECK(both(undetermined_layout(512)) == Status::UNSUPPORTED);
  CHECK(both(good, CALD_I32) == Status::DTYPE_MISMATCH);
  CHECK(both(good, 77) == Status::DTYPE_MISMATCH);
  cald_layout bad = good;
  bad.n_axes = CALD_MAX_AXES + 1;
  CHECK(both(bad) == Status::SHAPE_MISMATCH);
  bad = good;
  bad.axes[1].dim = 2;
  CHECK(both(bad) == Status::SHAPE_MISMATCH);
  bad = good;
  bad.axes[0].divisor = 0;
  CHECK(both(bad) == Status::SHAPE_MISMATCH);
  bad = good;
  bad.axes[1].stride += 2;
  CHECK(both(bad) == Status::SHAPE_MISMATCH);
  bad = good;
  bad.bytes -= 4;
  CHECK(both(bad) == Status::OUT_OF_RANGE);
  bad = good;
  bad.axes[0].stride = UINT64_MAX - 3;
  CHECK(both(bad) == Status::OUT_OF_RANGE);
}

TEST(what_overlaps_can_be_read_and_not_written) {
  const uint64_t shape[] = {2, 3};
  cald_layout layout{};
  layout.n_axes = 2;
  layout.bytes = 12;
  layout.axes[0] = {0, 0, 1, 0, 2, 0};
  layout.axes[1] = {1, 0, 1, 0, 3, 4};
  const float row[] = {1, 2, 3};
  float out[6] = {};
  CHECK(unpack_f32(layout, CALD_F32, shape, 2, row, out).ok());
  CHECK(out[0] == 1 && out[3] == 1 && out[5] == 3);
  float target[3] = {};
  // The extents say otherwise: it is the shape that counts.
  layout.axes[0].extent = 1;
  CHECK(code_of(pack_f32(layout, CALD_F32, shape, 2, out, target)) == Status::SHAPE_MISMATCH);
  CHECK(target[0] == 0);
}

TEST(tiles_that_do_not_nest_are_refused) {
  const uint64_t shape[] = {12};
  cald_layout layout{};
  layout.n_axes = 2;
  layout.bytes = 4096;
  layout.axes[0] = {0, 0, 2, 0, 6, 64};
  layout.axes[1] = {0, 0, 1, 3, 3, 4};
  float memory[1024] = {}, out[12];
  CHECK(code_of(unpack_f32(layout, CALD_F32, shape, 1, memory, out)) == Status::UNSUPPORTED);
}

TEST(empty_scalar_and_huge_shapes) {
  float in = 2.5f, out = 0;
  cald_layout layout{};
  layout.bytes = 4;
  CHECK(unpack_f32(layout, CALD_F32, nullptr, 0, &in, &out).ok() && out == 2.5f);
  const uint64_t none[] = {3, 0};
  layout.n_axes = 2;
  layout.axes[0] = {0, 0, 1, 0, 3, 4};
  layout.axes[1] = {1, 0, 1, 0, 1, 4};
  CHECK(unpack_f32(layout, CALD_F32, none, 2, nullptr, nullptr).ok());
  CHECK(pack_f32(layout, CALD_F32, none, 2, nullptr, nullptr).ok());
  const uint64_t huge[] = {uint64_t{1} << 40, uint64_t{1} << 40};
  CHECK(code_of(unpack_f32(layout, CALD_F32, huge, 2, &in, &out)) == Status::OUT_OF_RANGE);
  CHECK(code_of(unpack_f32(layout, CALD_F32, huge, CALD_MAX_RANK + 1, &in, &out)) ==
        Status::SHAPE_MISMATCH);
}

}  // namespace
