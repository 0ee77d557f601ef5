// SPDX-License-Identifier: Apache-2.0
// RoPE on the host against a reference in F64 that turns one pair at a time.
#include "engine/host_rotate.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "layout/convert.h"
#include "tests/check.h"
#include "tests/failing_new.h"

using namespace calrt;
using engine::HostRotation;
using testing::each_allocation_fails;

namespace {

struct Kind {
  uint32_t layers, kv_heads, head_dim, rope_dim;
  int32_t dtype, style;
  double base;
};

cald_arch arch_of(const Kind& kind) {
  cald_arch arch{};
  arch.struct_size = sizeof arch;
  arch.layers = kind.layers;
  arch.kv_heads = kind.kv_heads;
  arch.head_dim = kind.head_dim;
  arch.rope_dim = kind.rope_dim;
  arch.rope_base = static_cast<decltype(arch.rope_base)>(kind.base);
  arch.rope_style = kind.style;
  return arch;
}

size_t element(const Kind& kind) { return kind.dtype == CALD_BF16 ? 2 : 4; }
size_t row(const Kind& kind) { return size_t{kind.kv_heads} * kind.head_dim; }

cald_kv_info info_of(const Kind& kind) {
  cald_kv_info info{};
  info.struct_size = sizeof info;
  info.n_layers = kind.layers;
  info.dtype = kind.dtype;
  info.bytes_per_cell = 2 * kind.layers * row(kind) * element(kind);
  return info;
}

using Bytes = std::vector<unsigned char>;

Bytes some_cells(const Kind& kind, uint32_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  Bytes bytes(n * info_of(kind).bytes_per_cell);
  for (size_t at = 0; at < bytes.size(); at += element(kind)) {
    const float value = normal(random);
    const uint16_t half = bf16_from_f32(value);
    std::memcpy(&bytes[at], kind.dtype == CALD_BF16 ? static_cast<const void*>(&half) : &value,
                element(kind));
  }
  return bytes;
}

double at(const Kind& kind, const Bytes& bytes, size_t index) {
  if (kind.dtype == CALD_BF16) {
    uint16_t half = 0;
    std::memcpy(&half, &bytes[index * 2], 2);
    return f32_from_bf16(half);
  }
  float value = 0;
  std::memcpy(&value, &bytes[index * 4], 4);
  return value;
}

// Element `index` of `before` after a turn by `delta`: x cos - y sin, or x sin + y cos. `scale`:
// the pair's length, which its errors are in proportion to.
double turned(const Kind& kind, const Bytes& before, uint32_t n, size_t index, int32_t delta,
              double* scale) {
  const size_t part = index / (n * row(kind)), dim = index % kind.head_dim;
  *scale = 0;
  if (part % 2 != 0 || dim >= kind.rope_dim) return at(kind, before, index);  // V, or not turned
  const size_t half = kind.rope_dim / 2;
  const bool halves = kind.style == CALD_ROPE_HALF;
  const size_t pair = halves ? dim % half : dim / 2;
  const bool second = halves ? dim >= half : dim % 2 != 0;
  const size_t stride = halves ? half : 1;
  const double x = at(kind, before, second ? index - stride : index);
  const double y = at(kind, before, second ? index : index + stride);
  const double angle = delta * std::pow(kind.base, -2.0 * static_cast<double>(pair) /
                                                       static_cast<double>(kind.rope_dim));
  *scale = std::hypot(x, y);
  return second ? x * std::sin(angle) + y * std::cos(angle)
                : x * std::cos(angle) - y * std::sin(angle);
}

const Kind kKinds[] = {
    {1, 1, 4, 4, CALD_F32, CALD_ROPE_HALF, 10'000},
    {1, 1, 4, 4, CALD_F32, CALD_ROPE_INTERLEAVED, 10'000},
    {3, 2, 16, 8, CALD_F32, CALD_ROPE_HALF, 500'000},
    {3, 2, 16, 8, CALD_F32, CALD_ROPE_INTERLEAVED, 500'000},
    {2, 4, 128, 128, CALD_BF16, CALD_ROPE_HALF, 1'000'000},
    {2, 3, 64, 32, CALD_BF16, CALD_ROPE_INTERLEAVED, 10'000},
    {5, 1, 2, 2, CALD_BF16, CALD_ROPE_HALF, 10'000},
};

}  // namespace

TEST(k_is_turned_and_all_else_keeps_its_bits) {
  for (const Kind& kind : kKinds) {
    const HostRotation rotation = *HostRotation::make(arch_of(kind), info_of(kind));
    for (const uint32_t n : {1u, 2u, 7u})
      for (const int32_t delta : {1, -1, 17, -4'096, 40'959, -40'959}) {
        const Bytes before = some_cells(kind, n, n * 31 + kind.head_dim);
        Bytes after = before;
        CHECK(rotation.turn(after, n, delta).ok());
        size_t wrong = 0;
        for (size_t i = 0; i < before.size() / element(kind); ++i) {
          double scale = 0;
          const double want = turned(kind, before, n, i, delta, &scale);
          // F32 arithmetic on a cosine and a sine that are rounded to F32; BF16 keeps 8 bits.
          const double bound = 3e-7 * scale + (kind.dtype == CALD_BF16 ? std::abs(want) / 256 : 0);
          wrong += std::abs(at(kind, after, i) - want) > (scale == 0 ? 0 : bound);
        }
        CHECK(wrong == 0);
      }
  }
}

TEST(there_and_back_is_within_the_rounding) {
  for (const Kind& kind : kKinds) {
    const HostRotation rotation = *HostRotation::make(arch_of(kind), info_of(kind));
    const Bytes before = some_cells(kind, 5, 7);
    Bytes after = before;
    CHECK(rotation.turn(after, 5, 1'234).ok() && after != before);
    CHECK(rotation.turn(after, 5, -1'234).ok());
    for (size_t i = 0; i < before.size() / element(kind); ++i) {
      double scale = 0;
      (void)turned(kind, before, 5, i, 1, &scale);
      const double bound = kind.dtype == CALD_BF16 ? scale / 64 : 1e-6 * scale;
      CHECK(std::abs(at(kind, after, i) - at(kind, before, i)) <= bound);
    }
  }
}

TEST(no_turn_and_no_cells_change_nothing) {
  const Kind& kind = kKinds[2];
  const HostRotation rotation = *HostRotation::make(arch_of(kind), info_of(kind));
  const Bytes before = some_cells(kind, 3, 1);
  Bytes after = before;
  CHECK(rotation.turn(after, 3, 0).ok() && rotation.turn({}, 0, 5).ok() && after == before);
  const int failed = each_allocation_fails([&] { (void)rotation.turn(after, 3, 5).ok(); },
                                           [&] { CHECK(after == before); });
  CHECK(failed >= 3 && after != before);
}

TEST(cells_that_nobody_described_are_refused) {
  const auto refused = [](Kind kind, const char* why, void (*change)(cald_arch&, cald_kv_info&)) {
    cald_arch arch = arch_of(kind);
    cald_kv_info info = info_of(kind);
    change(arch, info);
    const auto made = HostRotation::make(arch, info);
    return !made.ok() && made.error().code == Status::UNSUPPORTED &&
           made.error().message.find(why) != std::string::npos;
  };
  const Kind good = kKinds[3];
  using A = cald_arch&;
  using I = cald_kv_info&;
  CHECK(!refused(good, "", [](A, I) {}));
  CHECK(refused(good, "bytes", [](A, I info) { info.bytes_per_cell += 4; }));
  CHECK(refused(good, "bytes", [](A, I info) { info.n_layers = 2; }));
  CHECK(refused(good, "bytes", [](A, I info) { info.dtype = CALD_I32; }));
  CHECK(refused(good, "bytes", [](A arch, I) { arch.kv_heads = 1; }));
  CHECK(refused(good, "bytes", [](A arch, I info) { arch.layers = info.n_layers = 0; }));
  CHECK(refused(good, "rope_dim 0", [](A arch, I) { arch.rope_dim = 0; }));
  CHECK(refused(good, "rope_dim 7", [](A arch, I) { arch.rope_dim = 7; }));
  CHECK(refused(good, "rope_dim 18", [](A arch, I) { arch.rope_dim = 18; }));
  CHECK(refused(good, "K is turned", [](A arch, I) { arch.rope_base = 0; }));
  CHECK(refused(good, "K is turned", [](A arch, I) { arch.rope_base = -1; }));
}
