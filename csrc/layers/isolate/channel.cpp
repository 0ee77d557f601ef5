// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/channel.h"

#include <poll.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/pause.h"

namespace calrt::isolate {
namespace {

// Looking pays where the other side has a processor of its own, and answers at once: then neither
// is ever put to sleep. A look that does not pay costs two that did; who has none left looks once
// in a while, to see whether that has changed.
constexpr uint64_t kLookNs = 16'000;  // about what it costs to be woken
constexpr int kMostCredit = 8;
constexpr uint32_t kTryAnew = 64;  // waits

bool worth_looking() {  // with one processor the other side cannot get on meanwhile
  static const bool worth = std::thread::hardware_concurrency() > 1;
  return worth;
}

}  // namespace

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

void signal_eventfd(int fd) {
  const uint64_t one = 1;
  while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void clear_eventfd(int fd) {
  uint64_t count = 0;
  while (read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

// Store of the turn and load of `sleeps` here, store of `sleeps` and load of the turn in
// wait_...(): all sequentially consistent, so one of the two sees the other.
void Channel::give(Turn to, Kind kind, uint32_t bytes) {
  state_->kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  state_->bytes.store(bytes, std::memory_order_relaxed);
  state_->turn.store(static_cast<uint32_t>(to));
  if (sleeps(to).load() != 0) signal_eventfd(eventfd(to));
}

bool Channel::seen(Turn mine) {
  const auto is_mine = [&] {
    return state_->turn.load(std::memory_order_acquire) == static_cast<uint32_t>(mine);
  };
  if (is_mine()) return true;
  if (!worth_looking()) return false;
  if (credit_ <= 0 && ++waits_ % kTryAnew != 0) return false;
  for (const uint64_t until = now_ns() + kLookNs; now_ns() < until;)
    for (int i = 0; i < 16; ++i) {
      if (is_mine()) {
        credit_ = std::min(credit_ + 1, kMostCredit);
        return true;
      }
      pause_cpu();
    }
  credit_ = std::max(credit_ - 2, 0);
  return false;
}

Channel::Wait Channel::wait_parent(uint64_t deadline_ns, const std::atomic<bool>& stop) {
  if (seen(Turn::PARENT)) return Wait::TURN;
  auto& asleep = sleeps(Turn::PARENT);
  asleep.store(1);
  Wait outcome = Wait::TURN;
  while (state_->turn.load() != static_cast<uint32_t>(Turn::PARENT)) {
    const uint64_t now = now_ns();
    if (stop.load()) {
      outcome = Wait::STOPPED;
      break;
    }
    if (now >= deadline_ns) {
      outcome = Wait::LATE;
      break;
    }
    const uint64_t left = deadline_ns - now;
    const timespec patience{static_cast<time_t>(left / 1'000'000'000),
                            static_cast<long>(left % 1'000'000'000)};
    pollfd wait{eventfd(Turn::PARENT), POLLIN, 0};
    if (ppoll(&wait, 1, deadline_ns == UINT64_MAX ? nullptr : &patience, nullptr) > 0)
      clear_eventfd(eventfd(Turn::PARENT));
  }
  asleep.store(0);
  return outcome;
}

void Channel::wake_parent() { signal_eventfd(eventfd(Turn::PARENT)); }

void Channel::wait_child() {
  if (seen(Turn::CHILD)) return;
  auto& asleep = sleeps(Turn::CHILD);
  asleep.store(1);
  while (state_->turn.load() != static_cast<uint32_t>(Turn::CHILD)) {
    uint64_t count = 0;
    if (read(eventfd(Turn::CHILD), &count, sizeof count) < 0 && errno != EINTR) usleep(1000);
  }
  asleep.store(0);
}

}  // namespace calrt::isolate
