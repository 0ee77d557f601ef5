// SPDX-License-Identifier: Apache-2.0
// Weight matrices as panels (see kernels.h), and reading them from a package's weights file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::cpu {

// A view of panels inside the weights' memory. Columns are outputs, depth is what is summed over.
struct Matrix {
  unsigned char* data = nullptr;
  uint32_t columns = 0;
  uint32_t depth = 0;
  bool bf16 = false;

  size_t panels() const { return (size_t{columns} + 31) / 32; }
  size_t panel_bytes() const { return bf16 ? (size_t{depth} + 1) / 2 * 128 : size_t{depth} * 128; }
  size_t bytes() const { return panels() * panel_bytes(); }
  const unsigned char* panel(size_t p) const { return data + p * panel_bytes(); }
  // One column as `depth` floats.
  void read_column(uint32_t column, float* out) const;
};

// Reads tensors of one package in pieces, and reports progress. Lives during one load.
class TensorReader {
 public:
  TensorReader(const cald_package& package, const cald_load_options& options);

  // The tensor, or PACKAGE_REJECTED when it is missing or its shape is not [rows, depth] (rows 0:
  // a vector [depth]). Marks it as used.
  Result<const cald_tensor*> find(const std::string& name, uint64_t rows, uint64_t depth);
  // The name of a tensor that nothing asked for; empty if there is none.
  std::string unused() const;
  // Rows [first, first + count) of `depth` elements, as F32.
  Result<void> read(const cald_tensor& tensor, uint64_t first, uint64_t count, uint64_t depth,
                    float* out);
  // Tells the caller of the load; CANCELLED when it wants to stop. Rate-limited.
  Result<void> report(bool always = false);

 private:
  const cald_package& package_;
  const cald_load_options& options_;
  std::vector<bool> used_;
  std::vector<unsigned char> raw_;
  uint64_t done_ = 0, total_ = 0, last_report_ns_ = 0;
};

// Columns [first, first + count) of a panel come from rows of a tensor.
struct PanelPart {
  const cald_tensor* tensor;
  uint32_t row;
  uint32_t column;
  uint32_t count;
};

// Fills panel `p` of `matrix`; columns no part covers are zero.
Result<void> pack_panel(TensorReader& reader, const Matrix& matrix, size_t p,
                        const std::vector<PanelPart>& parts, std::vector<float>& scratch);

// The whole matrix from tensors stacked on top of each other.
Result<void> pack_stacked(TensorReader& reader, const Matrix& matrix,
                          const std::vector<const cald_tensor*>& tensors);

}  // namespace calrt::cpu
