// SPDX-License-Identifier: Apache-2.0
// A channel between the processes: one writes, gives the turn away, and waits for it to come back.
// Who waits looks for some microseconds and then sleeps on its eventfd.
#pragma once

#include <atomic>
#include <cstdint>

#include "layers/isolate/shared_memory.h"

namespace calrt::isolate {

enum class Turn : uint32_t { PARENT = 0, CHILD = 1 };

// What a message is. Entries are requests; what is else said in a channel:
enum class Kind : uint32_t {
  ENTRY = 1,     // to the child: call an entry
  LOAD = 2,      // to the child: load the driver's library, and say what it is
  RELEASE = 3,   // to the child: forget jobs
  REPLY = 4,     // to the parent
  PROGRESS = 5,  // to the parent, in the middle of a load; it is answered by
  GO_ON = 6,     // whether to
};

class Channel {
 public:
  Channel() = default;
  // `eventfds`: by Turn; the parent's does not block, the child's does. Not owned.
  Channel(ChannelState* state, unsigned char* message, const int (&eventfds)[2])
      : state_(state), message_(message), eventfds_{eventfds[0], eventfds[1]} {}

  unsigned char* message() const { return message_; }
  // A message of `bytes` has been written: it is `to`'s turn.
  void give(Turn to, Kind kind, uint32_t bytes);
  // As the other one says, to be checked.
  Kind kind() const { return static_cast<Kind>(state_->kind.load(std::memory_order_relaxed)); }
  uint32_t bytes() const { return state_->bytes.load(std::memory_order_relaxed); }

  enum class Wait { TURN, LATE, STOPPED };
  // The parent's: until its turn, the deadline, or `stop` (with a wake() after it).
  Wait wait_parent(uint64_t deadline_ns, const std::atomic<bool>& stop);
  void wake_parent();
  // The child's: it has nothing else to wait for.
  void wait_child();

 private:
  bool seen(Turn mine);  // after some looking
  std::atomic<uint32_t>& sleeps(Turn who) { return state_->sleeps[static_cast<uint32_t>(who)]; }
  int eventfd(Turn who) const { return eventfds_[static_cast<uint32_t>(who)]; }

  ChannelState* state_ = nullptr;
  unsigned char* message_ = nullptr;
  int eventfds_[2] = {-1, -1};
  int credit_ = 4;  // looks that may fail
  uint32_t waits_ = 0;
};

uint64_t now_ns();  // CLOCK_MONOTONIC

// Adds one to an eventfd.
void signal_eventfd(int fd);
// Back to zero; an eventfd that does not block.
void clear_eventfd(int fd);

}  // namespace calrt::isolate
