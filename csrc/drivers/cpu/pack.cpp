// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/pack.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/checked.h"
#include "layout/convert.h"

namespace calrt::cpu {
namespace {

uint32_t element_bytes(int32_t dtype) {
  return dtype == CALD_F32 ? 4 : dtype == CALD_BF16 || dtype == CALD_F16 ? 2 : 0;
}

float f32_from_f16(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16;
  const uint32_t exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  float value;
  if (exponent == 0) {  // zero and subnormal: mantissa * 2^-24, exact
    value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t bits =
      sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | (mantissa << 13);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

uint64_t monotonic_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

std::string shape_text(const cald_tensor& tensor) {
  std::string text = "[";
  for (uint32_t d = 0; d < tensor.rank && d < CALD_MAX_RANK; ++d) {
    if (d != 0) text += ", ";
    text += std::to_string(tensor.shape[d]);
  }
  text += "]";
  return text;
}

}  // namespace

void Matrix::read_column(uint32_t column, float* out) const {
  const unsigned char* base = panel(column / 32);
  const uint32_t lane = column % 32;
  if (!bf16) {
    const auto* rows = reinterpret_cast<const float*>(base);
    for (uint32_t k = 0; k < depth; ++k) out[k] = rows[size_t{k} * 32 + lane];
    return;
  }
  const auto* rows = reinterpret_cast<const uint16_t*>(base);
  for (uint32_t k = 0; k < depth; ++k) {
    const uint32_t bits = uint32_t{rows[size_t{k / 2} * 64 + lane * 2 + k % 2]} << 16;
    std::memcpy(out + k, &bits, sizeof bits);
  }
}

TensorReader::TensorReader(const cald_package& package, const cald_load_options& options)
    : package_(package), options_(options), used_(package.n_tensors, false) {
  for (uint32_t t = 0; t < package.n_tensors; ++t) total_ += package.tensors[t]->bytes;
}

Result<const cald_tensor*> TensorReader::find(const std::string& name, uint64_t rows,
                                              uint64_t depth) {
  for (uint32_t t = 0; t < package_.n_tensors; ++t) {
    const cald_tensor& tensor = *package_.tensors[t];
    if (name != tensor.name) continue;
    const bool fits = rows == 0
                          ? tensor.rank == 1 && tensor.shape[0] == depth
                          : tensor.rank == 2 && tensor.shape[0] == rows && tensor.shape[1] == depth;
    if (!fits) {
      cald_tensor needed{};
      needed.rank = rows == 0 ? 1 : 2;
      needed.shape[0] = rows == 0 ? depth : rows;
      needed.shape[1] = depth;
      return fail(Status::PACKAGE_REJECTED, "tensor %.80s has shape %s; the architecture needs %s",
                  tensor.name, shape_text(tensor).c_str(), shape_text(needed).c_str());
    }
    const uint32_t size = element_bytes(tensor.dtype);
    if (size == 0)
      return fail(Status::PACKAGE_REJECTED,
                  "tensor %.80s has dtype %d; this driver reads f32 (1), bf16 (2) and f16 (3)",
                  tensor.name, tensor.dtype);
    const uint64_t bytes = std::max<uint64_t>(rows, 1) * depth * size;
    const cald_artifact& file = *package_.artifacts[package_.weights];
    uint64_t end = 0;
    if (tensor.bytes != bytes || !checked_add(tensor.offset, bytes, &end) || end > file.bytes)
      return fail(
          Status::PACKAGE_CORRUPT,
          "tensor %.80s: %llu bytes at %llu, but its shape needs %llu and the file has %llu",
          tensor.name, static_cast<unsigned long long>(tensor.bytes),
          static_cast<unsigned long long>(tensor.offset), static_cast<unsigned long long>(bytes),
          static_cast<unsigned long long>(file.bytes));
    used_[t] = true;
    return &tensor;
  }
  return fail(Status::PACKAGE_REJECTED, "tensor %.80s is missing", name.c_str());
}

std::string TensorReader::unused() const {
  for (uint32_t t = 0; t < package_.n_tensors; ++t)
    if (!used_[t]) return package_.tensors[t]->name;
  return {};
}

Result<void> TensorReader::read(const cald_tensor& tensor, uint64_t first, uint64_t count,
                                uint64_t depth, float* out) {
  const uint32_t size = element_bytes(tensor.dtype);
  const size_t bytes = static_cast<size_t>(count * depth * size);
  const uint64_t offset = tensor.offset + first * depth * size;
  raw_.resize(bytes);
  for (size_t got = 0; got < bytes;) {
    const ssize_t n = pread(package_.artifacts[package_.weights]->fd, raw_.data() + got,
                            bytes - got, static_cast<off_t>(offset + got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return fail(Status::PACKAGE_CORRUPT, "tensor %.80s: reading %zu bytes at %llu failed: %s",
                  tensor.name, bytes, static_cast<unsigned long long>(offset),
                  n == 0 ? "the file ends before that" : std::strerror(errno));
    got += static_cast<size_t>(n);
  }
  const size_t n = static_cast<size_t>(count * depth);
  if (tensor.dtype == CALD_F32) {
    std::memcpy(out, raw_.data(), bytes);
  } else if (tensor.dtype == CALD_BF16) {
    f32_from_bf16(reinterpret_cast<const uint16_t*>(raw_.data()), out, n);
  } else {
    const auto* halves = reinterpret_cast<const uint16_t*>(raw_.data());
    for (size_t i = 0; i < n; ++i) out[i] = f32_from_f16(halves[i]);
  }
  done_ += bytes;
  return report();
}

Result<void> TensorReader::report(bool always) {
  if (options_.progress == nullptr) return {};
  const uint64_t now = monotonic_ns();
  constexpr uint64_t kPeriodNs = 100'000'000;  // well above the 2 Hz that the ABI promises
  if (!always && now - last_report_ns_ < kPeriodNs) return {};
  last_report_ns_ = now;
  if (options_.progress(options_.user, std::min(done_, total_), total_) != 0)
    return fail(Status::CANCELLED, "the load was cancelled after %llu of %llu bytes",
                static_cast<unsigned long long>(done_), static_cast<unsigned long long>(total_));
  return {};
}

Result<void> pack_panel(TensorReader& reader, const Matrix& matrix, size_t p,
                        const std::vector<PanelPart>& parts, std::vector<float>& scratch) {
  const size_t depth = matrix.depth;
  const size_t even_depth = (depth + 1) / 2 * 2;
  scratch.assign(32 * depth, 0.0f);
  for (const PanelPart& part : parts)
    CALRT_TRY(reader.read(*part.tensor, part.row, part.count, depth,
                          scratch.data() + part.column * depth));
  unsigned char* out = matrix.data + p * matrix.panel_bytes();
  if (!matrix.bf16) {
    auto* rows = reinterpret_cast<float*>(out);
    for (size_t k = 0; k < depth; ++k)
      for (size_t c = 0; c < 32; ++c) rows[k * 32 + c] = scratch[c * depth + k];
    return {};
  }
  std::vector<uint16_t> halves(32 * even_depth, 0);
  for (size_t c = 0; c < 32; ++c)
    bf16_from_f32(scratch.data() + c * depth, halves.data() + c * even_depth, depth);
  auto* rows = reinterpret_cast<uint16_t*>(out);
  for (size_t k = 0; k < even_depth; k += 2)
    for (size_t c = 0; c < 32; ++c)
      std::memcpy(rows + k * 32 + c * 2, halves.data() + c * even_depth + k, 4);
  return {};
}

Result<void> pack_stacked(TensorReader& reader, const Matrix& matrix,
                          const std::vector<const cald_tensor*>& tensors) {
  std::vector<float> scratch;
  size_t tensor = 0;
  uint32_t row = 0;
  for (size_t p = 0; p < matrix.panels(); ++p) {
    std::vector<PanelPart> parts;
    for (uint32_t column = 0; column < 32 && tensor < tensors.size();) {
      const auto left = static_cast<uint32_t>(tensors[tensor]->shape[0]) - row;
      const uint32_t count = std::min(32 - column, left);
      parts.push_back({tensors[tensor], row, column, count});
      column += count;
      row += count;
      if (count == left) {
        ++tensor;
        row = 0;
      }
    }
    CALRT_TRY(pack_panel(reader, matrix, p, parts, scratch));
  }
  return {};
}

}  // namespace calrt::cpu
