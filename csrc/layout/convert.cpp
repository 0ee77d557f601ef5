// SPDX-License-Identifier: Apache-2.0
#include "layout/convert.h"

#include <cstring>

#include "layout/isa.h"
#include "layout/kernels.h"

namespace calrt {
namespace {

const ConvertKernels& kernels_of(Isa isa) {
#ifdef CALRT_X86
  if (isa == Isa::AVX512BF16) return kConvertAvx512;
  if (isa == Isa::AVX2) return kConvertAvx2;
#endif
  (void)isa;
  return kConvertPortable;
}

// All variants agree bit for bit, so a bad CALRT_ISA, which selected_isa() reports, costs only
// speed here.
const ConvertKernels& kernels() {
  static const ConvertKernels& chosen = []() -> const ConvertKernels& {
    const Result<Isa> isa = select_isa();
    return kernels_of(isa.ok() ? *isa : Isa::PORTABLE);
  }();
  return chosen;
}

uint64_t axis_offset(const cald_layout& layout, const uint64_t* index) {
  uint64_t offset = 0;
  for (uint32_t a = 0; a < layout.n_axes; ++a) {
    const cald_axis& axis = layout.axes[a];
    const uint64_t step = index[axis.dim] / axis.divisor;
    offset += axis.stride * (axis.modulus == 0 ? step : step % axis.modulus);
  }
  return offset;
}

}  // namespace

uint16_t bf16_from_f32(float value) {
  uint16_t bits;
  kConvertPortable.bf16_from_f32(&value, &bits, 1);
  return bits;
}

float f32_from_bf16(uint16_t bits) {
  float value;
  kConvertPortable.f32_from_bf16(&bits, &value, 1);
  return value;
}

void bf16_from_f32(const float* src, uint16_t* dst, size_t n) {
  kernels().bf16_from_f32(src, dst, n);
}

void f32_from_bf16(const uint16_t* src, float* dst, size_t n) {
  kernels().f32_from_bf16(src, dst, n);
}

std::vector<const char*> usable_isas() {
  std::vector<const char*> names;
  for (Isa isa : usable_isa_list()) names.push_back(isa_name(isa));
  return names;
}

Result<const char*> selected_isa() {
  CALRT_TRY_ASSIGN(const Isa isa, select_isa());
  return isa_name(isa);
}

Result<void> unpack_f32(const cald_layout& layout, int32_t dtype, const uint64_t* shape,
                        uint32_t rank, const void* src, float* dst) {
  if (dtype != CALD_F32 && dtype != CALD_BF16)
    return fail(Status::DTYPE_MISMATCH, "unpack_f32 reads f32 (1) and bf16 (2), not dtype %d",
                dtype);
  if (layout.undetermined != 0)
    return fail(Status::UNSUPPORTED, "the layout is undetermined: its bytes may not be read");
  if (rank > CALD_MAX_RANK || layout.n_axes > CALD_MAX_AXES)
    return fail(Status::SHAPE_MISMATCH, "rank %u or %u axes exceed the largest, %d", rank,
                layout.n_axes, CALD_MAX_RANK);
  for (uint32_t a = 0; a < layout.n_axes; ++a)
    if (layout.axes[a].dim >= rank || layout.axes[a].divisor == 0)
      return fail(Status::SHAPE_MISMATCH, "axis %u names dimension %u of rank %u", a,
                  layout.axes[a].dim, rank);
  for (uint32_t d = 0; d < rank; ++d)
    if (shape[d] == 0) return {};

  const uint64_t size = dtype == CALD_F32 ? 4 : 2;
  const auto* bytes = static_cast<const unsigned char*>(src);
  const uint64_t columns = rank == 0 ? 1 : shape[rank - 1];
  uint64_t index[CALD_MAX_RANK] = {};
  // A row whose elements are neighbours is converted at once; else element by element.
  bool dense = columns == 1;
  for (uint32_t a = 0; a < layout.n_axes; ++a) {
    const cald_axis& axis = layout.axes[a];
    if (axis.dim + 1 != rank) continue;
    const bool whole = axis.divisor == 1 && (axis.modulus == 0 || axis.modulus >= columns);
    dense = whole && axis.stride == size;
    if (!dense) break;
  }
  for (;;) {
    if (dense) {
      const unsigned char* row = bytes + axis_offset(layout, index);
      if (dtype == CALD_F32)
        std::memcpy(dst, row, columns * size);
      else
        f32_from_bf16(reinterpret_cast<const uint16_t*>(row), dst, columns);
    } else {
      for (uint64_t c = 0; c < columns; ++c) {
        index[rank - 1] = c;
        const unsigned char* element = bytes + axis_offset(layout, index);
        if (dtype == CALD_F32) {
          std::memcpy(dst + c, element, 4);
        } else {
          uint16_t bits;
          std::memcpy(&bits, element, 2);
          dst[c] = f32_from_bf16(bits);
        }
      }
      index[rank - 1] = 0;
    }
    dst += columns;
    uint32_t d = rank < 2 ? 0 : rank - 1;
    while (d > 0 && ++index[d - 1] == shape[d - 1]) index[--d] = 0;
    if (d == 0) return {};
  }
}

}  // namespace calrt
