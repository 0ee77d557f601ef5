// SPDX-License-Identifier: Apache-2.0
#include "layout/convert.h"

#include <unistd.h>

#include "layout/isa.h"
#include "layout/kernels.h"

namespace calrt {
namespace {

const ConvertKernels& kernels_of(Isa isa) {
#ifdef CALRT_X86
  if (isa == Isa::AVX512BF16) return kConvertAvx512;
  if (isa == Isa::AVX2) return kConvertAvx2;
#endif
#ifdef CALRT_NEON
  if (isa == Isa::NEON) return kConvertNeon;
#endif
  (void)isa;
  return kConvertPortable;
}

// Three quarters of the last cache: a reader of a smaller result finds it still there.
uint64_t stream_from() {
  constexpr uint64_t kUnknown = uint64_t{24} << 20;
#ifdef _SC_LEVEL3_CACHE_SIZE
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return static_cast<uint64_t>(bytes) / 4 * 3;
#endif
  return kUnknown;
}

}  // namespace

// All variants agree bit for bit, so a bad CALRT_ISA, which selected_isa() reports, costs only
// speed here.
const ConvertKernels& convert_kernels() {
  static const ConvertKernels& chosen = []() -> const ConvertKernels& {
    const Result<Isa> isa = select_isa();
    return kernels_of(isa.ok() ? *isa : Isa::PORTABLE);
  }();
  return chosen;
}

bool outgrows_caches(uint64_t bytes) {
  static const uint64_t from = stream_from();
  return bytes >= from;
}

uint16_t bf16_from_f32(float value) {
  uint16_t bits;
  kConvertPortable.bf16_from_f32(&value, &bits, 1, false);
  return bits;
}

float f32_from_bf16(uint16_t bits) {
  float value;
  kConvertPortable.f32_from_bf16(&bits, &value, 1, false);
  return value;
}

void bf16_from_f32(const float* src, uint16_t* dst, size_t n) {
  convert_kernels().bf16_from_f32(src, dst, n, outgrows_caches(n * sizeof *dst));
}

void f32_from_bf16(const uint16_t* src, float* dst, size_t n) {
  convert_kernels().f32_from_bf16(src, dst, n, outgrows_caches(n * sizeof *dst));
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

}  // namespace calrt
