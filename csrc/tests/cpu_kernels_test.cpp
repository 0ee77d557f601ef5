// SPDX-License-Identifier: Apache-2.0
// The kernel templates, for every instruction set usable here and for an emulated AVX-512: exact
// chains, tails, and what may not be looked at.
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "cpu_emulated512.h"
#include "drivers/cpu/kernels_impl.h"
#include "drivers/cpu/kernels_table.h"
#include "layout/convert.h"
#include "layout/isa.h"

using calrt::Isa;
using namespace calrt::cpu;

namespace {

const Kernels kEmulated = make_dot_kernels<calrt::testing::Emulated512Simd>("emulated512");
constexpr Format kFormats[] = {Format::F32, Format::BF16, Format::MIXED};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<const Kernels*> all_kernels() {
  std::vector<const Kernels*> all = {&kEmulated};
  for (Isa isa : calrt::usable_isa_list()) all.push_back(&kernels_of(isa));
  return all;
}

float rounded(float f) { return calrt::f32_from_bf16(calrt::bf16_from_f32(f)); }

std::vector<float> normals(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& f : v) f = normal(random);
  return v;
}

// Acts of a format as floats again.
float act_value(const FormatKernels& k, const std::vector<unsigned char>& acts, size_t i) {
  if (k.act_bytes == 4) {
    float f;
    std::memcpy(&f, acts.data() + i * 4, 4);
    return f;
  }
  uint16_t bits;
  std::memcpy(&bits, acts.data() + i * 2, 2);
  return calrt::f32_from_bf16(bits);
}

// A matrix [columns][depth] as panels; what lies beyond `depth` in a pair is NaN.
std::vector<unsigned char> panels_of(const std::vector<float>& w, size_t columns, size_t depth,
                                     bool bf16, size_t* stride) {
  const size_t steps = bf16 ? (depth + 1) / 2 : depth;
  *stride = steps * 128;
  std::vector<unsigned char> out(columns / 32 * *stride);
  for (size_t c = 0; c < columns; ++c)
    for (size_t k = 0; k < (bf16 ? steps * 2 : depth); ++k) {
      const float value = k < depth ? w[c * depth + k] : kNan;
      unsigned char* panel = out.data() + c / 32 * *stride;
      const uint16_t half = calrt::bf16_from_f32(value);
      if (bf16)
        std::memcpy(panel + k / 2 * 128 + c % 32 * 4 + k % 2 * 2, &half, 2);
      else
        std::memcpy(panel + k * 128 + c % 32 * 4, &value, 4);
    }
  return out;
}

// The chain that the hardware dot product makes; BF16 products are exact, so that a fused and a
// plain multiply-add agree.
float chain(const float* a, const float* w, size_t depth) {
  float sum = 0;
  size_t k = 0;
  for (; k + 2 <= depth; k += 2) {
    sum = std::fmaf(a[k + 1], w[k + 1], sum);
    sum = std::fmaf(a[k], w[k], sum);
  }
  if (k < depth) sum = std::fmaf(a[k], w[k], sum);
  return sum;
}

void check_matmul(const Kernels& kernels, Format format, size_t rows, size_t n_panels,
                  size_t depth) {
  const FormatKernels& k = kernels[format];
  const size_t columns = n_panels * 32, act_stride = (depth + 15) / 16 * 16 + 16;
  const size_t out_stride = columns + 5;
  std::vector<float> w = normals(columns * depth, 1), x = normals(rows * act_stride, 2);
  if (format != Format::F32)
    for (float& f : w) f = rounded(f);
  std::vector<unsigned char> acts(x.size() * k.act_bytes);
  k.to_acts(x.data(), x.size(), acts.data());
  size_t stride = 0;
  const auto panels = panels_of(w, columns, depth, format != Format::F32, &stride);
  std::vector<float> out(rows * out_stride, -77.0f), one(columns);
  k.matmul(acts.data(), act_stride, rows, panels.data(), stride, n_panels, depth, out.data(),
           out_stride);
  bool same = true, right = true, inside = true;
  for (size_t r = 0; r < rows; ++r) {
    k.matmul(acts.data() + r * act_stride * k.act_bytes, act_stride, 1, panels.data(), stride,
             n_panels, depth, one.data(), columns);
    same = same && std::memcmp(one.data(), &out[r * out_stride], columns * 4) == 0;
    std::vector<float> a(depth);
    for (size_t i = 0; i < depth; ++i) a[i] = act_value(k, acts, r * act_stride + i);
    for (size_t c = 0; c < columns; ++c) {
      const float got = out[r * out_stride + c];
      if (format == Format::BF16) {
        right = right && got == chain(a.data(), &w[c * depth], depth);
      } else {
        double want = 0;
        for (size_t i = 0; i < depth; ++i) want += double{a[i]} * w[c * depth + i];
        right = right && std::fabs(got - want) < 1e-4;
      }
    }
    for (size_t c = columns; c < out_stride; ++c)
      inside = inside && out[r * out_stride + c] == -77.0f;
  }
  if (!same || !right || !inside)
    std::fprintf(stderr, "%s format %d rows %zu panels %zu depth %zu\n", kernels.isa,
                 static_cast<int>(format), rows, n_panels, depth);
  CHECK(same);
  CHECK(right);
  CHECK(inside);
}

}  // namespace

TEST(matmul_any_height_and_depth) {
  for (const Kernels* kernels : all_kernels())
    for (Format format : kFormats) {
      for (size_t rows = 1; rows <= 27; ++rows)
        for (size_t n_panels : {1u, 2u, 3u}) check_matmul(*kernels, format, rows, n_panels, 19);
      for (size_t depth = 1; depth <= 67; ++depth) {
        check_matmul(*kernels, format, 1, 2, depth);
        check_matmul(*kernels, format, 5, 1, depth);
      }
    }
}

TEST(softmax_tails) {
  for (const Kernels* kernels : all_kernels())
    for (Format format : kFormats) {
      const FormatKernels& k = (*kernels)[format];
      for (size_t n = 1; n <= 67; ++n) {
        const size_t whole = (n + 15) / 16 * 16;
        std::vector<float> scores = normals(whole, static_cast<uint32_t>(n));
        // Whatever stands beyond n, sum and acts are the same.
        std::vector<std::vector<unsigned char>> acts;
        std::vector<float> sums;
        for (float stale : {0.0f, 1e30f, kNan, std::numeric_limits<float>::infinity()}) {
          for (size_t i = n; i < whole; ++i) scores[i] = stale;
          acts.emplace_back(whole * k.act_bytes, 0xee);
          sums.push_back(k.softmax(scores.data(), n, 0.5f, acts.back().data()));
          CHECK(acts.back() == acts.front());
          CHECK(sums.back() == sums.front());
        }
        double top = -1e30, sum = 0;
        for (size_t i = 0; i < n; ++i) top = std::max(top, double{scores[i]});
        for (size_t i = 0; i < n; ++i) {
          const double e = std::exp(0.5 * (scores[i] - top));
          sum += e;
          CHECK(std::fabs(act_value(k, acts[0], i) - e) <
                (format == Format::BF16 ? e / 250 : e * 3e-7));
        }
        for (size_t i = n; i < whole; ++i) CHECK(act_value(k, acts[0], i) == 0.0f);
        CHECK(std::fabs(sums[0] - sum) < sum * 1e-6);
      }
    }
}

TEST(exp_far_below_the_maximum_is_nothing) {
  for (const Kernels* kernels : all_kernels()) {
    const FormatKernels& k = (*kernels)[Format::F32];
    const std::vector<float> scores = {0.0f, -1e30f, -std::numeric_limits<float>::infinity()};
    std::vector<float> padded(16, kNan), acts(16);
    std::copy(scores.begin(), scores.end(), padded.begin());
    CHECK(k.softmax(padded.data(), 3, 1.0f, acts.data()) == 1.0f);
    CHECK(acts[0] == 1.0f && acts[1] < 1e-37f && acts[2] < 1e-37f);
  }
}

TEST(norm_silu_and_scale) {
  for (const Kernels* kernels : all_kernels())
    for (Format format : kFormats) {
      const FormatKernels& k = (*kernels)[format];
      const double near = format == Format::BF16 ? 1.0 / 250 : 1e-6;
      for (size_t n : {1u, 5u, 16u, 33u, 64u}) {
        const size_t whole = (n + 31) / 32 * 32;
        std::vector<float> x = normals(whole, 3), w = normals(whole, 4);
        for (size_t i = n; i < whole; ++i) x[i] = w[i] = 0;
        std::vector<unsigned char> acts(whole * k.act_bytes);
        double squares = 0;
        for (float f : x) squares += double{f} * f;
        k.rms_norm(x.data(), w.data(), whole, n, 1e-5f, acts.data());
        for (size_t i = 0; i < whole; ++i) {
          const double want = x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * w[i];
          CHECK(std::fabs(act_value(k, acts, i) - want) <= std::fabs(want) * near);
        }
        for (float& f : x) f *= 30;  // gates from -90 to 90
        k.silu_mul(x.data(), w.data(), whole, acts.data());
        for (size_t i = 0; i < whole; ++i) {
          const double want = x[i] / (1 + std::exp(-double{x[i]})) * w[i];
          CHECK(std::fabs(act_value(k, acts, i) - want) <= std::fabs(want) * near + 1e-35);
        }
        std::vector<unsigned char> some(n * k.act_bytes + 8, 0xaa);
        k.scale_to_acts(x.data(), n, 0.25f, some.data());
        for (size_t i = 0; i < n; ++i)
          CHECK(std::fabs(act_value(k, some, i) - 0.25 * x[i]) <= std::fabs(x[i]) * near);
        for (size_t i = n * k.act_bytes; i < some.size(); ++i) CHECK(some[i] == 0xaa);
      }
    }
}

TEST(rounding_of_acts_is_the_layout_layer_s) {
  for (const Kernels* kernels : all_kernels()) {
    const FormatKernels& k = (*kernels)[Format::BF16];
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      for (uint32_t high = 0; high < 0x10000; high += 16) {
        float x[16];
        unsigned char acts[64];
        for (uint32_t i = 0; i < 16; ++i) {
          const uint32_t bits = (high + i) << 16 | low;
          std::memcpy(x + i, &bits, 4);
        }
        k.to_acts(x, 16, acts);
        const std::vector<unsigned char> copy(acts, acts + 64);
        for (size_t i = 0; i < 16; ++i) {
          const float got = act_value(k, copy, i), want = rounded(x[i]);
          CHECK(std::isnan(x[i]) ? std::isnan(got) : std::memcmp(&got, &want, 4) == 0);
        }
      }
  }
}

// Cells are moved byte for byte, whatever the size, the alignment and the kind of stores.
TEST(cells_between_panels_and_rows) {
  const auto word = [](size_t i) { return static_cast<unsigned char>(i * 131 + i / 256); };
  for (const Kernels* k : all_kernels())
    for (const size_t rows : {1, 3, 8, 16, 40, 64})
      for (const size_t columns : {1, 7, 8, 21, 32})
        for (const size_t shift : {0, 64, 2}) {
          const size_t src_stride = 33 * 4 + shift, dst_stride = 64 * 5;
          std::vector<unsigned char> src(rows * src_stride + 64), dst(33 * dst_stride + 128, 0xEE);
          for (size_t i = 0; i < src.size(); ++i) src[i] = word(i);
          unsigned char* to = dst.data() + (64 - reinterpret_cast<uintptr_t>(dst.data()) % 64) % 64;
          std::vector<unsigned char> wanted(33 * dst_stride, 0xEE);
          for (size_t c = 0; c < columns; ++c)
            for (size_t r = 0; r < rows; ++r)
              std::memcpy(&wanted[c * dst_stride + r * 4], &src[r * src_stride + c * 4 + shift % 4],
                          4);
          for (const bool stream : {false, true}) {
            std::memset(to, 0xEE, wanted.size());
            k->cells.transpose(src.data() + shift % 4, src_stride, rows, columns, to, dst_stride,
                               stream);
            k->cells.fence();
            CHECK(std::memcmp(to, wanted.data(), wanted.size()) == 0);
          }
        }
}

TEST(pairs_are_split_and_joined) {
  for (const Kernels* k : all_kernels())
    for (const size_t width : {2, 8, 16, 20, 32})
      for (const size_t stride : {64, 66, 384})
        for (const bool stream : {false, true}) {
          constexpr size_t kPairs = 5;
          alignas(64) unsigned char panel[kPairs * 128], back[kPairs * 128];
          alignas(64) unsigned char rows[2 * kPairs * 384];
          for (size_t i = 0; i < sizeof panel; ++i)
            panel[i] = static_cast<unsigned char>(i * 37 + i / 256);
          std::memset(rows, 0xEE, sizeof rows);
          std::memset(back, 0xEE, sizeof back);
          k->cells.split_pairs(panel, kPairs, width, rows, stride, stream);
          k->cells.fence();
          for (size_t r = 0; r < 2 * kPairs; ++r)
            for (size_t i = 0; i < stride; ++i) {
              const size_t at = r / 2 * 128 + i / 2 * 4 + r % 2 * 2 + i % 2;
              CHECK(rows[r * stride + i] == (i < width * 2 ? panel[at] : 0xEE));
            }
          k->cells.join_pairs(rows, stride, kPairs, width, back, stream);
          k->cells.fence();
          for (size_t i = 0; i < sizeof back; ++i)
            CHECK(back[i] == (i % 128 < width * 4 ? panel[i] : 0xEE));
        }
}
