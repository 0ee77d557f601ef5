// SPDX-License-Identifier: Apache-2.0
// Property: whatever bytes a state blob has, it is refused with a reason, or it is exactly what the
// writer makes of what was read. Each input is tried as it is, and with its checksums made right,
// so that the checks behind them are reached.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "kv/blob.h"

namespace {

using calrt::Status;
using calrt::kv::BlobReader;
using calrt::kv::BlobWriter;
using Bytes = std::vector<unsigned char>;

// Ends the process, as libFuzzer wants its findings told.
void must(bool holds, const char* property) {
  if (holds) return;
  std::fprintf(stderr, "broken property: %s\n", property);
  std::abort();
}

void must_tell(const calrt::Error& error) {
  must(error.code == Status::KV_INVALID_SEQUENCE && !error.message.empty(), "a refusal says why");
}

// Whether it was taken.
bool load(std::span<const unsigned char> blob) {
  auto reader = BlobReader::parse(blob, blob.size());
  if (!reader.ok()) {
    must_tell(reader.error());
    return false;
  }
  const calrt::kv::BlobHeader& header = reader->header();
  const auto data = blob.subspan(reader->header_bytes());
  must(calrt::kv::blob_bytes(header).ok() && *calrt::kv::blob_bytes(header) == blob.size(),
       "its size follows from its header");
  must(reader->check(header.identity, header.cells).ok(), "it is its own model's");
  const size_t cut = data.size() / 3;
  auto verified = reader->verify(data.first(cut));
  if (verified.ok()) verified = reader->verify(data.subspan(cut));
  must(verified.ok() == reader->finish().ok(), "it is whole when all of it was right");
  if (!verified.ok()) {
    must_tell(verified.error());
    return false;
  }
  auto writer = BlobWriter::make(header);
  must(writer.ok() && writer->add(data).ok(), "what was read can be written");
  const auto again = writer->finish();
  must(again.ok() && again->size() == reader->header_bytes() &&
           std::memcmp(again->data(), blob.data(), again->size()) == 0,
       "there is one blob for what it says");
  return true;
}

void put_u32(unsigned char* to, uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<unsigned char>(value >> 8 * i);
}

uint32_t get_u32(const unsigned char* from) {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= uint32_t{from[i]} << 8 * i;
  return value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Bytes blob(data, data + size);
  if (load(blob)) return 0;
  const auto length = BlobReader::header_length(blob, blob.size());
  if (!length.ok()) return 0;
  // The one chunk of so small an input, where the header says that its row is; then the header.
  const uint64_t row = 144 + uint64_t{get_u32(&blob[124])} * 8 + uint64_t{get_u32(&blob[128])} * 4;
  if (row + 20 <= *length)
    put_u32(&blob[row + 12], calrt::crc32c(0, blob.data() + *length, blob.size() - *length));
  put_u32(&blob[*length - 4], calrt::crc32c(0, blob.data(), *length - 4));
  load(blob);
  return 0;
}
