// SPDX-License-Identifier: Apache-2.0
// BF16 <-> F32: every value, every rounding edge, every tail, the same bits from each kernel.
#include "layout/convert.h"

#include <cstdlib>
#include <string>

#include "check.h"
#include "layout/isa.h"
#include "layout/kernels.h"
#include "layout/layout.h"

using calrt::ConvertKernels;
using calrt::Isa;

namespace {

std::vector<const ConvertKernels*> all_kernels() {
  std::vector<const ConvertKernels*> all = {&calrt::kConvertPortable};
#ifdef CALRT_X86
  if (calrt::isa_usable(Isa::AVX2)) all.push_back(&calrt::kConvertAvx2);
  if (calrt::isa_usable(Isa::AVX512BF16)) all.push_back(&calrt::kConvertAvx512);
#endif
  return all;
}

float value(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Round to nearest, ties to even, from the definition; not the trick of the kernels.
uint16_t nearest(uint32_t bits) {
  const auto down = static_cast<uint16_t>(bits >> 16);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((down & 0x8000u) | 0x7fc0u);
  const uint32_t rest = bits & 0xffffu;
  const bool up = rest > 0x8000u || (rest == 0x8000u && (down & 1u) != 0);
  return static_cast<uint16_t>(down + (up ? 1 : 0));
}

}  // namespace

TEST(every_bf16_there_and_back) {
  std::vector<uint16_t> all(65536), back(65536);
  std::vector<float> wide(65536);
  for (uint32_t i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  for (const ConvertKernels* k : all_kernels()) {
    k->f32_from_bf16(all.data(), wide.data(), all.size());
    k->bf16_from_f32(wide.data(), back.data(), wide.size());
    for (uint32_t i = 0; i < 65536; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &wide[i], 4);
      CHECK(bits == i << 16);
      CHECK(back[i] == nearest(i << 16));
    }
  }
}

TEST(every_rounding_edge) {
  std::vector<float> wide(65536);
  std::vector<uint16_t> got(65536);
  for (const ConvertKernels* k : all_kernels())
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      for (uint32_t i = 0; i < 65536; ++i) wide[i] = value(i << 16 | low);
      k->bf16_from_f32(wide.data(), got.data(), wide.size());
      for (uint32_t i = 0; i < 65536; ++i) CHECK(got[i] == nearest(i << 16 | low));
    }
}

TEST(known_values) {
  CHECK(calrt::bf16_from_f32(1.0f) == 0x3f80);
  CHECK(calrt::bf16_from_f32(value(0x3f808000)) == 0x3f80);  // tie to even, down
  CHECK(calrt::bf16_from_f32(value(0x3f818000)) == 0x3f82);  // tie to even, up
  CHECK(calrt::bf16_from_f32(value(0x7f7fffff)) == 0x7f80);  // rounds to infinity
  CHECK(calrt::bf16_from_f32(value(0x7f800001)) == 0x7fc0);  // NaN by its low bits only
  CHECK(calrt::bf16_from_f32(value(0xff800001)) == 0xffc0);
  CHECK(calrt::bf16_from_f32(value(0x00400000)) == 0x0040);  // subnormals are kept
  CHECK(calrt::f32_from_bf16(0x4049) == value(0x40490000));
}

TEST(every_tail_and_offset) {
  constexpr size_t kRoom = 67 + 67 + 2;
  for (const ConvertKernels* k : all_kernels())
    for (size_t n = 0; n <= 67; ++n)
      for (size_t offset = 0; offset <= 67; ++offset) {
        float wide[kRoom], wide_out[kRoom];
        uint16_t half[kRoom], half_out[kRoom];
        for (size_t i = 0; i < kRoom; ++i) {
          wide[i] = value(0x3f800000u + static_cast<uint32_t>(i) * 0x1234u);
          half[i] = static_cast<uint16_t>(0x4000u + i);
          wide_out[i] = -1.0f;
          half_out[i] = 0xabcd;
        }
        k->bf16_from_f32(wide + offset, half_out + offset, n);
        k->f32_from_bf16(half + offset, wide_out + offset, n);
        bool good = true;
        for (size_t i = 0; i < kRoom; ++i) {
          const bool written = i >= offset && i < offset + n;
          uint32_t bits;
          std::memcpy(&bits, wide + i, 4);
          good = good && half_out[i] == (written ? nearest(bits) : 0xabcd);
          good = good && wide_out[i] == (written ? value(uint32_t{half[i]} << 16) : -1.0f);
        }
        CHECK(good);
      }
}

TEST(isa_is_pinned_by_name) {
  unsetenv("CALRT_ISA");
  const std::vector<const char*> usable = calrt::usable_isas();
  CHECK(!usable.empty() && std::string(usable.back()) == "portable");
  CHECK(std::string(*calrt::selected_isa()) == usable.front());
  for (const char* name : usable) {
    setenv("CALRT_ISA", name, 1);
    CHECK(std::string(*calrt::selected_isa()) == name);
  }
  setenv("CALRT_ISA", "sse9", 1);
  const auto unknown = calrt::selected_isa();
  CHECK(!unknown.ok() && unknown.error().code == calrt::Status::INVALID_ARGUMENT);
  CHECK(!unknown.ok() && unknown.error().message.find("portable") != std::string::npos);
  if (!calrt::isa_usable(Isa::AVX512BF16)) {
    setenv("CALRT_ISA", "avx512bf16", 1);
    CHECK(!calrt::selected_isa().ok());
  }
  unsetenv("CALRT_ISA");
}

TEST(unpack_any_layout) {
  const uint64_t shape[] = {3, 5, 7};
  std::vector<float> dense(105), got(105);
  for (size_t i = 0; i < dense.size(); ++i) dense[i] = static_cast<float>(i) * 0.5f;
  for (int32_t dtype : {CALD_F32, CALD_BF16}) {
    const uint64_t size = dtype == CALD_F32 ? 4 : 2;
    const std::vector<cald_layout> layouts = {
        *calrt::linear_layout(dtype, {3, 5, 7}), *calrt::linear_layout(dtype, {3, 5, 7}, {3, 6, 8}),
        *calrt::strided_layout(dtype, {3, 5, 7}, {size * 35, size, size * 5}),
        *calrt::tiled_layout(dtype, {3, 5, 7}, 2, 4, {0, -1, 1, -2})};
    for (const cald_layout& layout : layouts) {
      std::vector<unsigned char> packed(layout.bytes, 0xff);
      for (uint64_t i = 0; i < 105; ++i) {
        const uint64_t index[] = {i / 35, i / 7 % 5, i % 7};
        const uint16_t half = calrt::bf16_from_f32(dense[i]);
        const void* element = dtype == CALD_F32 ? static_cast<const void*>(&dense[i]) : &half;
        std::memcpy(packed.data() + calrt::layout_offset(layout, index), element, size);
      }
      std::fill(got.begin(), got.end(), -1.0f);
      CHECK(calrt::unpack_f32(layout, dtype, shape, 3, packed.data(), got.data()).ok());
      CHECK(got == dense);
    }
  }
  const auto refused = calrt::unpack_f32(calrt::undetermined_layout(64), CALD_F32, shape, 3,
                                         dense.data(), got.data());
  CHECK(!refused.ok() && refused.error().code == calrt::Status::UNSUPPORTED);
  CHECK(!calrt::unpack_f32(*calrt::linear_layout(CALD_I32, {3, 5, 7}), CALD_I32, shape, 3,
                           dense.data(), got.data())
             .ok());
}
