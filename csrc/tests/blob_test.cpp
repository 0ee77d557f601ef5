// SPDX-License-Identifier: Apache-2.0
// State blobs: the pinned bytes of one, round trips, every flipped bit and every truncation
// refused, and headers that are whole but contradict themselves.
#include "kv/blob.h"

#include <algorithm>
#include <optional>
#include <string>

#include "base/crc32c.h"
#include "tests/check.h"
#include "tests/failing_new.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

using Bytes = std::vector<unsigned char>;

uint32_t next_random() {
  static uint32_t x = 2463534242;
  x ^= x << 13;
  x ^= x >> 17;
  return x ^= x << 5;
}

BlobHeader header_of(uint32_t cells, uint64_t bytes_per_cell, bool tokens = true) {
  BlobHeader header;
  for (unsigned char i = 0; i < 32; ++i) {
    header.identity.package_sha256[i] = i;
    header.identity.layout_sha256[i] = static_cast<unsigned char>(32 + i);
  }
  header.identity.dtype = 2;
  header.identity.layers = 3;
  header.identity.kv_heads = 4;
  header.identity.head_dim = 5;
  header.identity.bytes_per_cell = bytes_per_cell;
  header.capacity = cells + 7;
  header.cells = cells;
  header.slab_cells = 1 + cells / 3;
  if (tokens) {
    for (uint32_t i = 0; i < cells; ++i)
      header.tokens.push_back(static_cast<int32_t>(next_random() >> 1));
  }
  return header;
}

Bytes noise(size_t bytes) {
  Bytes out(bytes);
  for (auto& byte : out) byte = static_cast<unsigned char>(next_random());
  return out;
}

// Hands `data` over in pieces of random sizes, empty ones too.
template <class Take>
bool in_pieces(std::span<const unsigned char> data, Take&& take) {
  while (!data.empty()) {
    const size_t n = std::min<size_t>(data.size(), next_random() % 3 == 0
                                                       ? next_random() % 5
                                                       : next_random() % (2 * kBlobChunkBytes));
    if (!take(data.first(n)).ok()) return false;
    data = data.subspan(n);
  }
  return true;
}

Bytes write(const BlobHeader& header, const Bytes& data) {
  auto writer = BlobWriter::make(header);
  CHECK(writer.ok());
  if (!writer.ok()) return {};
  CHECK(in_pieces(data, [&](auto piece) { return writer->add(piece); }));
  auto out = writer->finish();
  CHECK(out.ok());
  if (!out.ok()) return {};
  out->insert(out->end(), data.begin(), data.end());
  return *std::move(out);
}

// All that a loader does.
Result<BlobHeader> load(std::span<const unsigned char> blob, uint64_t total,
                        const BlobIdentity& model, uint32_t capacity) {
  CALRT_TRY_ASSIGN(BlobReader reader, BlobReader::parse(blob, total));
  CALRT_TRY(reader.check(model, capacity));
  CALRT_TRY(reader.verify(blob.subspan(reader.header_bytes())));
  CALRT_TRY(reader.finish());
  return reader.header();
}

bool says(const Error& error, Status code, const char* words) {
  if (error.code == code && error.message.find(words) != std::string::npos) return true;
  std::fprintf(stderr, "is: %s, should have: %s\n", error_text(error).c_str(), words);
  return false;
}

void put(Bytes& blob, size_t at, uint64_t value, size_t bytes = 4) {
  for (size_t i = 0; i < bytes; ++i) blob[at + i] = static_cast<unsigned char>(value >> 8 * i);
}

// A blob of 4 KiB: 256 bytes of header, 16 cells of 240 bytes.
const BlobHeader& small_header() {
  static const BlobHeader header = header_of(16, 240);
  return header;
}
const Bytes& small() {
  static const Bytes blob = write(small_header(), noise(3840));
  return blob;
}
Result<BlobHeader> load_small(std::span<const unsigned char> blob) {
  return load(blob, blob.size(), small_header().identity, 16);
}
// The small blob with `bytes` of its header changed and the header's checksum right again.
Result<BlobHeader> load_changed(size_t at, uint64_t value, size_t bytes = 4) {
  Bytes blob = small();
  put(blob, at, value, bytes);
  put(blob, 252, crc32c(0, blob.data(), 252));
  return load_small(blob);
}

}  // namespace

TEST(golden_bytes) {
  // Made by an independent writer from docs/kv.md.
  const std::string golden =
      "43414c4b5653543101000000c00000000403020100000000000102030405060708090a0b0c0d0e0f10111213"
      "1415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
      "0200000003000000040000000500000003000000000000000900000002000000010000000100000002000000"
      "0100000006000000000000000000000002000000070000002c010000000000000000000006000000abfb4d4f"
      "000000000000000000000000ad093373010203040506";
  BlobHeader header = header_of(2, 3);
  header.tokens = {7, 300};
  std::string text;
  for (const unsigned char byte : write(header, {1, 2, 3, 4, 5, 6})) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", byte);
    text += digits;
  }
  CHECK(text == golden);
}

TEST(round_trips) {
  for (int i = 0; i < 300; ++i) {
    // A cell's bytes reach over several chunks, and cells end on chunks now and then.
    const uint64_t per_cell = i % 10 == 0 ? kBlobChunkBytes / 4 : 1 + next_random() % 90'000;
    const BlobHeader header = header_of(next_random() % 40, per_cell, next_random() % 2 == 0);
    const Bytes data = noise(header.data_bytes());
    const Bytes blob = write(header, data);
    CHECK(blob_bytes(header).value() == blob.size());
    CHECK(blob_header_bytes(header).value() == blob.size() - data.size());
    CHECK(blob_header_bytes(header).value() % 64 == 0);
    CHECK(BlobReader::header_length({blob.data(), kBlobPreambleBytes}, blob.size()).value() ==
          blob.size() - data.size());
    // The header alone is enough to begin with.
    auto reader = BlobReader::parse({blob.data(), blob.size() - data.size()}, blob.size());
    CHECK(reader.ok() && reader->header() == header);
    if (!reader.ok()) continue;
    CHECK(reader->check(header.identity, header.cells).ok());
    CHECK(data.empty() || reader->finish().error().code == Status::INVALID_STATE);
    CHECK(in_pieces(data, [&](auto piece) { return reader->verify(piece); }));
    CHECK(reader->finish().ok());
  }
}

TEST(empty_sequence) {
  const Bytes blob = write(header_of(0, 240), {});
  CHECK(blob.size() == 192);
  CHECK(load(blob, blob.size(), small_header().identity, 0).ok());
}

TEST(every_flipped_bit_is_refused) {
  Bytes blob = small();
  CHECK(blob.size() == 4096 && load_small(blob).ok());
  int refused = 0;
  for (size_t bit = 0; bit < 8 * blob.size(); ++bit) {
    blob[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    const auto loaded = load_small(blob);
    refused += !loaded.ok() && loaded.error().code == Status::KV_INVALID_SEQUENCE &&
               loaded.error().message.size() > 20;
    blob[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
  CHECK(refused == 32'768);
}

TEST(every_truncation_is_refused) {
  const Bytes& blob = small();
  int refused = 0, short_reads = 0;
  for (size_t length = 0; length < blob.size(); ++length) {
    const auto loaded = load_small({blob.data(), length});
    refused +=
        !loaded.ok() && loaded.error().message.find("state blob: truncated") != std::string::npos;
    // The file is whole but less was read of it.
    short_reads += !load({blob.data(), length}, blob.size(), small_header().identity, 16).ok();
  }
  CHECK(refused == 4096);
  CHECK(short_reads == 4096);
  Bytes longer = blob;
  longer.push_back(0);
  CHECK(says(load_small(longer).error(), Status::KV_INVALID_SEQUENCE, "trailing bytes: 4097"));
  CHECK(says(load(blob, 4095, small_header().identity, 16).error(), Status::KV_INVALID_SEQUENCE,
             "truncated"));
}

TEST(damage_is_named) {
  constexpr Status kBad = Status::KV_INVALID_SEQUENCE;
  Bytes blob = small();
  blob[0] = 'X';
  CHECK(says(load_small(blob).error(), kBad, "magic"));
  blob = small();
  blob[200] ^= 1;  // a token id
  CHECK(says(load_small(blob).error(), kBad, "checksum of the header"));
  blob = small();
  blob[4095] ^= 1;
  CHECK(says(load_small(blob).error(), kBad, "checksum of chunk 0"));
  CHECK(says(load_changed(8, 2).error(), kBad, "format 2: this calrt reads format 1"));
  CHECK(says(load_changed(8, 0).error(), kBad, "format 0"));
  CHECK(says(load_changed(12, 255).error(), kBad, "header length 255"));
  CHECK(says(load_changed(12, 0).error(), kBad, "header length 0"));
  CHECK(says(load_changed(12, 0xffffffc0).error(), kBad, "truncated"));
  CHECK(says(load_changed(16, 0x04030201).error(), kBad, "big-endian"));
  CHECK(says(load_changed(16, 0).error(), kBad, "endian mark is 00000000"));
}

// Whole by checksum, and still refused.
TEST(contradictions_are_named) {
  constexpr Status kBad = Status::KV_INVALID_SEQUENCE;
  CHECK(load_changed(20, 0).ok());  // a change that is none
  CHECK(says(load_changed(20, 1).error(), kBad, "pending shift 1"));
  CHECK(says(load_changed(104, 0, 8).error(), kBad, "for 16 cells of 0 bytes"));
  CHECK(says(load_changed(104, 1ull << 60, 8).error(), kBad, "for 16 cells of 11529"));
  CHECK(says(load_changed(112, 15).error(), kBad, "cells=16: the lane has capacity 15"));
  CHECK(says(load_changed(116, 17).error(), kBad, "16 token ids for 17 cells"));
  CHECK(says(load_changed(116, 0xffffffff).error(), kBad, "16 token ids for 4294967295 cells"));
  CHECK(says(load_changed(120, 0).error(), kBad, "slab_cells=0"));
  CHECK(says(load_changed(124, 0).error(), kBad, "0 runs and 1 chunks, should be 1 and 1"));
  CHECK(says(load_changed(124, 0x40000000).error(), kBad, "runs and 1 chunks"));
  CHECK(says(load_changed(128, 15).error(), kBad, "15 token ids for 16 cells"));
  CHECK(says(load_changed(128, 0).error(), kBad, "header length 256, should be 192"));
  CHECK(says(load_changed(132, 0).error(), kBad, "1 runs and 0 chunks"));
  CHECK(says(load_changed(132, 0xffffffff).error(), kBad, "1 runs and 4294967295 chunks"));
  CHECK(says(load_changed(136, 3841, 8).error(), kBad, "3841 bytes of data for 16 cells"));
  CHECK(says(load_changed(144, 1).error(), kBad, "a run of 16 positions from 1"));
  CHECK(says(load_changed(148, 15).error(), kBad, "a run of 15 positions from 0"));
  CHECK(says(load_changed(152, 0x80000000).error(), kBad, "tokens[0]=-2147483648"));
  CHECK(says(load_changed(216, 1, 8).error(), kBad, "chunk 0: 3840 bytes at 1"));
  CHECK(says(load_changed(224, 3839).error(), kBad, "chunk 0: 3839 bytes at 0"));
  CHECK(says(load_changed(228, 1).error(), kBad, "checksum of chunk 0"));
  CHECK(says(load_changed(232, 1).error(), kBad, "bytes between"));
  CHECK(says(load_changed(248, 0x80000000).error(), kBad, "bytes between"));
}

TEST(another_model_is_named) {
  constexpr Status kBad = Status::KV_INVALID_SEQUENCE;
  const auto differs = [](auto&& change, Status code, const char* words, uint32_t capacity = 16) {
    BlobIdentity model = small_header().identity;
    change(model);
    return says(load(small(), 4096, model, capacity).error(), code, words);
  };
  using M = BlobIdentity&;
  CHECK(differs([](M m) { m.package_sha256[31] ^= 1; }, kBad, "another package: 0001020304"));
  CHECK(differs([](M m) { m.layout_sha256[0] ^= 1; }, kBad, "another KV layout: 2021222324"));
  CHECK(differs([](M m) { m.dtype = 7; }, kBad, "dtype=2, the model's is 7"));
  CHECK(differs([](M m) { m.layers = 9; }, kBad, "layers=3, the model's is 9"));
  CHECK(differs([](M m) { m.kv_heads = 9; }, kBad, "kv_heads=4, the model's is 9"));
  CHECK(differs([](M m) { m.head_dim = 9; }, kBad, "head_dim=5, the model's is 9"));
  CHECK(differs([](M m) { m.bytes_per_cell = 9; }, kBad, "bytes_per_cell=240, the model's is 9"));
  CHECK(differs([](M) {}, Status::OUT_OF_RANGE, "16 cells, a lane has 15", 15));
}

TEST(headers_that_cannot_be) {
  const auto refused = [](auto&& change, Status code, const char* words) {
    BlobHeader header = header_of(16, 240);
    change(header);
    return says(BlobWriter::make(header).error(), code, words) &&
           says(blob_bytes(header).error(), code, words) &&
           says(blob_header_bytes(header).error(), code, words);
  };
  using H = BlobHeader&;
  constexpr Status kBad = Status::INVALID_ARGUMENT;
  CHECK(refused([](H h) { h.identity.bytes_per_cell = 0; }, kBad, "bytes_per_cell=0"));
  CHECK(refused([](H h) { h.slab_cells = 0; }, kBad, "slab_cells=0"));
  CHECK(refused([](H h) { h.capacity = 15; }, kBad, "capacity 15"));
  CHECK(refused([](H h) { h.cells = h.capacity = 1u << 31; }, kBad, "cells=2147483648"));
  CHECK(refused([](H h) { h.tokens.pop_back(); }, kBad, "15 token ids for 16 cells"));
  CHECK(refused([](H h) { h.tokens[3] = -1; }, kBad, "tokens[3]=-1"));
  CHECK(refused([](H h) { h.identity.bytes_per_cell = UINT64_MAX; }, Status::OUT_OF_RANGE,
                "too many"));
  CHECK(refused([](H h) { h.identity.bytes_per_cell = UINT64_MAX / 16; }, Status::OUT_OF_RANGE,
                "too many"));
  CHECK(refused([](H h) { h.identity.bytes_per_cell = 1ull << 46; }, Status::OUT_OF_RANGE,
                "too many"));
}

TEST(data_in_wrong_amounts) {
  auto writer = BlobWriter::make(small_header());
  CHECK(says(writer->finish().error(), Status::INVALID_STATE, "0 of 3840 bytes"));
  const Bytes data = noise(3841);
  CHECK(says(writer->add(data).error(), Status::OUT_OF_RANGE, "3841 bytes of data: 3840 of 3840"));
  CHECK(writer->add({data.data(), 3840}).ok());  // the refusal changed nothing
  CHECK(says(writer->add({data.data(), 1}).error(), Status::OUT_OF_RANGE, "0 of 3840 are left"));
  const auto header = writer->finish();
  auto reader = BlobReader::parse(*header, 4096);
  CHECK(reader->verify({data.data(), 100}).ok());
  CHECK(says(reader->finish().error(), Status::INVALID_STATE, "100 of 3840"));
  CHECK(says(reader->verify({data.data() + 100, 3741}).error(), Status::KV_INVALID_SEQUENCE,
             "trailing bytes"));
  CHECK(!reader->verify({data.data() + 100, 3740}).ok() && !reader->finish().ok());
}

TEST(the_wrong_chunk_is_named) {
  const BlobHeader header = header_of(5, kBlobChunkBytes);
  Bytes data = noise(header.data_bytes());
  const Bytes blob = write(header, data);
  data[3 * size_t{kBlobChunkBytes} + 77] ^= 4;
  auto reader = BlobReader::parse(blob, blob.size());
  CHECK(says(reader->verify(data).error(), Status::KV_INVALID_SEQUENCE, "checksum of chunk 3"));
  CHECK(!reader->verify({}).ok() && !reader->finish().ok());
}

TEST(every_allocation_fails_in_turn) {
  const BlobHeader header = header_of(5, kBlobChunkBytes);
  const Bytes data = noise(header.data_bytes());
  const Bytes blob = write(header, data);
  Status code = Status::OK;
  const auto failed = [&] { CHECK(code == Status::OUT_OF_HOST_MEMORY); };
  const auto status = [](const auto& result) {
    return result.ok() ? Status::OK : result.error().code;
  };
  CHECK(testing::each_allocation_fails([&] { code = status(BlobReader::parse(blob, blob.size())); },
                                       failed) >= 2);
  CHECK(code == Status::OK);
  std::optional<Result<BlobWriter>> writer;
  std::vector<BlobHeader> copies(8, header);
  CHECK(testing::each_allocation_fails(
            [&] {
              writer.emplace(BlobWriter::make(std::move(copies.back())));
              copies.pop_back();
              code = status(*writer);
            },
            failed) >= 1);
  CHECK(code == Status::OK);
  CHECK((*writer)->add(data).ok());
  CHECK(testing::each_allocation_fails([&] { code = status((*writer)->finish()); }, failed) >= 1);
  CHECK(code == Status::OK);
}
