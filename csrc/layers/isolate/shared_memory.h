// SPDX-License-Identifier: Apache-2.0
// What the two processes share: one memfd, mapped in both.
//
//   control   a page of states, the messages of the channels, the ring
//   arena     blocks of the child's, which its driver takes from its host
//   staging   blocks of the parent's: what is copied in and out
//
// All of it is laid out at once and takes no memory until it is touched. Its size is sealed, so
// that no process can pull it away under the other. Both map it at addresses that are equal up to
// Arena::kMostAlign: a block is aligned in one as in the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/result.h"

namespace calrt::isolate {

inline constexpr uint32_t kChannels = 8;                      // calls in flight at once
inline constexpr uint64_t kMessageBytes = uint64_t{4} << 20;  // the longest message
inline constexpr uint64_t kRingBytes = uint64_t{1} << 20;

// One request at a time goes there and its reply comes back: whose turn it is says who may write.
struct ChannelState {
  alignas(64) std::atomic<uint32_t> turn;       // Turn
  alignas(64) std::atomic<uint32_t> sleeps[2];  // by Turn: it needs its eventfd to see its turn
  alignas(64) std::atomic<uint32_t> kind;       // of the message
  std::atomic<uint32_t> bytes;
};

struct RingState {
  alignas(64) std::atomic<uint64_t> written;  // bytes, ever; the child's
  std::atomic<uint32_t> signalled;            // the parent has been woken for what is there
  std::atomic<uint64_t> dropped;              // records without which it goes
  alignas(64) std::atomic<uint64_t> read;     // bytes, ever; the parent's
};

// Whether the child lives: it answers with the number that it was asked.
struct PulseState {
  alignas(64) std::atomic<uint64_t> asked;
  alignas(64) std::atomic<uint64_t> answered;
};

struct ControlPage {
  uint64_t arena_bytes, staging_bytes;  // set before the child starts
  ChannelState channels[kChannels];
  RingState ring;
  PulseState pulse;
};

// Atomics between processes are plain memory only where they need no lock.
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class SharedMemory {
 public:
  static Result<SharedMemory> create();
  // The child's: takes the descriptor.
  static Result<SharedMemory> attach(int fd);
  SharedMemory(SharedMemory&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)),
        base_(std::exchange(other.base_, nullptr)),
        arena_bytes_(other.arena_bytes_),
        staging_bytes_(other.staging_bytes_) {}
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  int fd() const { return fd_; }
  ControlPage& control() const { return *reinterpret_cast<ControlPage*>(base_); }
  unsigned char* message(uint32_t channel) const {
    return base_ + kFirstMessage + channel * kMessageBytes;
  }
  unsigned char* ring() const { return message(kChannels); }
  unsigned char* arena() const { return base_ + kControlBytes; }
  unsigned char* staging() const { return arena() + arena_bytes_; }
  uint64_t arena_bytes() const { return arena_bytes_; }
  uint64_t staging_bytes() const { return staging_bytes_; }

 private:
  static constexpr uint64_t kControlBytes = uint64_t{1} << 30;  // a multiple of kMostAlign
  static constexpr uint64_t kFirstMessage = 64 << 10;
  static_assert(sizeof(ControlPage) <= kFirstMessage);
  static_assert(kFirstMessage + kChannels * kMessageBytes + kRingBytes <= kControlBytes);

  SharedMemory(int fd, uint64_t arena_bytes, uint64_t staging_bytes)
      : fd_(fd), arena_bytes_(arena_bytes), staging_bytes_(staging_bytes) {}
  uint64_t bytes() const { return kControlBytes + arena_bytes_ + staging_bytes_; }
  Result<void> map();

  int fd_ = -1;
  unsigned char* base_ = nullptr;
  uint64_t arena_bytes_ = 0, staging_bytes_ = 0;
};

}  // namespace calrt::isolate
