// SPDX-License-Identifier: Apache-2.0
#include "engine/reserve.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "calrt/driver_host.h"

namespace calrt::engine {

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

// A lane may come free without lane_freed(): a reservation expires, a runner gives one back.
constexpr uint64_t kLookAgainNs = 100'000'000;

Error unloaded() {
  return fail(Status::MODEL_UNLOADED, "no lane to be had: the model is closed; load it again");
}

Error cancelled() { return fail(Status::CANCELLED, "the wait for a lane was cancelled"); }

}  // namespace

// ---- LaneWaiter -------------------------------------------------------------------------------

LaneWaiter::LaneWaiter(Private, std::shared_ptr<ReserveQueue> queue, uint32_t tokens,
                       uint64_t deadline_ns, std::shared_ptr<const kv::Prefix> prompt)
    : queue_(std::move(queue)),
      tokens_(tokens),
      begin_ns_(monotonic_ns()),
      deadline_ns_(deadline_ns),
      prompt_(std::move(prompt)) {}

kv::Need LaneWaiter::need() const {
  kv::Need need;
  need.tokens = tokens_;
  need.prompt = prompt_.get();
  return need;
}

LaneWaiter::~LaneWaiter() {
  if (!granted_) return;
  granted_.release();
  queue_->lane_freed();
}

bool LaneWaiter::poll() {
  std::lock_guard lock(queue_->mutex_);
  queue_->serve();
  if (outcome_ == Outcome::OPEN && monotonic_ns() >= deadline_ns_) {
    queue_->leave(*this);
    queue_->settle(*this, Outcome::TIMEOUT);
  }
  return outcome_ != Outcome::OPEN;
}

Result<kv::Reservation> LaneWaiter::take() {
  std::lock_guard lock(queue_->mutex_);
  switch (std::exchange(outcome_, outcome_ == Outcome::OPEN ? Outcome::OPEN : Outcome::TAKEN)) {
    case Outcome::OPEN:
      return fail(Status::WAIT_TIMEOUT, "no lane has come free yet: wait on");
    case Outcome::GRANTED:
      return std::move(granted_);
    case Outcome::REFUSED:
      return std::move(refused_);
    case Outcome::TIMEOUT:
      return fail(Status::KV_TIMEOUT,
                  "no lane of %u came free in %.3f s: wait longer, or release one",
                  queue_->table()->lanes(), static_cast<double>(monotonic_ns() - begin_ns_) / 1e9);
    case Outcome::CANCELLED:
      return cancelled();
    case Outcome::ENDED:
      return Error(*queue_->ended_);
    case Outcome::TAKEN:
      break;
  }
  return fail(Status::INVALID_STATE, "the outcome of this wait was taken before");
}

void LaneWaiter::cancel() {
  std::lock_guard lock(queue_->mutex_);
  if (outcome_ == Outcome::OPEN) {
    queue_->leave(*this);
    queue_->settle(*this, Outcome::CANCELLED);
  } else if (outcome_ == Outcome::GRANTED) {
    outcome_ = Outcome::CANCELLED;
    granted_.release();
    queue_->serve();
  }
}

void LaneWaiter::notify(std::shared_ptr<CompletionFd> fd, uint64_t tag) {
  fd->expect();
  std::lock_guard lock(queue_->mutex_);
  if (outcome_ == Outcome::OPEN) {
    fd_ = std::move(fd);
    tag_ = tag;
  } else {
    fd->post(tag);
  }
}

// ---- CancelToken ------------------------------------------------------------------------------

void CancelToken::cancel() {
  std::vector<std::weak_ptr<LaneWaiter>> waiters;
  {
    std::lock_guard lock(mutex_);
    cancelled_ = true;
    waiters.swap(waiters_);
  }
  for (const auto& known : waiters)
    if (const auto waiter = known.lock()) waiter->cancel();
}

bool CancelToken::cancelled() const {
  std::lock_guard lock(mutex_);
  return cancelled_;
}

bool CancelToken::attach(const std::shared_ptr<LaneWaiter>& waiter) {
  std::lock_guard lock(mutex_);
  if (cancelled_) return false;
  std::erase_if(waiters_, [](const auto& known) { return known.expired(); });
  waiters_.push_back(waiter);
  return true;
}

// ---- ReserveQueue -----------------------------------------------------------------------------

ReserveQueue::ReserveQueue(std::shared_ptr<kv::LaneTable> table, uint32_t max_waiters,
                           std::shared_ptr<LaneScrubber> scrubber, Alive alive)
    : table_(std::move(table)),
      max_waiters_(max_waiters),
      scrubber_(std::move(scrubber)),
      alive_(std::move(alive)) {}

void ReserveQueue::settle(LaneWaiter& waiter, LaneWaiter::Outcome outcome) noexcept {
  waiter.outcome_ = outcome;
  waiter.settled_.notify_all();
  if (waiter.fd_ != nullptr) std::exchange(waiter.fd_, nullptr)->post(waiter.tag_);
}

void ReserveQueue::leave(const LaneWaiter& waiter) {
  const auto place = std::find_if(waiting_.begin(), waiting_.end(),
                                  [&](const auto& known) { return known.get() == &waiter; });
  if (place != waiting_.end()) waiting_.erase(place);
}

void ReserveQueue::end_all(Error why) noexcept {
  if (ended_) return;
  if (why.code == Status::DEVICE_LOST) table_->take_offline();
  ended_ = std::move(why);
  for (const auto& waiter : waiting_) settle(*waiter, LaneWaiter::Outcome::ENDED);
  waiting_.clear();
}

void ReserveQueue::serve() noexcept {
  if (ended_) return;
  try {
    Result<void> alive = alive_ == nullptr ? Result<void>() : alive_();
    if (!alive.ok()) return end_all(std::move(alive).error());
  } catch (const std::bad_alloc&) {
    return;
  }
  while (!waiting_.empty() && table_->free_lanes() > 0) {
    LaneWaiter& first = *waiting_.front();
    try {
      auto got = table_->try_reserve(first.need(), monotonic_ns());
      if (got.ok())
        first.granted_ = *std::move(got);
      else if (got.error().code == Status::KV_NO_CAPACITY)
        return;
      else
        first.refused_ = std::move(got).error();
    } catch (const std::bad_alloc&) {
      return;
    }
    settle(first, first.granted_ ? LaneWaiter::Outcome::GRANTED : LaneWaiter::Outcome::REFUSED);
    waiting_.pop_front();
  }
}

Result<std::shared_ptr<LaneWaiter>> ReserveQueue::enqueue(
    uint32_t tokens, uint64_t deadline_ns, CancelToken* cancel,
    std::shared_ptr<const kv::Prefix> prompt) {
  auto waiter = std::make_shared<LaneWaiter>(LaneWaiter::Private(), shared_from_this(), tokens,
                                             deadline_ns, std::move(prompt));
  if (cancel != nullptr && !cancel->attach(waiter)) return cancelled();
  std::lock_guard lock(mutex_);
  serve();
  if (ended_) return Error(*ended_);
  if (waiting_.empty()) {  // nobody is overtaken
    auto got = table_->try_reserve(waiter->need(), monotonic_ns());
    if (got.ok()) {
      waiter->granted_ = *std::move(got);
      settle(*waiter, LaneWaiter::Outcome::GRANTED);
      return waiter;
    }
    if (got.error().code != Status::KV_NO_CAPACITY) return std::move(got).error();
  } else if (auto fits = table_->can_allocate(tokens); !fits.ok()) {
    return std::move(fits).error();
  }
  if (waiting_.size() >= max_waiters_) {
    return fail(Status::QUEUE_FULL, "%zu callers already wait for a lane: at most %u may",
                waiting_.size(), max_waiters_);
  }
  waiting_.push_back(waiter);
  return waiter;
}

Result<kv::Reservation> ReserveQueue::reserve(uint32_t tokens, uint64_t deadline_ns,
                                              Interrupt interrupt, CancelToken* cancel,
                                              std::shared_ptr<const kv::Prefix> prompt) {
  CALRT_TRY_ASSIGN(const std::shared_ptr<LaneWaiter> waiter,
                   enqueue(tokens, deadline_ns, cancel, std::move(prompt)));
  while (!waiter->poll()) {
    recover();
    if (interrupt.asked != nullptr && interrupt.asked(interrupt.user)) {
      waiter->cancel();
      break;
    }
    std::unique_lock lock(mutex_);
    const uint64_t until = std::min(deadline_ns, monotonic_ns() + kLookAgainNs);
    waiter->settled_.wait_until(lock, Clock::time_point(std::chrono::nanoseconds(until)),
                                [&] { return waiter->outcome_ != LaneWaiter::Outcome::OPEN; });
  }
  return waiter->take();
}

void ReserveQueue::close() {
  std::lock_guard lock(mutex_);
  Error why{Status::MODEL_UNLOADED, 0, {}, {}, false, nullptr};
  try {
    why = unloaded();
  } catch (const std::bad_alloc&) {  // the code says it too
  }
  end_all(std::move(why));
}

void ReserveQueue::lane_freed() {
  std::lock_guard lock(mutex_);
  serve();
}

void ReserveQueue::recover() {
  if (scrubber_ == nullptr) return;
  scrubber_->scrub_unowned();
  lane_freed();
}

uint32_t ReserveQueue::waiters() const {
  std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(waiting_.size());
}

}  // namespace calrt::engine
