// SPDX-License-Identifier: Apache-2.0
#include "calrt/own_threads.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <list>
#include <thread>
#include <vector>

#include "base/log.h"
#include "base/process.h"
#include "base/ranked_mutex.h"

namespace calrt::own_threads {
namespace {

constexpr auto kExitPatience = std::chrono::seconds(2);

struct Threads {
  RankedMutex mutex{LockRank::LEAF, "own threads"};
  RankedCondition ended;
  std::list<std::function<void()>> wakes;  // one per running thread
  std::atomic<bool> stopping{false};

  void stop() {
    std::vector<std::function<void()>> all;
    {
      const std::scoped_lock lock(mutex);
      stopping.store(true);
      all.assign(wakes.begin(), wakes.end());
    }
    for (const auto& wake : all) wake();
    all.clear();
    std::unique_lock lock(mutex);
    ended.wait_for(lock, kExitPatience, [this] { return wakes.empty(); });
  }
};

Threads& threads() { return per_process<Threads>(); }

}  // namespace

bool stopping() { return threads().stopping.load(); }

bool start(const char* what, std::function<void()> body, std::function<void()> wake) {
  static const int at_exit = std::atexit([] { threads().stop(); });
  (void)at_exit;
  Threads& all = threads();
  std::unique_lock lock(all.mutex);
  if (all.stopping.load()) return false;
  const auto self = all.wakes.insert(all.wakes.end(), std::move(wake));
  try {
    std::thread([&all, self, body = std::move(body)]() mutable {
      body();
      body = nullptr;  // what it holds goes before the thread counts as ended
      std::function<void()> own;
      const std::scoped_lock ending(all.mutex);
      own.swap(*self);
      all.wakes.erase(self);
      all.ended.notify_all();
    }).detach();
  } catch (const std::exception& failed) {
    all.wakes.erase(self);
    lock.unlock();
    log_line(LOG_ERROR, "calrt", "a thread for %s cannot start: %s", what, failed.what());
    return false;
  }
  return true;
}

}  // namespace calrt::own_threads
