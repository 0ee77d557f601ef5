// SPDX-License-Identifier: Apache-2.0
#include "layout/convert.h"

#include <cstdio>

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

// Bytes of the last cache that one core reaches. Not sysconf(): on CPUs of several core complexes
// it gives the sum over all of them.
uint64_t last_cache() {
  constexpr uint64_t kUnknown = uint64_t{32} << 20;
  FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
  if (file == nullptr) return kUnknown;
  unsigned kib = 0;
  const bool read = std::fscanf(file, "%uK", &kib) == 1 && kib > 0;
  std::fclose(file);
  return read ? uint64_t{kib} << 10 : kUnknown;
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
  // A reader of a smaller result finds it still there. A quarter, since the source lies there too
  // and other cores share it.
  static const uint64_t from = last_cache() / 4;
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
