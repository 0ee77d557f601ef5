// SPDX-License-Identifier: Apache-2.0
// A thread pool for short parallel loops. Work is claimed chunk by chunk from one atomic ticket,
// and run() waits for chunks that were claimed, never for a worker to wake up: a worker that the
// system has put aside costs nothing but its help.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/result.h"

namespace calrt::cpu {

class Pool {
 public:
  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Starts threads - 1 workers; the caller of run() is the other one. Call once.
  Result<void> start(uint32_t threads);
  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  static constexpr uint32_t kMaxChunks = 0xffff;
  // Calls body(chunk, thread) for every chunk < chunks (at most kMaxChunks), thread < threads().
  // Chunks run in any order and must not depend on each other. Returns when all are done. Called
  // from one thread at a time; body must not throw.
  template <class Body>
  void run(uint32_t chunks, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased(
        chunks,
        [](void* b, uint32_t chunk, uint32_t thread) { (*static_cast<Plain*>(b))(chunk, thread); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* body, uint32_t chunk, uint32_t thread);
  void run_erased(uint32_t chunks, Call call, void* body);
  void work(uint64_t generation, uint32_t thread);
  void worker_loop(uint32_t thread);
  void wait_for_work(uint64_t seen_generation);

  // generation << 32 | chunks << 16 | next. A chunk is claimed by raising `next` of the generation
  // it was read from, so a late worker can never claim a chunk of a loop that has ended.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<uint32_t> done_{0};
  // Written before the ticket is published and stable while any chunk of it is claimed.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> body_{nullptr};

  std::atomic<uint32_t> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace calrt::cpu
