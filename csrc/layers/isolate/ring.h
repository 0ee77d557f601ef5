// SPDX-License-Identifier: Apache-2.0
// The ring from the child to the parent: ends of jobs, log lines and trace events, as they happen.
// Many threads write, one reads.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "layers/isolate/shared_memory.h"

namespace calrt::isolate {

enum class Record : uint32_t { COMPLETION = 1, LOG = 2, TRACE = 3 };

// The child's end. Thread-safe.
class RingWriter {
 public:
  RingWriter(RingState* state, unsigned char* data, int eventfd)
      : state_(state), data_(data), eventfd_(eventfd) {}
  // Waits for room if it `must`; else a record that finds the ring half full is dropped and
  // counted.
  void write(Record kind, std::string_view record, bool must);
  uint64_t position() const { return state_->written.load(); }

 private:
  RingState* const state_;
  unsigned char* const data_;
  const int eventfd_;
  std::mutex mutex_;
};

// The parent's end. One thread reads; position() is thread-safe.
class RingReader {
 public:
  RingReader(RingState* state, const unsigned char* data) : state_(state), data_(data) {}
  // Gives each record that is there to `take`. False: what is there makes no sense.
  bool read(const std::function<bool(Record, std::string_view)>& take);
  uint64_t position() const { return at_.load(); }  // all before it has been taken
  uint64_t dropped() const { return state_->dropped.load(); }

 private:
  RingState* const state_;
  const unsigned char* const data_;
  std::atomic<uint64_t> at_ = 0;  // what is shared is only for the child to see
  std::string record_;
};

}  // namespace calrt::isolate
