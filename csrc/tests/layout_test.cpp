// SPDX-License-Identifier: Apache-2.0
// Layouts against a slow reference that lays elements out one by one, and the worked examples.
#include "layout/layout.h"

#include <algorithm>
#include <map>
#include <random>

#include "check.h"

using namespace calrt;

namespace {

using Shape = std::vector<uint64_t>;

uint64_t offset_of(const cald_layout& layout, const Shape& index) {
  return layout_offset(layout, index.data());
}

// Calls visit(index) for every index of a shape, last dimension fastest.
template <class Visit>
void for_each_index(const Shape& shape, Visit&& visit) {
  Shape index(shape.size(), 0);
  for (;;) {
    visit(index);
    size_t dim = shape.size();
    while (dim > 0 && ++index[dim - 1] == shape[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

// The reference: walks the whole padded, tiled block in storage order and notes where each logical
// index comes to stand.
std::map<Shape, uint64_t> reference_tiled(uint64_t element, const Shape& padded, uint32_t axis,
                                          uint64_t tile, const std::vector<int32_t>& order) {
  const uint64_t outer = (padded[axis] + tile - 1) / tile;
  Shape extents;
  for (int32_t part : order) {
    extents.push_back(part == -1 ? outer : part == -2 ? tile : padded[static_cast<size_t>(part)]);
  }
  std::map<Shape, uint64_t> out;
  uint64_t at = 0;
  for_each_index(extents, [&](const Shape& place) {
    Shape index(padded.size(), 0);
    for (size_t k = 0; k < order.size(); ++k) {
      if (order[k] == -1) {
        index[axis] += place[k] * tile;
      } else if (order[k] == -2) {
        index[axis] += place[k];
      } else {
        index[static_cast<size_t>(order[k])] = place[k];
      }
    }
    out[index] = at;
    at += element;
  });
  return out;
}

struct Random {
  std::mt19937 engine{20261129};
  uint64_t in(uint64_t low, uint64_t high) {
    return std::uniform_int_distribution<uint64_t>(low, high)(engine);
  }
};

constexpr int32_t kDtypes[] = {CALD_F32, CALD_BF16, CALD_I8, CALD_I64};

TEST(worked_examples_of_the_specification) {
  const auto padded = linear_layout(CALD_BF16, {2, 3, 5}, {2, 3, 8});
  CHECK(padded.ok() && offset_of(*padded, {1, 2, 4}) == 88 && padded->bytes == 96);

  const auto tiled = tiled_layout(CALD_BF16, {4, 151936}, 1, 16, {-1, 0, -2});
  CHECK(tiled.ok() && offset_of(*tiled, {2, 1000}) == 8016 && tiled->bytes == 1215488);
  const auto rows16 = tiled_layout(CALD_BF16, {4, 151936}, 1, 16, {-1, 0, -2}, {16, 151936});
  CHECK(rows16.ok() && offset_of(*rows16, {2, 1000}) == 31824 && rows16->bytes == 4861952);
  const auto ragged = tiled_layout(CALD_BF16, {4, 1000}, 1, 16, {-1, 0, -2});
  CHECK(ragged.ok() && ragged->bytes == 8064);

  const auto kv = strided_layout(CALD_BF16, {48, 2, 1, 40960, 4, 128},
                                 {83886080, 41943040, 41943040, 1024, 256, 2});
  CHECK(kv.ok() && offset_of(*kv, {1, 0, 0, 5, 2, 7}) == 83891726 && kv->bytes == 4026531840);
}

TEST(random_linear_layouts_agree_with_the_reference) {
  Random random;
  for (int round = 0; round < 600; ++round) {
    const int32_t dtype = kDtypes[random.in(0, 3)];
    Shape shape, padded;
    for (uint64_t rank = random.in(1, 5); shape.size() < rank;) {
      shape.push_back(random.in(1, 5));
      padded.push_back(shape.back() + random.in(0, 3));
    }
    const auto layout = linear_layout(dtype, shape, padded);
    CHECK(layout.ok());
    if (!layout.ok()) continue;
    uint64_t bytes = dtype_size(dtype);
    for (uint64_t dim : padded) bytes *= dim;
    CHECK(layout->bytes == bytes);
    for (size_t i = 0; i < shape.size(); ++i)  // what an axis holds, not what it is padded to
      CHECK(layout->axes[i].extent == shape[i]);
    // Numbers the padded block: the offset is the element's number times its size.
    uint64_t number = 0;
    bool agree = true;
    for_each_index(padded, [&](const Shape& index) {
      const bool inside =
          std::equal(index.begin(), index.end(), shape.begin(), std::less<uint64_t>());
      agree = agree && (!inside || offset_of(*layout, index) == number * dtype_size(dtype));
      ++number;
    });
    CHECK(agree);
    const uint64_t row = shape[0] - 1;
    CHECK(layout_row(*layout, row).layout.bytes == bytes - bytes / padded[0] * row);
    const auto strides = plain_strides(*layout, static_cast<uint32_t>(shape.size()));
    CHECK(strides && strides->back() == dtype_size(dtype));
  }
}

TEST(random_tiled_layouts_agree_with_the_reference) {
  Random random;
  int with_strides = 0;
  for (int round = 0; round < 800; ++round) {
    const int32_t dtype = kDtypes[random.in(0, 3)];
    Shape shape, padded;
    for (uint64_t rank = random.in(1, 4); shape.size() < rank;) {
      shape.push_back(random.in(1, 6));
      padded.push_back(shape.back() + random.in(0, 2));
    }
    const auto axis = static_cast<uint32_t>(random.in(0, shape.size() - 1));
    const uint64_t tile = random.in(1, 5);
    std::vector<int32_t> order{-1, -2};
    for (size_t i = 0; i < shape.size(); ++i) {
      if (i != axis) order.push_back(static_cast<int32_t>(i));
    }
    std::shuffle(order.begin(), order.end(), random.engine);
    const auto layout = tiled_layout(dtype, shape, axis, tile, order, padded);
    CHECK(layout.ok());
    if (!layout.ok()) continue;
    const auto reference = reference_tiled(dtype_size(dtype), padded, axis, tile, order);
    const auto strides = plain_strides(*layout, static_cast<uint32_t>(shape.size()));
    with_strides += strides.has_value();
    bool agree = layout->bytes == reference.size() * dtype_size(dtype);
    for_each_index(shape, [&](const Shape& index) {
      const uint64_t offset = offset_of(*layout, index);
      agree = agree && offset == reference.at(index);
      if (!strides) return;
      uint64_t strided = 0;
      for (size_t i = 0; i < index.size(); ++i) strided += index[i] * (*strides)[i];
      agree = agree && strided == offset;
    });
    CHECK(agree);
    CHECK(check_injective(*layout, dtype_size(dtype)).ok());
  }
  CHECK(with_strides > 50);
}

TEST(injective_layouts_put_no_two_elements_over_each_other) {
  Random random;
  int accepted = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const int32_t dtype = kDtypes[random.in(0, 2)];
    const uint64_t size = dtype_size(dtype);
    Shape shape, strides;
    for (uint64_t rank = random.in(1, 3); shape.size() < rank;) {
      shape.push_back(random.in(1, 4));
      strides.push_back(size * random.in(0, 14));
    }
    const auto layout = strided_layout(dtype, shape, strides);
    std::vector<uint64_t> offsets;
    for_each_index(shape, [&](const Shape& index) {
      uint64_t offset = 0;
      for (size_t i = 0; i < index.size(); ++i) offset += index[i] * strides[i];
      offsets.push_back(offset);
    });
    std::sort(offsets.begin(), offsets.end());
    const bool apart = std::adjacent_find(offsets.begin(), offsets.end()) == offsets.end();
    if (layout.ok()) {
      ++accepted;
      CHECK(apart);
      CHECK(layout->bytes == offsets.back() + size);
    } else {
      ++refused;
      CHECK(layout.error().where == "injective");
    }
  }
  CHECK(accepted > 500 && refused > 500);
}

TEST(bad_layouts_are_refused) {
  const Shape huge(3, kMaxDim);
  CHECK(linear_layout(CALD_F32, huge).error().code == Status::OUT_OF_RANGE);
  CHECK(!linear_layout(CALD_F32, Shape(8, kMaxDim)).ok());
  CHECK(!linear_layout(CALD_F32, {}).ok());
  CHECK(!linear_layout(CALD_F32, Shape(9, 1)).ok());
  CHECK(!linear_layout(CALD_F32, {0}).ok());
  CHECK(!linear_layout(CALD_F32, {kMaxDim + 1}).ok());
  CHECK(!linear_layout(CALD_F32, {4}, {1}).ok());
  CHECK(!linear_layout(CALD_F32, {4}, {4, 4}).ok());
  CHECK(!linear_layout(99, {4}).ok());
  CHECK(linear_layout(CALD_I8, {uint64_t{1} << 24, uint64_t{1} << 24}).ok());
  CHECK(!linear_layout(CALD_I8, {uint64_t{1} << 24, (uint64_t{1} << 24) + 1}).ok());

  CHECK(!tiled_layout(CALD_F32, {4, 4}, 2, 2, {0, -1, -2}).ok());
  CHECK(!tiled_layout(CALD_F32, {4, 4}, 1, 0, {0, -1, -2}).ok());
  CHECK(!tiled_layout(CALD_F32, {4, 4}, 1, 65537, {0, -1, -2}).ok());
  CHECK(!tiled_layout(CALD_F32, {4, 4}, 1, 2, {-1, 0, -1}).ok());
  CHECK(!tiled_layout(CALD_F32, {4, 4}, 1, 2, {1, -1, -2}).ok());
  CHECK(!tiled_layout(CALD_F32, Shape(8, 1), 0, 1, {-1, -2, 1, 2, 3, 4, 5, 6, 7}).ok());

  CHECK(strided_layout(CALD_BF16, {16, 512}, {1022, 2}).error().where == "injective");
  CHECK(strided_layout(CALD_BF16, {4}, {0}).error().where == "injective");
  CHECK(strided_layout(CALD_BF16, {1}, {0}).ok());
  CHECK(strided_layout(CALD_F32, {4}, {6}).error().where != "injective");
  CHECK(!strided_layout(CALD_F32, {2, 2}, {UINT64_MAX - 3, 4}).ok());
  CHECK(!strided_layout(CALD_F32, {2, 2}, {8, 4}, 12).ok());
  CHECK(strided_layout(CALD_F32, {2, 2}, {8, 4}, 64)->bytes == 64);
}

TEST(plain_strides_tell_what_numpy_can_show) {
  CHECK(!plain_strides(undetermined_layout(64), 1));
  CHECK(!plain_strides(*tiled_layout(CALD_F32, {4, 32}, 1, 16, {-1, 0, -2}), 2));
  CHECK(plain_strides(*tiled_layout(CALD_F32, {4, 16}, 1, 16, {-1, 0, -2}), 2) ==
        std::vector<uint64_t>({64, 4}));
  CHECK(plain_strides(*tiled_layout(CALD_F32, {1, 32}, 1, 16, {0, -1, -2}), 2) ==
        std::vector<uint64_t>({128, 4}));
  auto pairs = *linear_layout(CALD_F32, {8});  // two indices lie in one place
  pairs.axes[0].divisor = 2;
  CHECK(!plain_strides(pairs, 1));
}

TEST(dtypes) {
  CHECK(dtype_size(CALD_BF16) == 2 && dtype_size(CALD_I64) == 8 && dtype_size(0) == 0);
  for (int32_t dtype = CALD_F32; dtype <= CALD_I64; ++dtype) {
    CHECK(dtype_from_name(dtype_name(dtype)) == dtype);
  }
  CHECK(dtype_from_name("fp16") == 0 && std::string(dtype_name(77)) == "?");
}

}  // namespace
