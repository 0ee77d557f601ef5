// SPDX-License-Identifier: Apache-2.0
#include "layout/layout.h"

#include <algorithm>
#include <array>
#include <cinttypes>

#include "base/checked.h"

namespace calrt {
namespace {

struct DtypeRow {
  int32_t dtype;
  uint32_t bytes;
  const char* name;
};
constexpr DtypeRow kDtypes[] = {
    {CALD_F32, 4, "f32"}, {CALD_BF16, 2, "bf16"}, {CALD_F16, 2, "f16"}, {CALD_I8, 1, "i8"},
    {CALD_U8, 1, "u8"},   {CALD_I16, 2, "i16"},   {CALD_U16, 2, "u16"}, {CALD_I32, 4, "i32"},
    {CALD_U32, 4, "u32"}, {CALD_I64, 8, "i64"},
};
constexpr uint64_t kMaxTile = 65536;

// What every layout has: an element size and a shape in range.
struct Extents {
  uint64_t element = 0;
  std::vector<uint64_t> padded;  // per dimension, >= the dim
};

Result<Extents> check_extents(int32_t dtype, const std::vector<uint64_t>& shape,
                              const std::vector<uint64_t>& padded) {
  Extents out;
  out.element = dtype_size(dtype);
  if (out.element == 0) return fail(Status::DTYPE_MISMATCH, "dtype %d is not known", dtype);
  if (shape.empty() || shape.size() > CALD_MAX_RANK) {
    return fail(Status::SHAPE_MISMATCH, "rank %zu, wanted 1 to %d", shape.size(), CALD_MAX_RANK);
  }
  if (!padded.empty() && padded.size() != shape.size()) {
    return fail(Status::SHAPE_MISMATCH, "padded has %zu entries, the shape has %zu", padded.size(),
                shape.size());
  }
  out.padded = padded.empty() ? shape : padded;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 || shape[i] > kMaxDim) {
      return fail(Status::OUT_OF_RANGE, "dim %zu is %" PRIu64 ", wanted 1 to %" PRIu64, i, shape[i],
                  kMaxDim);
    }
    if (out.padded[i] < shape[i] || out.padded[i] > kMaxDim) {
      return fail(Status::OUT_OF_RANGE,
                  "padded[%zu] is %" PRIu64 ", wanted %" PRIu64 " (the dim) to %" PRIu64, i,
                  out.padded[i], shape[i], kMaxDim);
    }
  }
  return out;
}

Error too_large() {
  return fail(Status::OUT_OF_RANGE, "the allocation is over 2^48 bytes or overflows");
}

void append_axis(cald_layout* layout, uint32_t dim, uint64_t divisor, uint64_t modulus,
                 uint64_t extent, uint64_t stride) {
  layout->axes[layout->n_axes++] = cald_axis{dim, 0, divisor, modulus, extent, stride};
}

}  // namespace

uint32_t dtype_size(int32_t dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.bytes;
  }
  return 0;
}

const char* dtype_name(int32_t dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

int32_t dtype_from_name(const std::string& name) {
  for (const DtypeRow& row : kDtypes) {
    if (name == row.name) return row.dtype;
  }
  return 0;
}

Result<cald_layout> linear_layout(int32_t dtype, const std::vector<uint64_t>& shape,
                                  const std::vector<uint64_t>& padded) {
  CALRT_TRY_ASSIGN(Extents extents, check_extents(dtype, shape, padded));
  std::array<uint64_t, CALD_MAX_RANK> strides{};
  uint64_t reach = extents.element;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = reach;
    if (!checked_mul(reach, extents.padded[i], &reach) || reach > kMaxAllocation) {
      return too_large();
    }
  }
  cald_layout layout{};
  layout.bytes = reach;
  for (size_t i = 0; i < shape.size(); ++i) {
    append_axis(&layout, static_cast<uint32_t>(i), 1, 0, shape[i], strides[i]);
  }
  return layout;
}

Result<cald_layout> strided_layout(int32_t dtype, const std::vector<uint64_t>& shape,
                                   const std::vector<uint64_t>& strides, uint64_t bytes) {
  CALRT_TRY_ASSIGN(Extents extents, check_extents(dtype, shape, {}));
  if (strides.size() != shape.size()) {
    return fail(Status::SHAPE_MISMATCH, "%zu strides for %zu dimensions", strides.size(),
                shape.size());
  }
  cald_layout layout{};
  uint64_t reach = extents.element;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (strides[i] % extents.element != 0) {
      return fail(Status::OUT_OF_RANGE,
                  "stride %" PRIu64 " of axis %zu is not a multiple of the element's %" PRIu64
                  " bytes",
                  strides[i], i, extents.element);
    }
    uint64_t step = 0;
    if (!checked_mul(shape[i] - 1, strides[i], &step) || !checked_add(reach, step, &reach) ||
        reach > kMaxAllocation) {
      return too_large();
    }
    append_axis(&layout, static_cast<uint32_t>(i), 1, 0, shape[i], strides[i]);
  }
  if (bytes != 0 && bytes < reach) {
    return fail(Status::OUT_OF_RANGE,
                "bytes is %" PRIu64 ", the strides reach over %" PRIu64 " bytes", bytes, reach);
  }
  layout.bytes = bytes != 0 ? bytes : reach;
  if (layout.bytes > kMaxAllocation) return too_large();
  CALRT_TRY(check_injective(layout, extents.element));
  return layout;
}

Result<cald_layout> tiled_layout(int32_t dtype, const std::vector<uint64_t>& shape, uint32_t axis,
                                 uint64_t size, const std::vector<int32_t>& order,
                                 const std::vector<uint64_t>& padded) {
  CALRT_TRY_ASSIGN(Extents extents, check_extents(dtype, shape, padded));
  if (shape.size() + 1 > CALD_MAX_AXES) {
    return fail(Status::SHAPE_MISMATCH, "a tiled layout takes rank 1 to %d, got %zu",
                CALD_MAX_AXES - 1, shape.size());
  }
  if (axis >= shape.size()) {
    return fail(Status::OUT_OF_RANGE, "tile axis %u of rank %zu", axis, shape.size());
  }
  if (size == 0 || size > kMaxTile) {
    return fail(Status::OUT_OF_RANGE, "tile size is %" PRIu64 ", wanted 1 to %" PRIu64, size,
                kMaxTile);
  }
  // The permutation names every dimension but the tiled one, and its two parts.
  std::vector<int32_t> wanted{-2, -1};
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i != axis) wanted.push_back(static_cast<int32_t>(i));
  }
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != wanted) {
    return fail(Status::OUT_OF_RANGE, "order is not a permutation of o, i and the %zu untiled axes",
                shape.size() - 1);
  }
  const uint64_t outer = ceil_div(extents.padded[axis], size);
  cald_layout layout{};
  layout.n_axes = static_cast<uint32_t>(order.size());
  uint64_t reach = extents.element;
  for (size_t k = order.size(); k-- > 0;) {
    cald_axis& out = layout.axes[k];
    const int32_t part = order[k];
    out.dim = part < 0 ? axis : static_cast<uint32_t>(part);
    out.divisor = part == -1 ? size : 1;
    out.modulus = part == -2 ? size : 0;
    out.extent = part == -1 ? outer : part == -2 ? size : extents.padded[out.dim];
    out.stride = reach;
    if (!checked_mul(reach, out.extent, &reach) || reach > kMaxAllocation) return too_large();
  }
  layout.bytes = reach;
  return layout;
}

cald_layout undetermined_layout(uint64_t bytes) {
  cald_layout layout{};
  layout.undetermined = 1;
  layout.bytes = bytes;
  return layout;
}

uint64_t layout_offset(const cald_layout& layout, const uint64_t* index) {
  uint64_t offset = 0;
  for (uint32_t k = 0; k < layout.n_axes; ++k) {
    const cald_axis& axis = layout.axes[k];
    uint64_t part = index[axis.dim] / axis.divisor;
    if (axis.modulus != 0) part %= axis.modulus;
    offset += part * axis.stride;
  }
  return offset;
}

// The offset is a sum over dimensions, so fixing one moves the origin and drops its axes.
LayoutRow layout_row(const cald_layout& layout, uint64_t row) {
  const uint64_t index[CALD_MAX_RANK] = {row};
  LayoutRow out{layout, layout_offset(layout, index)};
  out.layout.n_axes = 0;
  for (uint32_t k = 0; k < layout.n_axes; ++k) {
    if (layout.axes[k].dim == 0) continue;
    cald_axis& axis = out.layout.axes[out.layout.n_axes++];
    axis = layout.axes[k];
    --axis.dim;
  }
  out.layout.bytes = layout.bytes - out.offset;
  return out;
}

std::optional<std::vector<uint64_t>> plain_strides(const cald_layout& layout, uint32_t rank) {
  if (layout.undetermined != 0) return std::nullopt;
  std::vector<uint64_t> strides;
  for (uint32_t dim = 0; dim < rank; ++dim) {
    const cald_axis* outer = nullptr;
    const cald_axis* inner = nullptr;
    for (uint32_t k = 0; k < layout.n_axes; ++k) {
      const cald_axis& axis = layout.axes[k];
      if (axis.dim == dim) (axis.modulus == 0 ? outer : inner) = &axis;
    }
    if (outer == nullptr) return std::nullopt;
    if (inner == nullptr) {
      if (outer->divisor != 1) return std::nullopt;
      strides.push_back(outer->stride);
    } else if (outer->extent == 1 || outer->stride == inner->modulus * inner->stride) {
      // One tile, or tiles that follow each other: the parts add up to one stride.
      strides.push_back(inner->stride);
    } else if (inner->modulus == 1) {
      strides.push_back(outer->stride);
    } else {
      return std::nullopt;
    }
  }
  return strides;
}

uint64_t largest_part(const cald_axis& axis, uint64_t size) {
  const uint64_t part = (size - 1) / axis.divisor;
  return axis.modulus != 0 && axis.modulus - 1 < part ? axis.modulus - 1 : part;
}

Result<void> check_injective(const cald_layout& layout, uint64_t element_size) {
  std::vector<const cald_axis*> axes;
  for (uint32_t k = 0; k < layout.n_axes; ++k) {
    if (layout.axes[k].extent > 1) axes.push_back(&layout.axes[k]);
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const cald_axis* a, const cald_axis* b) { return a->stride < b->stride; });
  uint64_t reach = element_size;
  const cald_axis* smaller = nullptr;
  for (const cald_axis* axis : axes) {
    if (axis->stride < reach) {
      Error error = smaller == nullptr
                        ? fail(Status::SHAPE_MISMATCH,
                               "axis %u of %" PRIu64 " has stride %" PRIu64
                               ", an element has %" PRIu64 " bytes",
                               axis->dim, axis->extent, axis->stride, element_size)
                        : fail(Status::SHAPE_MISMATCH,
                               "axes %u (stride %" PRIu64 ") and %u (stride %" PRIu64
                               ") overlap: the smaller one reaches over %" PRIu64 " bytes",
                               axis->dim, axis->stride, smaller->dim, smaller->stride, reach);
      error.where = "injective";
      return error;
    }
    uint64_t step = 0;
    if (!checked_mul(axis->extent - 1, axis->stride, &step) || !checked_add(reach, step, &reach)) {
      return too_large();
    }
    smaller = axis;
  }
  return {};
}

}  // namespace calrt
