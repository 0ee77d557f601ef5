// SPDX-License-Identifier: Apache-2.0
#include "kv/blob.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "base/crc32c.h"
#include "base/out_of_memory.h"
#include "base/sha256.h"

namespace calrt::kv {
namespace {

// docs/kv.md, "State blob v1", has the table of offsets.
constexpr char kMagic[] = "CALKVST1";
constexpr uint32_t kEndianMark = 0x01020304, kSwappedMark = 0x04030201;
constexpr uint64_t kFixedBytes = 144, kRunBytes = 8, kTokenBytes = 4, kChunkRowBytes = 16;
constexpr uint64_t kSumBytes = 4, kAlign = 64;

unsigned long long llu(uint64_t n) { return n; }

[[gnu::format(printf, 1, 2)]] Error damaged(const char* format, ...) {
  char text[256];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return fail(Status::KV_INVALID_SEQUENCE, "state blob: %s", text);
}

// How many of each part a header has, and its length with them.
struct Parts {
  uint32_t runs = 0, tokens = 0, chunks = 0;
  uint64_t header_bytes = 0, data_bytes = 0;
};

// Nothing if the numbers do not fit the format's fields.
std::optional<Parts> parts_of(uint32_t cells, uint64_t bytes_per_cell, uint32_t tokens) {
  Parts parts;
  parts.runs = cells > 0;
  parts.tokens = tokens;
  if (!checked_mul(cells, bytes_per_cell, &parts.data_bytes)) return std::nullopt;
  const uint64_t chunks = ceil_div(parts.data_bytes, kBlobChunkBytes);
  if (chunks > UINT32_MAX) return std::nullopt;
  parts.chunks = static_cast<uint32_t>(chunks);
  const uint64_t used = kFixedBytes + parts.runs * kRunBytes + tokens * kTokenBytes +
                        chunks * kChunkRowBytes + kSumBytes;
  parts.header_bytes = ceil_div(used, kAlign) * kAlign;
  if (parts.header_bytes > UINT32_MAX || parts.data_bytes > UINT64_MAX - parts.header_bytes)
    return std::nullopt;
  return parts;
}

Result<Parts> parts_of(const BlobHeader& header) {
  const auto cells = header.cells;
  if (header.identity.bytes_per_cell == 0)
    return fail(Status::INVALID_ARGUMENT, "bytes_per_cell=0: a cell has bytes");
  if (header.slab_cells == 0)
    return fail(Status::INVALID_ARGUMENT, "slab_cells=0: a slab has 1 cell or more");
  if (cells > header.capacity || cells > uint32_t{INT32_MAX})
    return fail(Status::INVALID_ARGUMENT, "cells=%u: the lane has capacity %u", cells,
                header.capacity);
  if (!header.tokens.empty() && header.tokens.size() != cells)
    return fail(Status::INVALID_ARGUMENT, "%zu token ids for %u cells: one for each, or none",
                header.tokens.size(), cells);
  for (size_t i = 0; i < header.tokens.size(); ++i) {
    if (header.tokens[i] < 0)
      return fail(Status::INVALID_ARGUMENT, "tokens[%zu]=%d: a token id is 0 or more", i,
                  header.tokens[i]);
  }
  const auto parts =
      parts_of(cells, header.identity.bytes_per_cell, static_cast<uint32_t>(header.tokens.size()));
  if (!parts)
    return fail(Status::OUT_OF_RANGE, "%u cells of %llu bytes are too many for a blob", cells,
                llu(header.identity.bytes_per_cell));
  return *parts;
}

// Little-endian, whatever the host is.
class Put {
 public:
  explicit Put(unsigned char* to) : to_(to) {}
  void bytes(const void* from, size_t n) {
    std::memcpy(to_, from, n);
    to_ += n;
  }
  void u32(uint32_t value) {
    for (int shift = 0; shift < 32; shift += 8) *to_++ = static_cast<unsigned char>(value >> shift);
  }
  void u64(uint64_t value) {
    u32(static_cast<uint32_t>(value));
    u32(static_cast<uint32_t>(value >> 32));
  }

 private:
  unsigned char* to_;
};

class Get {
 public:
  explicit Get(const unsigned char* from) : from_(from) {}
  void bytes(void* to, size_t n) {
    std::memcpy(to, from_, n);
    from_ += n;
  }
  uint32_t u32() {
    uint32_t value = 0;
    for (int shift = 0; shift < 32; shift += 8) value |= uint32_t{*from_++} << shift;
    return value;
  }
  uint64_t u64() {
    const uint64_t low = u32();
    return low | uint64_t{u32()} << 32;
  }
  const unsigned char* at() const { return from_; }

 private:
  const unsigned char* from_;
};

uint32_t chunk_length(uint64_t data_bytes, uint64_t chunk) {
  return static_cast<uint32_t>(
      std::min<uint64_t>(kBlobChunkBytes, data_bytes - chunk * kBlobChunkBytes));
}

// Calls each(chunk, its part of `data`) for the chunks that `data` reaches, which begins at byte
// `at` of all data.
template <class Each>
void by_chunks(std::span<const unsigned char> data, uint64_t at, Each&& each) {
  while (!data.empty()) {
    const size_t n = std::min<uint64_t>(data.size(), kBlobChunkBytes - at % kBlobChunkBytes);
    if (!each(at / kBlobChunkBytes, data.first(n))) return;
    data = data.subspan(n);
    at += n;
  }
}

}  // namespace

Result<uint64_t> blob_bytes(const BlobHeader& header) {
  CALRT_TRY_ASSIGN(const Parts parts, parts_of(header));
  return parts.header_bytes + parts.data_bytes;
}

Result<uint64_t> blob_header_bytes(const BlobHeader& header) {
  CALRT_TRY_ASSIGN(const Parts parts, parts_of(header));
  return parts.header_bytes;
}

Result<BlobWriter> BlobWriter::make(BlobHeader header) {
  return or_out_of_memory([&]() -> Result<BlobWriter> {
    CALRT_TRY_ASSIGN(const Parts parts, parts_of(header));
    BlobWriter writer;
    writer.sums_.resize(parts.chunks);
    writer.header_ = std::move(header);
    return writer;
  });
}

Result<void> BlobWriter::add(std::span<const unsigned char> data) {
  const uint64_t left = header_.data_bytes() - added_;
  if (data.size() > left)
    return fail(Status::OUT_OF_RANGE, "%zu bytes of data: %llu of %llu are left", data.size(),
                llu(left), llu(header_.data_bytes()));
  by_chunks(data, added_, [&](uint64_t chunk, std::span<const unsigned char> part) {
    sums_[chunk] = crc32c(sums_[chunk], part.data(), part.size());
    return true;
  });
  added_ += data.size();
  return {};
}

Result<std::vector<unsigned char>> BlobWriter::finish() const {
  return or_out_of_memory([&]() -> Result<std::vector<unsigned char>> {
    CALRT_TRY_ASSIGN(const Parts parts, parts_of(header_));
    if (added_ != parts.data_bytes)
      return fail(Status::INVALID_STATE, "%llu of %llu bytes of data were added", llu(added_),
                  llu(parts.data_bytes));
    std::vector<unsigned char> out(parts.header_bytes);
    const BlobIdentity& identity = header_.identity;
    Put put(out.data());
    put.bytes(kMagic, 8);
    put.u32(kBlobFormat);
    put.u32(static_cast<uint32_t>(parts.header_bytes));
    put.u32(kEndianMark);
    put.u32(0);  // no pending shift
    put.bytes(identity.package_sha256.data(), 32);
    put.bytes(identity.layout_sha256.data(), 32);
    put.u32(static_cast<uint32_t>(identity.dtype));
    put.u32(identity.layers);
    put.u32(identity.kv_heads);
    put.u32(identity.head_dim);
    put.u64(identity.bytes_per_cell);
    put.u32(header_.capacity);
    put.u32(header_.cells);
    put.u32(header_.slab_cells);
    put.u32(parts.runs);
    put.u32(parts.tokens);
    put.u32(parts.chunks);
    put.u64(parts.data_bytes);
    if (parts.runs > 0) {
      put.u32(0);  // its first position
      put.u32(header_.cells);
    }
    for (const int32_t token : header_.tokens) put.u32(static_cast<uint32_t>(token));
    for (uint32_t chunk = 0; chunk < parts.chunks; ++chunk) {
      put.u64(uint64_t{chunk} * kBlobChunkBytes);
      put.u32(chunk_length(parts.data_bytes, chunk));
      put.u32(sums_[chunk]);
    }
    const size_t summed = out.size() - kSumBytes;  // zeros between the table and the sum
    Put(out.data() + summed).u32(crc32c(0, out.data(), summed));
    return out;
  });
}

Result<uint64_t> BlobReader::header_length(std::span<const unsigned char> bytes, uint64_t total) {
  if (bytes.size() < kBlobPreambleBytes || total < bytes.size())
    return damaged("truncated: %llu bytes of %llu", llu(bytes.size()), llu(total));
  if (std::memcmp(bytes.data(), kMagic, 8) != 0)
    return damaged("wrong magic: this is no state blob, or damaged");
  Get get(bytes.data() + 8);
  const uint32_t format = get.u32(), length = get.u32(), mark = get.u32();
  if (mark == kSwappedMark) return damaged("big-endian: written by another kind of host");
  if (mark != kEndianMark) return damaged("endian mark is %08x, should be %08x", mark, kEndianMark);
  if (format != kBlobFormat)
    return damaged("format %u: this calrt reads format %u", format, kBlobFormat);
  if (length % kAlign != 0 || length < kFixedBytes + kSumBytes)
    return damaged("header length %u: should be a multiple of %llu, at least %llu", length,
                   llu(kAlign), llu(kFixedBytes + kSumBytes));
  if (length > total)
    return damaged("truncated: %llu bytes, its header alone has %u", llu(total), length);
  return length;
}

Result<BlobReader> BlobReader::parse(std::span<const unsigned char> bytes, uint64_t total) {
  return or_out_of_memory([&]() -> Result<BlobReader> {
    CALRT_TRY_ASSIGN(const uint64_t length, header_length(bytes, total));
    if (length > bytes.size())
      return damaged("its header has %llu bytes, %llu were given", llu(length), llu(bytes.size()));
    const size_t summed = length - kSumBytes;
    const uint32_t sum = crc32c(0, bytes.data(), summed);
    const uint32_t stored = Get(bytes.data() + summed).u32();
    if (sum != stored)
      return damaged("checksum of the header is %08x, should be %08x", sum, stored);

    BlobReader reader;
    reader.header_bytes_ = length;
    BlobHeader& header = reader.header_;
    BlobIdentity& identity = header.identity;
    Get get(bytes.data() + kBlobPreambleBytes);
    const uint32_t shift = get.u32();
    get.bytes(identity.package_sha256.data(), 32);
    get.bytes(identity.layout_sha256.data(), 32);
    identity.dtype = static_cast<int32_t>(get.u32());
    identity.layers = get.u32();
    identity.kv_heads = get.u32();
    identity.head_dim = get.u32();
    identity.bytes_per_cell = get.u64();
    header.capacity = get.u32();
    header.cells = get.u32();
    header.slab_cells = get.u32();
    const uint32_t runs = get.u32(), tokens = get.u32(), chunks = get.u32();
    const uint64_t data_bytes = get.u64();

    if (shift != 0) return damaged("pending shift %u: a blob has none", shift);
    if (tokens != 0 && tokens != header.cells)
      return damaged("%u token ids for %u cells: one for each, or none", tokens, header.cells);
    const auto parts = parts_of(header.cells, identity.bytes_per_cell, tokens);
    if (!parts || parts->data_bytes != data_bytes)
      return damaged("%llu bytes of data for %u cells of %llu bytes", llu(data_bytes), header.cells,
                     llu(identity.bytes_per_cell));
    if (runs != parts->runs || chunks != parts->chunks)
      return damaged("%u runs and %u chunks, should be %u and %u", runs, chunks, parts->runs,
                     parts->chunks);
    // From here on what is read lies in the header, and what is allocated is no more than it.
    if (length != parts->header_bytes)
      return damaged("header length %llu, should be %llu", llu(length), llu(parts->header_bytes));
    if (total != length + data_bytes)
      return damaged("%s: %llu bytes, should be %llu",
                     total < length + data_bytes ? "truncated" : "trailing bytes", llu(total),
                     llu(length + data_bytes));
    if (runs > 0) {
      const uint32_t position = get.u32(), cells = get.u32();
      if (position != 0 || cells != header.cells)
        return damaged("a run of %u positions from %u, should be %u from 0", cells, position,
                       header.cells);
    }
    header.tokens.resize(tokens);
    for (int32_t& token : header.tokens) token = static_cast<int32_t>(get.u32());
    reader.sums_.resize(chunks);
    for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
      const uint64_t offset = get.u64();
      const uint32_t bytes_of = get.u32();
      if (offset != uint64_t{chunk} * kBlobChunkBytes ||
          bytes_of != chunk_length(data_bytes, chunk))
        return damaged("chunk %u: %u bytes at %llu, should be %u at %llu", chunk, bytes_of,
                       llu(offset), chunk_length(data_bytes, chunk),
                       llu(uint64_t{chunk} * kBlobChunkBytes));
      reader.sums_[chunk] = get.u32();
    }
    if (std::any_of(get.at(), bytes.data() + summed, [](unsigned char byte) { return byte != 0; }))
      return damaged("bytes between chunk table and checksum that are not 0");
    if (auto sound = parts_of(header); !sound) return damaged("%s", sound.error().message.c_str());
    return reader;
  });
}

Result<void> BlobReader::check(const BlobIdentity& model, uint32_t capacity) const {
  const BlobIdentity& mine = header_.identity;
  if (mine.package_sha256 != model.package_sha256)
    return damaged("of another package: %.16s..., the model's is %.16s...",
                   hex(mine.package_sha256).c_str(), hex(model.package_sha256).c_str());
  if (mine.layout_sha256 != model.layout_sha256)
    return damaged("of another KV layout: %.16s..., the model's is %.16s...",
                   hex(mine.layout_sha256).c_str(), hex(model.layout_sha256).c_str());
  const struct {
    const char* name;
    uint64_t mine, models;
  } fields[] = {{"dtype", static_cast<uint32_t>(mine.dtype), static_cast<uint32_t>(model.dtype)},
                {"layers", mine.layers, model.layers},
                {"kv_heads", mine.kv_heads, model.kv_heads},
                {"head_dim", mine.head_dim, model.head_dim},
                {"bytes_per_cell", mine.bytes_per_cell, model.bytes_per_cell}};
  for (const auto& field : fields) {
    if (field.mine != field.models)
      return damaged("%s=%llu, the model's is %llu", field.name, llu(field.mine),
                     llu(field.models));
  }
  if (header_.cells > capacity)
    return fail(Status::OUT_OF_RANGE, "state blob: %u cells, a lane has %u", header_.cells,
                capacity);
  return {};
}

Result<void> BlobReader::verify(std::span<const unsigned char> data) {
  if (failed_) return fail(Status::INVALID_STATE, "state blob: found damaged before");
  const uint64_t all = header_.data_bytes();
  if (data.size() > all - verified_) {
    failed_ = true;
    return damaged("trailing bytes: %llu bytes of data, should be %llu",
                   llu(verified_) + data.size(), llu(all));
  }
  uint64_t wrong = 0;
  by_chunks(data, verified_, [&](uint64_t chunk, std::span<const unsigned char> part) {
    running_ = crc32c(running_, part.data(), part.size());
    verified_ += part.size();
    if (verified_ % kBlobChunkBytes != 0 && verified_ != all) return true;
    failed_ = running_ != sums_[chunk];
    wrong = chunk;
    if (!failed_) running_ = 0;
    return !failed_;
  });
  if (failed_)
    return damaged("checksum of chunk %llu is %08x, should be %08x", llu(wrong), running_,
                   sums_[wrong]);
  return {};
}

Result<void> BlobReader::finish() const {
  if (failed_) return fail(Status::INVALID_STATE, "state blob: found damaged before");
  if (verified_ != header_.data_bytes())
    return fail(Status::INVALID_STATE, "state blob: %llu of %llu bytes of data were verified",
                llu(verified_), llu(header_.data_bytes()));
  return {};
}

}  // namespace calrt::kv
