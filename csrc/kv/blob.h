// SPDX-License-Identifier: Apache-2.0
// State blob v1: the cells of one sequence as bytes that tell whose they are and whether they are
// whole. Knows no file and no device: bytes come and go by span.
//
// Layout, little-endian (docs/kv.md has the table): magic, format, header length, endian mark,
// SHA-256 of package and of the KV layout, dtype, layers, kv_heads, head_dim, capacity, cells,
// cells a slab, runs, token ids, chunk table {offset, length, CRC32C} of chunks of at most 1 MiB,
// CRC32C of the header, then the data: slabs of cells, each as cald's READ gives it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace calrt::kv {

inline constexpr uint32_t kBlobFormat = 1;
inline constexpr uint32_t kBlobChunkBytes = 1u << 20;
// From these first bytes of a blob its header's length is known.
inline constexpr size_t kBlobPreambleBytes = 20;

// What a blob must agree in with the model that loads it.
struct BlobIdentity {
  std::array<unsigned char, 32> package_sha256{}, layout_sha256{};
  int32_t dtype = 0;
  uint32_t layers = 0, kv_heads = 0, head_dim = 0;
  uint64_t bytes_per_cell = 0;
  bool operator==(const BlobIdentity&) const = default;
};

struct BlobHeader {
  BlobIdentity identity;
  uint32_t capacity = 0;        // cells of the lane that was saved; >= cells
  uint32_t cells = 0;           // tokens; canonical: positions 0..cells-1
  uint32_t slab_cells = 1;      // cells in each slab but the last, which has the rest
  std::vector<int32_t> tokens;  // ids, one a cell; or none
  uint64_t data_bytes() const { return cells * identity.bytes_per_cell; }
  bool operator==(const BlobHeader&) const = default;
};

// Bytes of the whole blob: header, then data. INVALID_ARGUMENT if the header contradicts itself,
// OUT_OF_RANGE if it is too large for the format; so for all that take a header.
Result<uint64_t> blob_bytes(const BlobHeader& header);
// Bytes of everything before the data: a multiple of 64.
Result<uint64_t> blob_header_bytes(const BlobHeader& header);

// Sums up data in the order of the blob, then gives the header's bytes. Not thread-safe.
class BlobWriter {
 public:
  static Result<BlobWriter> make(BlobHeader header);
  const BlobHeader& header() const { return header_; }
  // The next bytes of the data; OUT_OF_RANGE if they are too many.
  Result<void> add(std::span<const unsigned char> data);
  // After the last byte: the header, blob_header_bytes() long. INVALID_STATE before.
  Result<std::vector<unsigned char>> finish() const;

 private:
  BlobHeader header_;
  std::vector<uint32_t> sums_;  // of the chunks begun
  uint64_t added_ = 0;
};

// Reads the header at once; data is checked chunk by chunk as it comes. Not thread-safe.
class BlobReader {
 public:
  // Of the blob whose first bytes (kBlobPreambleBytes at least) are `bytes` and which has `total`
  // in all: how many bytes parse() needs. Never more than `total`.
  static Result<uint64_t> header_length(std::span<const unsigned char> bytes, uint64_t total);
  // `bytes` begins with the blob's first byte and holds the header at least; `total` is the whole
  // blob's size. Damage is KV_INVALID_SEQUENCE naming what is wrong: magic, format, length,
  // checksum; never more is read or allocated than `bytes` can justify.
  static Result<BlobReader> parse(std::span<const unsigned char> bytes, uint64_t total);
  const BlobHeader& header() const { return header_; }
  uint64_t header_bytes() const { return header_bytes_; }
  // The blob is of this model and fits `capacity` cells (else OUT_OF_RANGE); KV_INVALID_SEQUENCE
  // names the field that differs.
  Result<void> check(const BlobIdentity& model, uint32_t capacity) const;
  // The next bytes of the data, in pieces of any size. Names the chunk whose checksum is wrong; the
  // reader is of no use after an error.
  Result<void> verify(std::span<const unsigned char> data);
  // INVALID_STATE unless all data has been verified and was right.
  Result<void> finish() const;

 private:
  BlobHeader header_;
  uint64_t header_bytes_ = 0, verified_ = 0;
  std::vector<uint32_t> sums_;
  uint32_t running_ = 0;  // of the chunk under way
  bool failed_ = false;
};

}  // namespace calrt::kv
