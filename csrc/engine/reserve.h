// SPDX-License-Identifier: Apache-2.0
// reserve(deadline) for scripts: one bounded FIFO in front of try_reserve, and the only place in
// calrt that waits for a lane. The server never uses it.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "engine/completion_fd.h"
#include "engine/lane_scrub.h"
#include "kv/lanes.h"

namespace calrt::engine {

class ReserveQueue;

// A place in the queue, with exactly one outcome: a lane, KV_TIMEOUT, CANCELLED, MODEL_UNLOADED, or
// why the model lives no more.
// A lane that was granted and is not taken goes to the next. Thread-safe.
class LaneWaiter {
  struct Private {};

 public:
  LaneWaiter(Private, std::shared_ptr<ReserveQueue> queue, uint32_t tokens, uint64_t deadline_ns,
             std::shared_ptr<const kv::Prefix> prompt);
  ~LaneWaiter();
  LaneWaiter(const LaneWaiter&) = delete;
  LaneWaiter& operator=(const LaneWaiter&) = delete;

  // Settled: take() answers with something else than WAIT_TIMEOUT. Also serves the queue, as a lane
  // may come free by itself, and looks at the deadline: to be asked at >= 10 Hz.
  bool poll();
  // The outcome, once; INVALID_STATE later. WAIT_TIMEOUT while it is open.
  Result<kv::Reservation> take();
  // Ends the wait with CANCELLED, unless it has ended; a lane granted and not taken is given back.
  void cancel();
  // Posts `tag` to `fd` when settled, at once if it is.
  void notify(std::shared_ptr<CompletionFd> fd, uint64_t tag);

 private:
  friend class ReserveQueue;
  enum class Outcome : uint8_t { OPEN, GRANTED, REFUSED, TIMEOUT, CANCELLED, ENDED, TAKEN };
  const std::shared_ptr<ReserveQueue> queue_;
  const uint32_t tokens_;
  const uint64_t begin_ns_, deadline_ns_;
  const std::shared_ptr<const kv::Prefix> prompt_;
  kv::Need need() const;
  // The rest under the queue's mutex.
  Outcome outcome_ = Outcome::OPEN;
  kv::Reservation granted_;
  Error refused_;
  std::shared_ptr<CompletionFd> fd_;
  uint64_t tag_ = 0;
  RankedCondition settled_;
};

// Ends every wait that it was given to, those to come too. Thread-safe.
class CancelToken {
 public:
  void cancel();
  bool cancelled() const;

 private:
  friend class ReserveQueue;
  // False: it is cancelled already.
  bool attach(const std::shared_ptr<LaneWaiter>& waiter);
  mutable RankedMutex mutex_{LockRank::POOL, "cancel token"};
  bool cancelled_ = false;
  std::vector<std::weak_ptr<LaneWaiter>> waiters_;
};

// Asked at >= 10 Hz, without a lock, whether a wait is to end.
struct Interrupt {
  bool (*asked)(void* user) = nullptr;
  void* user = nullptr;
};

class ReserveQueue : public std::enable_shared_from_this<ReserveQueue> {
 public:
  // Why nobody gets a lane any more, for good. Asked with the queue's mutex held, on drivers'
  // threads too: it takes no lock.
  using Alive = std::function<Result<void>()>;

  // `scrubber`: what makes poisoned lanes usable again; null: they stay as they are. `alive`: null:
  // for ever.
  explicit ReserveQueue(std::shared_ptr<kv::LaneTable> table, uint32_t max_waiters = 64,
                        std::shared_ptr<LaneScrubber> scrubber = nullptr, Alive alive = nullptr);
  const std::shared_ptr<kv::LaneTable>& table() const { return table_; }

  // Waits in order of arrival until a lane is free or `deadline_ns` (CLOCK_MONOTONIC) passes:
  // KV_TIMEOUT. What can never fit is OUT_OF_RANGE at once; a full queue is QUEUE_FULL at once.
  // CANCELLED when `interrupt` or `cancel` says so. `prompt`: whose beginning may be reused (what
  // of it, the reservation says); null: none.
  Result<kv::Reservation> reserve(uint32_t tokens, uint64_t deadline_ns, Interrupt interrupt = {},
                                  CancelToken* cancel = nullptr,
                                  std::shared_ptr<const kv::Prefix> prompt = nullptr);
  // The same without waiting: a place in the queue, perhaps with a lane already.
  Result<std::shared_ptr<LaneWaiter>> enqueue(uint32_t tokens, uint64_t deadline_ns,
                                              CancelToken* cancel = nullptr,
                                              std::shared_ptr<const kv::Prefix> prompt = nullptr);
  // Ends every wait, and each later reserve(), with MODEL_UNLOADED. Idempotent.
  void close();
  // To be called after a lane was given back, or when the model may be no more: then every wait
  // ends at once with the reason, and a lost device takes the table offline. Never waits.
  void lane_freed();
  // Tries the poisoned lanes that nobody owns, if there are any, and waits for the device.
  void recover();
  uint32_t waiters() const;

 private:
  friend class LaneWaiter;
  // With the mutex held. Called on drivers' threads too, so a want of memory is no end: the next
  // look serves.
  void serve() noexcept;
  void end_all(Error why) noexcept;  // for good
  static void settle(LaneWaiter& waiter, LaneWaiter::Outcome outcome) noexcept;
  void leave(const LaneWaiter& waiter);

  std::shared_ptr<kv::LaneTable> table_;
  const uint32_t max_waiters_;
  const std::shared_ptr<LaneScrubber> scrubber_;
  mutable RankedMutex mutex_{LockRank::TABLE, "reserve queue"};
  std::deque<std::shared_ptr<LaneWaiter>> waiting_;
  const Alive alive_;
  std::optional<Error> ended_;  // why nobody gets a lane any more
};

}  // namespace calrt::engine
