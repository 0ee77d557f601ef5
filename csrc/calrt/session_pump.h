// SPDX-License-Identifier: Apache-2.0
// Makes the jobs of a session end when its driver does not call back by itself. Internal to
// csrc/calrt.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/ranked_mutex.h"
#include "calrt/job_control.h"
#include "calrt/session.h"

namespace calrt {

// Thread-safe. One thread per session, started with the first job. What it learns goes the way of
// a driver's callback, so that the code above sees no difference. A driver may hang in the
// thread's hands: jobs are lost at their deadlines all the same, nobody waits for the thread, and
// it closes the session itself if it comes back after everyone else has gone.
class SessionPump : public std::enable_shared_from_this<SessionPump> {
 public:
  enum class Kind {
    WAIT,  // job_wait on the oldest job in short slices, a look at the others after each
    POLL   // poll, at the times it asks for, and after each submit and cancel
  };
  SessionPump(Kind kind, std::shared_ptr<SessionCore> core);

  bool waits() const { return kind_ == Kind::WAIT; }
  // A job was submitted: see to it.
  void watch(std::shared_ptr<JobControl> control);
  // Something may have changed.
  void kick();
  // The session has gone, and no job of it is left.
  void close();

 private:
  bool start();  // under mutex_
  void run();
  void wait_turn(std::unique_lock<RankedMutex>& lock);
  void poll_turn(std::unique_lock<RankedMutex>& lock);

  const Kind kind_;
  const std::shared_ptr<SessionCore> core_;
  RankedMutex mutex_{LockRank::JOB, "session pump"};
  RankedCondition changed_;
  std::vector<std::shared_ptr<JobControl>> jobs_;  // oldest first; only the thread removes
  bool running_ = false, kicked_ = false, closing_ = false;
  uint64_t poll_at_ = UINT64_MAX;
  uint32_t poll_failures_ = 0;  // in a row
};

}  // namespace calrt
