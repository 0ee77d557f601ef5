// SPDX-License-Identifier: Apache-2.0
#include "isolate/job_waiter.h"

#include <algorithm>
#include <chrono>

#include "isolate/program.h"

namespace calrt::isolate {
namespace {

constexpr uint64_t kSliceNs = 2'000'000;     // how long an end out of order may go unseen
constexpr uint64_t kLastNs = 1'000'000'000;  // what a closed session's jobs are given to show it

}  // namespace

JobWaiter::JobWaiter(const cald_driver_table& table) : table_(table) {
  thread_ = std::thread([this] { run(); });
}

JobWaiter::~JobWaiter() {
  {
    const std::scoped_lock lock(mutex_);
    closing_ = true;
    changed_.notify_one();
  }
  thread_.join();
  for (const Waiting& left : waiting_) (void)ended(left, now_ns() + kLastNs);
}

void JobWaiter::add(uint64_t token, uint64_t job_seq, cald_job* job) {
  const std::scoped_lock lock(mutex_);
  waiting_.push_back({token, job_seq, job});
  changed_.notify_one();
}

bool JobWaiter::ended(const Waiting& waiting, uint64_t until_ns) {
  cald_error why{};
  why.struct_size = sizeof why;
  cald_completion end{};
  end.struct_size = sizeof end;
  end.job_seq = waiting.job_seq;
  end.bytes_in = end.bytes_out = CALD_BYTES_UNKNOWN;
  const cald_status waited = table_.job_wait(waiting.job, until_ns, &why);
  if (waited == CALD_WAIT_TIMEOUT) return false;
  if (waited != CALD_OK || table_.job_query(waiting.job, &end.state, &why) != CALD_OK) {
    end.state = CALD_JOB_FAILED;  // its end cannot be known
    end.status = why.code != CALD_OK ? why.code : static_cast<cald_status>(CALD_INTERNAL);
  } else if (end.state == CALD_JOB_FAILED) {
    end.status = why.code;
  } else if (end.state == CALD_JOB_CANCELLED) {
    end.status = CALD_CANCELLED;
  }
  end.native_code = why.native_code;
  end.flags = why.flags;
  on_complete(reinterpret_cast<void*>(waiting.token), &end);
  return true;
}

void JobWaiter::run() {
  std::unique_lock lock(mutex_);
  while (!closing_) {
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    const std::vector<Waiting> now = waiting_;
    lock.unlock();
    const uint64_t until = now_ns() + kSliceNs;
    std::vector<uint64_t> told;
    for (const Waiting& one : now)
      if (ended(one, one.token == now.front().token && told.empty() ? until : 0))
        told.push_back(one.token);
    lock.lock();
    std::erase_if(waiting_, [&](const Waiting& one) {
      return std::find(told.begin(), told.end(), one.token) != told.end();
    });
    // A driver that answers before the time it was given must not make this thread spin.
    const uint64_t left = until - std::min(until, now_ns());
    if (told.empty() && !closing_)
      changed_.wait_for(lock, std::chrono::nanoseconds(static_cast<int64_t>(left)));
  }
}

}  // namespace calrt::isolate
