// SPDX-License-Identifier: Apache-2.0
// BF16 <-> F32: every value, every rounding edge, every tail, the same bits from each kernel.
#include "layout/convert.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "check.h"
#include "layout/isa.h"
#include "layout/kernels.h"
#include "layout/kernels_impl.h"
#ifdef CALRT_X86
#include "convert_emulated512.h"
#endif

using calrt::ConvertKernels;
using calrt::Isa;

namespace {

// The widest set's shape in plain C++: its loops run where its instructions do not exist.
struct Emulated512 {
  static constexpr size_t kLanes = 32, kAlign = 64;
  static constexpr bool kStreams = true;
  static inline int misaligned = 0;

  static void narrow(const float* src, uint16_t* dst) {
    for (size_t i = 0; i < kLanes; ++i) narrow_one(src + i, dst + i);
  }
  static void widen(const uint16_t* src, float* dst) {
    for (size_t i = 0; i < kLanes; ++i) widen_one(src + i, dst + i);
  }
  static void narrow_stream(const float* src, uint16_t* dst) {
    misaligned += reinterpret_cast<uintptr_t>(dst) % kAlign != 0;
    narrow(src, dst);
  }
  static void widen_stream(const uint16_t* src, float* dst) {
    misaligned += reinterpret_cast<uintptr_t>(dst) % kAlign != 0;
    widen(src, dst);
  }
  static void fence() {}
  static void widen8(const uint16_t* src, float* dst) {
    for (size_t i = 0; i < 8; ++i) widen_one(src + i, dst + i);
  }
  static void transpose(const uint16_t* src, size_t src_step, float* dst, size_t dst_step) {
    for (size_t r = 0; r < kBlockRows; ++r)
      for (size_t c = 0; c < kBlockColumns; ++c)
        widen_one(src + c * src_step + r, dst + r * dst_step + c);
  }
};
const ConvertKernels kEmulated512 = Convert<Emulated512>::kernels();

int misaligned_streams() {
#ifdef CALRT_X86
  return Emulated512::misaligned + calrt::testing::misaligned_streams;
#else
  return Emulated512::misaligned;
#endif
}

std::vector<const ConvertKernels*> all_kernels() {
  std::vector<const ConvertKernels*> all = {&calrt::kConvertPortable, &kEmulated512};
#ifdef CALRT_X86
  if (calrt::isa_usable(Isa::AVX2)) {
    all.push_back(&calrt::kConvertAvx2);
    all.push_back(&calrt::kConvertAvx512Emulated);
  }
  if (calrt::isa_usable(Isa::AVX512BF16)) all.push_back(&calrt::kConvertAvx512);
#endif
#ifdef CALRT_NEON
  if (calrt::isa_usable(Isa::NEON)) all.push_back(&calrt::kConvertNeon);
#endif
  return all;
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
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
    k->f32_from_bf16(all.data(), wide.data(), all.size(), false);
    k->bf16_from_f32(wide.data(), back.data(), wide.size(), false);
    for (uint32_t i = 0; i < 65536; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &wide[i], 4);
      CHECK(bits == i << 16);
      CHECK(back[i] == nearest(i << 16));
    }
  }
}

// Each of the 65,536 upper halves, so every sign, exponent and kind of NaN, with a lower half at
// and around the tie; twice, as the stores can also go around the caches.
TEST(every_rounding_edge) {
  std::vector<float> wide(65536);
  std::vector<uint16_t> got(65536);
  for (const ConvertKernels* k : all_kernels())
    for (bool stream : {false, true})
      for (uint32_t low : {0u, 1u, 0x3fffu, 0x7fffu, 0x8000u, 0x8001u, 0xc000u, 0xffffu}) {
        for (uint32_t i = 0; i < 65536; ++i) wide[i] = value(i << 16 | low);
        k->bf16_from_f32(wide.data(), got.data(), wide.size(), stream);
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

// Every length, every element offset of source and destination from a cache line's start; what
// lies beside the destination stays as it was.
TEST(every_length_and_offset) {
  constexpr size_t kLongest = 67, kRoom = 32 + kLongest + 32;
  alignas(64) float wide[kRoom], wide_out[kRoom];
  alignas(64) uint16_t half[kRoom], half_out[kRoom];
  for (size_t i = 0; i < kRoom; ++i) {
    // NaNs and infinities among the rest, at a stride that shares no factor with any lane count.
    wide[i] = value(i % 7 == 3 ? 0x7f800000u + static_cast<uint32_t>(i % 3)
                               : 0x3f800000u + static_cast<uint32_t>(i) * 0x12345u);
    half[i] = static_cast<uint16_t>(0x7f60u + i * 3);
  }
  for (const ConvertKernels* k : all_kernels())
    for (bool stream : {false, true})
      for (size_t n = 0; n <= kLongest; ++n)
        for (size_t from = 0; from < 32; ++from)
          for (size_t to = 0; to < 32; ++to) {
            std::memset(wide_out, 0xa5, sizeof wide_out);
            std::memset(half_out, 0xa5, sizeof half_out);
            k->bf16_from_f32(wide + from, half_out + to, n, stream);
            k->f32_from_bf16(half + from, wide_out + to, n, stream);
            bool good = true;
            for (size_t i = 0; i < kRoom; ++i) {
              const bool written = i >= to && i < to + n;
              const size_t at = i - to + from;
              good &= half_out[i] == (written ? nearest(bits_of(wide[at])) : 0xa5a5);
              good &= bits_of(wide_out[i]) == (written ? uint32_t{half[at]} << 16 : 0xa5a5a5a5u);
            }
            CHECK(good);
          }
  CHECK(misaligned_streams() == 0);
}

// Long enough to go in quarters: each length from there to past the longest step of all four, with
// a tail of any length; what lies beside the destination stays as it was.
TEST(lengths_that_go_in_quarters) {
  constexpr size_t kFrom = 1 << 14, kMost = kFrom + 4 * 32 + 1, kRoom = 8 + kMost + 8;
  std::vector<float> wide(kRoom), wide_out(kRoom);
  std::vector<uint16_t> half(kRoom), half_out(kRoom);
  for (size_t i = 0; i < kRoom; ++i) {
    wide[i] = value(i % 7 == 3 ? 0x7f800000u + static_cast<uint32_t>(i % 3)
                               : 0x3f800000u + static_cast<uint32_t>(i) * 0x12345u);
    half[i] = static_cast<uint16_t>(i * 3);
  }
  for (const ConvertKernels* k : all_kernels())
    for (size_t n = kFrom - 1; n <= kMost; ++n) {
      const size_t from = n % 5, to = n % 8;
      std::fill(wide_out.begin(), wide_out.end(), 0.25f);
      std::fill(half_out.begin(), half_out.end(), uint16_t{0xa5a5});
      k->bf16_from_f32(wide.data() + from, half_out.data() + to, n, false);
      k->f32_from_bf16(half.data() + from, wide_out.data() + to, n, false);
      bool good = true;
      for (size_t i = 0; i < kRoom; ++i) {
        const bool written = i >= to && i < to + n;
        const size_t at = i - to + from;
        good &= half_out[i] == (written ? nearest(bits_of(wide[at])) : 0xa5a5);
        good &= bits_of(wide_out[i]) == (written ? uint32_t{half[at]} << 16 : bits_of(0.25f));
      }
      CHECK(good);
    }
}

// A destination that lies between two elements has no line to begin at, so nothing is streamed.
TEST(destinations_between_elements) {
  constexpr size_t kMost = 300, kBytes = (kMost + 1) * sizeof(float);
  std::vector<float> wide(kMost);
  std::vector<uint16_t> half(kMost);
  for (size_t i = 0; i < kMost; ++i) {
    wide[i] = value(0x3f800000u + static_cast<uint32_t>(i) * 0x12345u);
    half[i] = static_cast<uint16_t>(0x3f80u + i * 3);
  }
  alignas(64) char out[kBytes];
  for (const ConvertKernels* k : all_kernels())
    for (size_t n : {size_t{0}, size_t{1}, size_t{64}, size_t{130}, kMost})
      for (size_t byte = 1; byte < sizeof(float); ++byte) {
        bool good = true;
        k->f32_from_bf16(half.data(), reinterpret_cast<float*>(out + byte), n, true);
        for (size_t i = 0; i < n; ++i) {
          uint32_t bits;
          std::memcpy(&bits, out + byte + i * sizeof bits, sizeof bits);
          good &= bits == uint32_t{half[i]} << 16;
        }
        k->bf16_from_f32(wide.data(), reinterpret_cast<uint16_t*>(out + byte), n, true);
        for (size_t i = 0; i < n; ++i) {
          uint16_t bits;
          std::memcpy(&bits, out + byte + i * sizeof bits, sizeof bits);
          good &= bits == nearest(bits_of(wide[i]));
        }
        CHECK(good);
      }
  CHECK(misaligned_streams() == 0);
}

// Runs and transposed blocks of every small size against one element at a time.
TEST(runs_and_transposed_blocks) {
  std::vector<uint16_t> src(4096);
  for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<uint16_t>(i * 31);
  constexpr size_t kRoom = 8192;
  alignas(64) static float got[kRoom], want[kRoom];
  const auto same = [&] { return std::memcmp(got, want, sizeof got) == 0; };
  for (const ConvertKernels* k : all_kernels())
    for (size_t run = 0; run <= 40; ++run)
      for (size_t count : {0, 1, 2, 5, 9, 17})
        for (size_t gap : {0, 1, 8, 24}) {
          std::memset(got, 0, sizeof got);
          std::memset(want, 0, sizeof want);
          size_t step = run + gap;
          for (size_t c = 0; c < count; ++c)
            for (size_t i = 0; i < run; ++i)
              want[16 + c * (run + 16) + i] = value(uint32_t{src[c * step + i]} << 16);
          k->f32_from_bf16_runs(src.data(), step, got + 16, run + 16, run, count);
          CHECK(same());
          std::memset(got, 0, sizeof got);
          std::memset(want, 0, sizeof want);
          step = count + gap;  // here count rows, run columns
          for (size_t r = 0; r < count; ++r)
            for (size_t c = 0; c < run; ++c)
              want[3 + r * (run + 5) + c] = value(uint32_t{src[c * step + r]} << 16);
          k->f32_from_bf16_transposed(src.data(), step, got + 3, run + 5, count, run);
          CHECK(same());
        }
}

// Rows between each other, more runs than one turn has, against the runs of one row after the
// other.
TEST(rows_that_take_turns) {
  std::vector<uint16_t> src(1 << 15);
  for (size_t i = 0; i < src.size(); ++i) src[i] = static_cast<uint16_t>(i * 31);
  std::vector<float> got(1 << 15), want(1 << 15);
  for (const ConvertKernels* k : all_kernels())
    for (size_t run : {1, 8, 12, 16, 32})
      for (size_t rows : {1, 3, 17})
        for (size_t count : {0, 1, 5, 43}) {
          const size_t step = run * rows + 3, dst_row = run * count + 1;
          std::fill(got.begin(), got.end(), 0.25f);
          std::fill(want.begin(), want.end(), 0.25f);
          for (size_t r = 0; r < rows; ++r)
            k->f32_from_bf16_runs(src.data() + r * run, step, want.data() + r * dst_row, run, run,
                                  count);
          k->f32_from_bf16_rows(src.data(), step, run, got.data(), run, dst_row, run, count, rows);
          CHECK(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)) == 0);
        }
}

TEST(whole_lines_around_the_caches) {
  constexpr size_t kLine = 16, kLines = 9, kRoom = (kLines + 2) * kLine;
  alignas(64) uint16_t src[kRoom];
  alignas(64) float got[kRoom];
  for (size_t i = 0; i < kRoom; ++i) src[i] = static_cast<uint16_t>(i * 97);
  for (const ConvertKernels* k : all_kernels())
    for (size_t from = 0; from < kLine; ++from)
      for (size_t n = 0; n <= kLines * kLine; n += kLine) {
        std::memset(got, 0xa5, sizeof got);
        k->f32_from_bf16_lines(src + from, got + kLine, n);
        k->fence();
        bool good = true;
        for (size_t i = 0; i < kRoom; ++i) {
          const bool written = i >= kLine && i < kLine + n;
          good &=
              bits_of(got[i]) == (written ? uint32_t{src[i - kLine + from]} << 16 : 0xa5a5a5a5u);
        }
        CHECK(good);
      }
  CHECK(misaligned_streams() == 0);
}

#ifdef CALRT_X86  // where streaming stores exist
// Larger than the caches: the public functions choose the streaming stores by themselves.
TEST(arrays_larger_than_the_caches) {
  size_t n = 1 << 20;
  while (!calrt::outgrows_caches(n * sizeof(uint16_t))) n *= 2;
  n += 13;
  std::vector<float> wide(n + 1, 1.0f);
  std::vector<uint16_t> half(n + 1, 0);
  for (size_t i = 0; i < n; ++i) wide[i] = value(static_cast<uint32_t>(i) * 0x9e3779b9u);
  calrt::bf16_from_f32(wide.data(), half.data() + 1, n);
  bool good = half[0] == 0;
  for (size_t i = 0; i < n; ++i) good &= half[i + 1] == nearest(bits_of(wide[i]));
  CHECK(good);
  calrt::f32_from_bf16(half.data() + 1, wide.data() + 1, n);
  good = true;
  for (size_t i = 0; i < n; ++i) good &= bits_of(wide[i + 1]) == uint32_t{half[i + 1]} << 16;
  CHECK(good);
}
#endif

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
