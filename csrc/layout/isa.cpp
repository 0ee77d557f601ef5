// SPDX-License-Identifier: Apache-2.0
#include "layout/isa.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace calrt {
namespace {

constexpr Isa kFastestFirst[] = {Isa::AVX512BF16, Isa::AVX2, Isa::NEON, Isa::PORTABLE};

}  // namespace

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::AVX512BF16:
      return "avx512bf16";
    case Isa::AVX2:
      return "avx2";
    case Isa::NEON:
      return "neon";
    case Isa::PORTABLE:
      break;
  }
  return "portable";
}

bool isa_usable(Isa isa) {
#ifdef CALRT_X86
  // The builtin checks the operating system's saved state (XGETBV) as well as CPUID.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  switch (isa) {
    case Isa::AVX512BF16:
      return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bf16");
    case Isa::AVX2:
      return avx2;
    case Isa::NEON:
    case Isa::PORTABLE:
      break;
  }
#endif
#ifdef CALRT_NEON
  if (isa == Isa::NEON) return true;  // a part of every AArch64
#endif
  return isa == Isa::PORTABLE;
}

std::vector<Isa> usable_isa_list() {
  std::vector<Isa> usable;
  for (Isa isa : kFastestFirst)
    if (isa_usable(isa)) usable.push_back(isa);
  return usable;
}

Result<Isa> select_isa() {
  const std::vector<Isa> usable = usable_isa_list();
  const char* pinned = std::getenv("CALRT_ISA");
  if (pinned == nullptr || *pinned == '\0') return usable.front();
  std::string names;
  for (Isa isa : usable) {
    if (std::strcmp(pinned, isa_name(isa)) == 0) return isa;
    names += names.empty() ? "" : ", ";
    names += isa_name(isa);
  }
  for (Isa isa : kFastestFirst) {
    if (std::strcmp(pinned, isa_name(isa)) != 0) continue;
    return fail(Status::INVALID_ARGUMENT,
                "CALRT_ISA=%.40s: this machine or build cannot run it; usable here: %s", pinned,
                names.c_str());
  }
  return fail(Status::INVALID_ARGUMENT,
              "CALRT_ISA=%.40s is not an instruction set calrt knows; usable here: %s", pinned,
              names.c_str());
}

}  // namespace calrt
