// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_state.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/sha256.h"

namespace calrt::engine {

namespace {

constexpr uint64_t kPieceBytes = 1u << 20;

// Bytes of the data from where the last call left off.
class DataOf {
 public:
  DataOf(StateSource& source, uint64_t begin) : source_(source), at_(begin) {}
  Result<void> fill(std::span<unsigned char> out) {
    while (!out.empty()) {
      const uint64_t n = std::min<uint64_t>(out.size(), kPieceBytes);
      CALRT_TRY_ASSIGN(const auto piece, source_.at(at_, n));
      std::memcpy(out.data(), piece.data(), n);
      out = out.subspan(n);
      at_ += n;
    }
    return {};
  }

 private:
  StateSource& source_;
  uint64_t at_;
};

Result<kv::BlobReader> read_header(StateSource& source) {
  const uint64_t total = source.size();
  CALRT_TRY_ASSIGN(const auto first, source.at(0, std::min(total, kPieceBytes)));
  CALRT_TRY_ASSIGN(const uint64_t need, kv::BlobReader::header_length(first, total));
  if (need <= first.size()) return kv::BlobReader::parse(first, total);
  std::vector<unsigned char> header(need);  // the source has as much
  CALRT_TRY(DataOf(source, 0).fill(header));
  return kv::BlobReader::parse(header, total);
}

Result<void> verify_data(StateSource& source, kv::BlobReader reader) {
  const uint64_t end = reader.header_bytes() + reader.header().data_bytes();
  for (uint64_t at = reader.header_bytes(); at < end;) {
    const uint64_t n = std::min(end - at, kPieceBytes);
    CALRT_TRY_ASSIGN(const auto piece, source.at(at, n));
    CALRT_TRY(reader.verify(piece));
    at += n;
  }
  return reader.finish();
}

}  // namespace

namespace {

// Of 64 hex digits, as the loader has made sure of.
std::array<unsigned char, 32> digest_of(const char* id) {
  std::array<unsigned char, 32> digest{};
  for (size_t i = 0; i < 64 && id[i] != 0; ++i) {
    const char c = id[i];
    const int value = c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
    digest[i / 2] = static_cast<unsigned char>(digest[i / 2] << 4 | value);
  }
  return digest;
}

}  // namespace

kv::BlobIdentity blob_identity(const KvMover& mover) {
  kv::BlobIdentity identity;
  const cald_package& package = mover.model()->package().typed();
  identity.package_sha256 = digest_of(package.id);
  const cald_kv_info& info = mover.info();
  identity.dtype = info.dtype;
  identity.layers = info.n_layers;
  identity.bytes_per_cell = info.bytes_per_cell;
  if (package.arch != nullptr) {
    identity.kv_heads = package.arch->kv_heads;
    identity.head_dim = package.arch->head_dim;
  }
  char layout[160];
  std::snprintf(layout, sizeof layout, "layers=%u,parts=k|v,dtype=%d,heads=%u,dim=%u,cell=%llu",
                identity.layers, identity.dtype, identity.kv_heads, identity.head_dim,
                (unsigned long long)identity.bytes_per_cell);
  Sha256 sum;
  sum.update(layout, std::strlen(layout));
  identity.layout_sha256 = sum.digest();
  return identity;
}

namespace {

kv::BlobHeader header_of(const KvMover& mover, uint32_t cells, std::vector<int32_t> tokens) {
  return {.identity = blob_identity(mover),
          .capacity = mover.queue()->table()->cells(),
          .cells = cells,
          .slab_cells = mover.slab_cells(),
          .tokens = std::move(tokens)};
}

Result<void> save(KvMover& mover, const kv::LaneRef& lane, KvMover::Cells whose,
                  kv::BlobHeader header, StateSink& sink, const MoveCall& call) {
  CALRT_TRY_ASSIGN(kv::BlobWriter writer, kv::BlobWriter::make(std::move(header)));
  CALRT_TRY_ASSIGN(uint64_t at, kv::blob_header_bytes(writer.header()));
  CALRT_TRY(mover.read(
      lane, whose, writer.header().cells, writer.header().slab_cells,
      [&](std::span<const unsigned char> slab) -> Result<void> {
        CALRT_TRY(writer.add(slab));
        CALRT_TRY(sink.write_at(at, slab));
        at += slab.size();
        return {};
      },
      call));
  CALRT_TRY_ASSIGN(const std::vector<unsigned char> finished, writer.finish());
  return sink.write_at(0, finished);
}

}  // namespace

Result<uint64_t> state_bytes(const KvMover& mover, uint32_t cells, uint32_t tokens) {
  return kv::blob_bytes(header_of(mover, cells, std::vector<int32_t>(tokens)));
}

Result<void> save_state(KvMover& mover, const kv::LaneRef& lane, std::vector<int32_t> tokens,
                        StateSink& sink, const MoveCall& call) {
  if (!mover.caps().read)
    return fail(Status::UNSUPPORTED, "save: this model's cells cannot be read (kv_read)");
  CALRT_TRY(mover.apply(lane, call));
  CALRT_TRY_ASSIGN(const kv::LaneSnapshot now, mover.queue()->table()->snapshot(lane));
  if (!tokens.empty() && tokens.size() != now.length)
    return fail(Status::SHAPE_MISMATCH, "tokens: %zu ids, but lane %u holds %u cells",
                tokens.size(), lane.lane, now.length);
  return save(mover, lane, KvMover::Cells::OWN, header_of(mover, now.length, std::move(tokens)),
              sink, call);
}

Result<void> save_evicted(KvMover& mover, const kv::LaneRef& lane, uint32_t cells, StateSink& sink,
                          const MoveCall& call) {
  return save(mover, lane, KvMover::Cells::EVICTED, header_of(mover, cells, {}), sink, call);
}

Result<kv::BlobHeader> load_state(KvMover& mover, const kv::LaneRef& lane, StateSource& source,
                                  const MoveCall& call) {
  if (!mover.caps().write)
    return fail(Status::UNSUPPORTED, "load: this model's cells cannot be written (kv_write)");
  CALRT_TRY_ASSIGN(kv::BlobReader reader, read_header(source));
  CALRT_TRY(reader.check(blob_identity(mover), mover.queue()->table()->cells()));
  if (reader.header().slab_cells > mover.slab_cells())
    return fail(Status::OUT_OF_RANGE, "state: slabs of %u cells, but at most %u move at once",
                reader.header().slab_cells, mover.slab_cells());
  CALRT_TRY(verify_data(source, reader));
  // The source may change between the two readings: what is written was checked again.
  DataOf data(source, reader.header_bytes());
  CALRT_TRY(mover.write(
      lane, reader.header().cells, reader.header().slab_cells,
      [&](std::span<unsigned char> slab) -> Result<void> {
        CALRT_TRY(data.fill(slab));
        return reader.verify(slab);
      },
      call));
  return reader.header();
}

}  // namespace calrt::engine
