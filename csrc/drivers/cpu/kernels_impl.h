// SPDX-License-Identifier: Apache-2.0
// All kernels over a vector type S, and make_kernels<S>(). Included once by each kernels_<isa>.cpp,
// compiled with that set's flags. Everything has internal linkage and calls no inline library
// function, so that the linker cannot pick one instruction set's code for another.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "drivers/cpu/kernels.h"
#include "drivers/cpu/kernels_cells.h"
#include "drivers/cpu/kernels_matmul.h"

namespace {

// Stores acts of 16 and of single elements.
template <class S>
struct FloatActs {
  using Act = float;
  CALRT_INLINE static void store(Act* p, typename S::V v) { S::store(p, v); }
};
template <class S>
struct RoundedActs {
  using Act = float;
  CALRT_INLINE static void store(Act* p, typename S::V v) { S::store(p, S::round_bf16(v)); }
};
template <class S>
struct PackedActs {
  using Act = uint16_t;
  CALRT_INLINE static void store(Act* p, typename S::V v) { S::store_high(p, S::round_bf16(v)); }
};

// A fixed tree, so that the sum does not depend on the instruction set's shuffles.
template <class S>
CALRT_INLINE float sum_lanes(typename S::V v) {
  float x[16];
  S::store(x, v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  return x[0];
}

template <class S>
CALRT_INLINE float max_lanes(typename S::V v) {
  float x[16];
  S::store(x, v);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
  return x[0];
}

// exp to about 1 ulp. 2^n * e^r with |r| <= ln2 / 2 and the series to r^7; arguments are clamped
// to where the result is a normal number.
template <class S>
CALRT_INLINE typename S::V exp16(typename S::V x) {
  using V = typename S::V;
  x = S::min(S::max(x, S::set1(-87.0f)), S::set1(88.0f));
  const V magic = S::set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const V shifted = S::fma(x, S::set1(1.44269504088896341f), magic);
  const V n = S::sub(shifted, magic);
  V r = S::fma(n, S::set1(-0.693359375f), x);  // ln2 in two parts; n * the first is exact
  r = S::fma(n, S::set1(2.12194440054690583e-4f), r);
  V p = S::set1(1.0f / 5040);
  p = S::fma(p, r, S::set1(1.0f / 720));
  p = S::fma(p, r, S::set1(1.0f / 120));
  p = S::fma(p, r, S::set1(1.0f / 24));
  p = S::fma(p, r, S::set1(1.0f / 6));
  p = S::fma(p, r, S::set1(0.5f));
  p = S::fma(p, r, S::set1(1.0f));
  p = S::fma(p, r, S::set1(1.0f));
  return S::mul(p, S::pow2(shifted));
}

template <class S, class Acts>
void to_acts(const float* x, size_t n, void* acts) {
  auto* out = (typename Acts::Act*)acts;
  for (size_t i = 0; i < n; i += 16) Acts::store(out + i, S::load(x + i));
}

template <class S, class Acts>
void rms_norm(const float* x, const float* weight, size_t n, size_t n_real, float eps, void* acts) {
  auto* out = (typename Acts::Act*)acts;
  typename S::V squares = S::zero();
  for (size_t i = 0; i < n; i += 16) {
    const auto v = S::load(x + i);
    squares = S::fma(v, v, squares);
  }
  const float mean = sum_lanes<S>(squares) / (float)n_real;
  const auto scale = S::set1(1.0f / __builtin_sqrtf(mean + eps));
  for (size_t i = 0; i < n; i += 16)
    Acts::store(out + i, S::mul(S::mul(S::load(x + i), scale), S::load(weight + i)));
}

template <class S, class Acts>
void silu_mul(const float* gate, const float* up, size_t n, void* acts) {
  auto* out = (typename Acts::Act*)acts;
  const auto one = S::set1(1.0f);
  for (size_t i = 0; i < n; i += 16) {
    const auto g = S::load(gate + i);
    const auto sigmoid_inverse = S::add(one, exp16<S>(S::sub(S::zero(), g)));
    Acts::store(out + i, S::mul(S::div(g, sigmoid_inverse), S::load(up + i)));
  }
}

template <class S, class Acts>
float softmax(const float* scores, size_t n, float scale, void* acts) {
  auto* out = (typename Acts::Act*)acts;
  const auto lowest = S::set1(-__builtin_inff());
  auto top = lowest;
  for (size_t i = 0; i < n; i += 16)
    top = S::max(top, S::first((uint32_t)(n - i < 16 ? n - i : 16), S::load(scores + i), lowest));
  const auto highest = S::set1(max_lanes<S>(top));
  const auto factor = S::set1(scale);
  auto sum = S::zero();
  for (size_t i = 0; i < n; i += 16) {
    const auto e = exp16<S>(S::mul(S::sub(S::load(scores + i), highest), factor));
    const auto kept = S::first((uint32_t)(n - i < 16 ? n - i : 16), e, S::zero());
    sum = S::add(sum, kept);
    Acts::store(out + i, kept);
  }
  return sum_lanes<S>(sum);
}

template <class S, class Acts>
void scale_to_acts(const float* x, size_t n, float scale, void* acts) {
  auto* out = (typename Acts::Act*)acts;
  const auto factor = S::set1(scale);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) Acts::store(out + i, S::mul(S::load(x + i), factor));
  if (i == n) return;
  float padded[16] = {};
  for (size_t k = i; k < n; ++k) padded[k - i] = x[k];
  typename Acts::Act tail[16];
  Acts::store(tail, S::mul(S::load(padded), factor));
  for (size_t k = i; k < n; ++k) out[k] = tail[k - i];
}

template <class Core, class Acts>
constexpr calrt::cpu::FormatKernels make_format() {
  using S = typename Core::Simd;
  return {sizeof(typename Acts::Act), matmul<Core>,     to_acts<S, Acts>,      rms_norm<S, Acts>,
          silu_mul<S, Acts>,          softmax<S, Acts>, scale_to_acts<S, Acts>};
}

// For sets without a BF16 dot product: activations are rounded, kept as F32 and multiplied there.
template <class S, class Tiles = PortableTiles>
constexpr calrt::cpu::Kernels make_kernels(const char* isa) {
  return {isa,
          {make_format<F32Core<S>, FloatActs<S>>(), make_format<WideCore<S>, RoundedActs<S>>(),
           make_format<WideCore<S>, FloatActs<S>>()},
          make_cells<Tiles>()};
}

template <class S, class Tiles = PortableTiles>
constexpr calrt::cpu::Kernels make_dot_kernels(const char* isa) {
  return {isa,
          {make_format<F32Core<S>, FloatActs<S>>(), make_format<DotCore<S>, PackedActs<S>>(),
           make_format<WideCore<S>, FloatActs<S>>()},
          make_cells<Tiles>()};
}

}  // namespace
