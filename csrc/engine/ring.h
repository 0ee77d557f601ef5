// SPDX-License-Identifier: Apache-2.0
// Events on their way to one reader, and a descriptor that is readable iff some are pending.
// Bounded by its writer, which asks for room before it makes work that ends in events; nothing is
// dropped. Thread-safe, once open() is done.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/eventfd.h>
#endif

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "engine/plan.h"

namespace calrt::engine {

class EventRing {
 public:
  explicit EventRing(size_t capacity) : capacity_(capacity) { pending_.reserve(capacity); }
  ~EventRing() {
    if (read_fd_ >= 0) ::close(read_fd_);
    if (write_fd_ >= 0 && write_fd_ != read_fd_) ::close(write_fd_);
  }
  EventRing(const EventRing&) = delete;
  EventRing& operator=(const EventRing&) = delete;

  Result<void> open() {
#ifdef __linux__
    read_fd_ = write_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (read_fd_ >= 0) return {};
#else
    int fds[2];
    if (::pipe(fds) == 0) {
      read_fd_ = fds[0];
      write_fd_ = fds[1];
      for (int fd : fds) {
        ::fcntl(fd, F_SETFD, FD_CLOEXEC);
        ::fcntl(fd, F_SETFL, O_NONBLOCK);
      }
      return {};
    }
#endif
    return fail(Status::INTERNAL, "no descriptor for events: %s", std::strerror(errno));
  }

  int fd() const { return read_fd_; }

  // Moves the events in, oldest first, and leaves `events` empty with its memory.
  void publish(std::vector<Event>* events) {
    if (events->empty()) return;
    std::lock_guard lock(mutex_);
    const bool signal = pending_.empty();
    pending_.insert(pending_.end(), std::make_move_iterator(events->begin()),
                    std::make_move_iterator(events->end()));
    events->clear();
    if (signal) {
      const uint64_t one = 1;  // a pipe takes the same eight bytes
      while (::write(write_fd_, &one, sizeof one) < 0 && errno == EINTR) {
      }
    }
  }

  std::vector<Event> drain() {
    std::lock_guard lock(mutex_);
    std::vector<Event> out;
    if (pending_.empty()) return out;
    out.reserve(pending_.size());  // first what may throw: the descriptor stays readable then
    uint64_t count = 0;
    while (::read(read_fd_, &count, sizeof count) < 0 && errno == EINTR) {
    }
    std::move(pending_.begin(), pending_.end(), std::back_inserter(out));
    pending_.clear();
    return out;
  }

  // Events that still fit; 0 when the reader must drain first.
  size_t room() const {
    std::lock_guard lock(mutex_);
    return pending_.size() < capacity_ ? capacity_ - pending_.size() : 0;
  }
  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  mutable RankedMutex mutex_{LockRank::LEAF, "event ring"};
  std::vector<Event> pending_;
  int read_fd_ = -1, write_fd_ = -1;
};

}  // namespace calrt::engine
