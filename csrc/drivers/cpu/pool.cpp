// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/pool.h"

#include <system_error>

namespace calrt::cpu {
namespace {

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

// About 20 us: longer than the serial pieces between two loops of a token, short enough not to
// hold a shared core between tokens.
constexpr int kSpins = 500;

constexpr uint64_t generation_of(uint64_t ticket) { return ticket >> 32; }
constexpr uint32_t chunks_of(uint64_t ticket) { return (ticket >> 16) & 0xffff; }
constexpr uint32_t next_of(uint64_t ticket) { return ticket & 0xffff; }

}  // namespace

Result<void> Pool::start(uint32_t threads) {
  try {
    for (uint32_t t = 1; t < threads; ++t) workers_.emplace_back([this, t] { worker_loop(t); });
  } catch (const std::system_error& error) {
    return fail(Status::OUT_OF_HOST_MEMORY, "could not start thread %zu of %u: %s",
                workers_.size() + 1, threads, error.what());
  }
  return {};
}

Pool::~Pool() {
  stop_.store(true);
  {
    std::lock_guard lock(mutex_);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Pool::run_erased(uint32_t chunks, Call call, void* body) {
  if (chunks == 0) return;
  if (workers_.empty() || chunks == 1) {
    for (uint32_t c = 0; c < chunks; ++c) call(body, c, 0);
    return;
  }
  call_.store(call, std::memory_order_relaxed);
  body_.store(body, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t generation =
      (generation_of(ticket_.load(std::memory_order_relaxed)) + 1) & 0xffffffff;
  ticket_.store(generation << 32 | uint64_t{chunks} << 16);
  // Sequentially consistent with the sleeper's own order (raise sleepers_, then look at ticket_):
  // one of the two sees the other.
  if (sleepers_.load() > 0) {
    {
      std::lock_guard lock(mutex_);
    }
    wake_.notify_all();
  }
  work(generation, 0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != chunks; ++spins) {
    if (spins < kSpins)
      pause();
    else
      std::this_thread::yield();
  }
}

void Pool::work(uint64_t generation, uint32_t thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (generation_of(ticket) == generation && next_of(ticket) < chunks_of(ticket)) {
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire))
      continue;
    call_.load(std::memory_order_relaxed)(body_.load(std::memory_order_relaxed), next_of(ticket),
                                          thread);
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void Pool::worker_loop(uint32_t thread) {
  uint64_t seen = 0;
  while (!stop_.load()) {
    wait_for_work(seen);
    seen = generation_of(ticket_.load(std::memory_order_acquire));
    work(seen, thread);
  }
}

void Pool::wait_for_work(uint64_t seen_generation) {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (generation_of(ticket_.load(std::memory_order_acquire)) != seen_generation) return;
    pause();
  }
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  wake_.wait(lock,
             [&] { return stop_.load() || generation_of(ticket_.load()) != seen_generation; });
  sleepers_.fetch_sub(1);
}

}  // namespace calrt::cpu
