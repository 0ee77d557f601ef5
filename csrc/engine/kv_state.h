// SPDX-License-Identifier: Apache-2.0
// Saves and restores sequences as state blobs (kv/blob.h), in memory or in files, slab by slab.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/kv_mover.h"
#include "kv/blob.h"

namespace calrt::engine {

// Where a blob goes. Not thread-safe.
class StateSink {
 public:
  virtual ~StateSink() = default;
  virtual Result<void> write_at(uint64_t offset, std::span<const unsigned char> bytes) = 0;
};

// Where a blob comes from. Not thread-safe.
class StateSource {
 public:
  virtual ~StateSource() = default;
  virtual uint64_t size() const = 0;
  // Bytes [offset, offset + n) of it, n <= 4 MiB, valid until the next call.
  virtual Result<std::span<const unsigned char>> at(uint64_t offset, uint64_t n) = 0;
};

// Memory of the caller, which must stay.
class MemorySink final : public StateSink {
 public:
  explicit MemorySink(std::span<unsigned char> memory) : memory_(memory) {}
  Result<void> write_at(uint64_t offset, std::span<const unsigned char> bytes) override;

 private:
  std::span<unsigned char> memory_;
};

class MemorySource final : public StateSource {
 public:
  explicit MemorySource(std::span<const unsigned char> memory) : memory_(memory) {}
  uint64_t size() const override { return memory_.size(); }
  Result<std::span<const unsigned char>> at(uint64_t offset, uint64_t n) override;

 private:
  std::span<const unsigned char> memory_;
};

// A file that exists under its name only once it is whole.
class FileSink final : public StateSink {
 public:
  static Result<FileSink> open(std::string path);
  FileSink(FileSink&& other) noexcept;
  ~FileSink() override;  // removes what was not committed
  Result<void> write_at(uint64_t offset, std::span<const unsigned char> bytes) override;
  Result<void> commit();

 private:
  FileSink(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}
  std::string path_, temporary_;
  int fd_ = -1;
};

class FileSource final : public StateSource {
 public:
  static Result<FileSource> open(std::string path);  // a regular file
  FileSource(FileSource&& other) noexcept;
  ~FileSource() override;
  uint64_t size() const override { return size_; }
  Result<std::span<const unsigned char>> at(uint64_t offset, uint64_t n) override;

 private:
  FileSource(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  std::vector<unsigned char> scratch_;
};

// What a blob of the mover's model must say of itself.
kv::BlobIdentity blob_identity(const KvMover& mover);

// Bytes of the blob of a lane that holds `cells` cells, with `tokens` token ids (0 or `cells`).
Result<uint64_t> state_bytes(const KvMover& mover, uint32_t cells, uint32_t tokens);

// Makes the lane's data follow its bookkeeping, and saves all of it. `tokens`: the ids in its
// cells, one for each, or none.
Result<void> save_state(KvMover& mover, const kv::LaneRef& lane, std::vector<int32_t> tokens,
                        StateSink& sink, const MoveCall& call);

// The same for the `cells` cells of the prefix that was evicted from the lane.
Result<void> save_evicted(KvMover& mover, const kv::LaneRef& lane, uint32_t cells, StateSink& sink,
                          const MoveCall& call);

// Reads and checks the whole blob first; a blob that is refused leaves the lane as it is. Then the
// lane holds what was saved, and nothing else. The ids that were saved with it.
Result<kv::BlobHeader> load_state(KvMover& mover, const kv::LaneRef& lane, StateSource& source,
                                  const MoveCall& call);

}  // namespace calrt::engine
