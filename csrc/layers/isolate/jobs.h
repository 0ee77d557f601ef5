// SPDX-License-Identifier: Apache-2.0
// The jobs of one child: how each ended, told to its submitter once, whatever the child says or
// however it dies. Thread-safe; callbacks run under no lock.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "calrt/driver.h"

namespace calrt::isolate {

class Remote;

// What a cald_job is here. Owned by Jobs.
struct Job {
  Remote* remote;
  uint64_t token;    // names it between the processes
  uint64_t job_seq;  // the submitter's
  void (*on_complete)(void* user, const cald_completion* completion);
  void* user;
  bool timed;  // it ends without being polled
  // Under the mutex of Jobs:
  bool accepted = false;  // submit has answered OK
  bool ended = false;     // its end is known, and being told
  bool told = false;
  cald_completion end{};
};

class Jobs {
 public:
  Job* add(Remote* remote, uint64_t job_seq, void (*on_complete)(void*, const cald_completion*),
           void* user, bool timed);
  // submit has answered OK. If all has been lost by now, this is where it ends.
  void accept(Job* job);
  // submit has not answered OK. True: it has been told of all the same, so it stays.
  bool refuse(Job* job, bool lost);
  // An end that the child tells. False: there is no such job, or it has ended.
  bool end(uint64_t token, const cald_completion& completion);
  // The child is gone: what has not ended fails with DEVICE_LOST, now or when it is accepted.
  void lose_all();

  // Until its end has been told, or the deadline: whether it has.
  bool wait(const Job* job, uint64_t deadline_ns);
  // Its end if it has been told; else state is 0.
  cald_completion ending(const Job* job);
  void forget(Job* job);

  struct Count {
    uint64_t accepted = 0, ended = 0;  // ever
    uint64_t running = 0, timed = 0;   // accepted and not ended; of them those that are timed
  };
  Count count();

 private:
  void start(Job& job);  // it counts as running, until
  void stop(Job& job);
  static cald_completion lost_end(const Job& job);
  // Under the lock, which is free while the submitter is told.
  void tell(std::unique_lock<std::mutex>& lock, Job& job, const cald_completion& completion);

  std::mutex mutex_;
  std::condition_variable told_;
  std::unordered_map<uint64_t, std::unique_ptr<Job>> jobs_;  // by token
  uint64_t last_token_ = 0;
  Count count_;
  bool lost_ = false;
};

}  // namespace calrt::isolate
