// SPDX-License-Identifier: Apache-2.0
// A descriptor that becomes readable when jobs end: how an event loop waits for jobs.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"

namespace calrt::engine {

// Thread-safe. post() is called on driver threads: it allocates nothing and never waits.
class CompletionFd {
 public:
  static Result<std::shared_ptr<CompletionFd>> make();
  ~CompletionFd();
  CompletionFd(const CompletionFd&) = delete;
  CompletionFd& operator=(const CompletionFd&) = delete;

  // Readable while tags are pending.
  int fd() const { return read_; }
  // Makes room for one more post(); to be called once for each before it.
  void expect();
  void post(uint64_t tag) noexcept;
  // All tags posted since the last drain, oldest first; clears the descriptor.
  std::vector<uint64_t> drain();

 private:
  CompletionFd() = default;
  int read_ = -1, write_ = -1;  // the same eventfd on Linux, a pipe elsewhere
  RankedMutex mutex_{LockRank::LEAF, "completion fd"};
  std::vector<uint64_t> pending_;
  size_t expected_ = 0;
};

}  // namespace calrt::engine
