// SPDX-License-Identifier: Apache-2.0
#include "engine/completion_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

namespace calrt::engine {

Result<std::shared_ptr<CompletionFd>> CompletionFd::make() {
  std::shared_ptr<CompletionFd> made(new CompletionFd);
#ifdef __linux__
  made->read_ = made->write_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (made->read_ < 0)
    return fail(Status::OUT_OF_HOST_MEMORY, "eventfd() failed: %s", std::strerror(errno));
#else
  int ends[2];
  if (pipe(ends) != 0)
    return fail(Status::OUT_OF_HOST_MEMORY, "pipe() failed: %s", std::strerror(errno));
  for (int end : ends) {
    fcntl(end, F_SETFL, O_NONBLOCK);
    fcntl(end, F_SETFD, FD_CLOEXEC);
  }
  made->read_ = ends[0];
  made->write_ = ends[1];
#endif
  return made;
}

CompletionFd::~CompletionFd() {
  if (write_ >= 0 && write_ != read_) close(write_);
  if (read_ >= 0) close(read_);
}

void CompletionFd::expect() {
  std::lock_guard lock(mutex_);
  ++expected_;
  if (pending_.capacity() < pending_.size() + expected_)
    pending_.reserve(2 * (pending_.size() + expected_));
}

void CompletionFd::post(uint64_t tag) noexcept {
  std::lock_guard lock(mutex_);
  if (pending_.size() < pending_.capacity()) pending_.push_back(tag);
  expected_ -= std::min<size_t>(expected_, 1);
  const uint64_t one = 1;
  // A full pipe or counter means the descriptor is readable already.
  if (write(write_, &one, sizeof one) < 0) return;
}

std::vector<uint64_t> CompletionFd::drain() {
  std::vector<uint64_t> tags;
  std::lock_guard lock(mutex_);
  tags.reserve(pending_.size() + expected_);  // first what may throw: it stays readable then
  uint64_t counter[8];
  while (read(read_, counter, sizeof counter) == static_cast<ssize_t>(sizeof counter)) {
  }
  tags.swap(pending_);
  return tags;
}

}  // namespace calrt::engine
