// SPDX-License-Identifier: Apache-2.0
// What outlives a Job while the driver may still answer. Internal to csrc/calrt.
//
// The driver gets the job's tag, never an address: a completion is looked up by tag, so a second or
// made-up one finds nothing and can touch nothing. What the driver may still use (handle, buffers,
// model, session) is given back by exactly one of two: ~Job when the driver has answered by then,
// else the supervisor's thread once it has. Never inside the driver's callback, where job_destroy
// is forbidden and the last owner of a session would wait for itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/ranked_mutex.h"
#include "calrt/driver_handle.h"
#include "calrt/job.h"
#include "calrt/job_ending.h"
#include "calrt/session.h"

namespace calrt {

struct JobResources {  // members die in reverse order: children before parents
  std::shared_ptr<Session> session;
  std::shared_ptr<Model> model;
  std::shared_ptr<BindingSet> bindings;  // of a graph job
  std::shared_ptr<Buffer> buffer;        // of a KV job that moves cells out or in
  std::shared_ptr<BindingUse> use;       // of that buffer
  JobHandle handle;
};

// What a job is started with. Times are of the session's clock.
struct JobTerms {
  uint64_t job_seq = 0, submitted_ns = 0, deadline_ns = 0;
  BoundBytes bound;
  const char* entry = "submit";
  CompletionSink* sink = nullptr;
};

class JobControl {
 public:
  JobControl(const JobTerms& terms, JobResources resources);

  uint64_t job_seq() const { return terms_.job_seq; }
  uint64_t deadline_ns() const { return terms_.deadline_ns; }
  JobState state() const { return state_.load(std::memory_order_acquire); }
  bool of(const Session& session) const { return session_ == &session; }
  bool inherited() const { return process_ != process_generation(); }  // through a fork

  void submitted(JobHandle handle);
  // The driver's answer; called once, from any thread.
  void complete(const cald_completion* completion);
  // Nothing more can be waited for: LOST unless it has ended. Unset: its deadline has passed.
  void lose(std::optional<Error> why = std::nullopt);
  // True once terminal, false at `until_ns`.
  Result<bool> wait(uint64_t until_ns);
  // Asks a driver that does not call back, until `until_ns`: true if the job has ended; it is
  // completed then. The session's pump alone may use it.
  bool wait_for_driver(uint64_t until_ns);
  // Whom it serves, as its sink says; empty once the sink has been told.
  std::vector<uint64_t> requests();
  // How it failed, for people. Only after a terminal state other than DONE.
  Error error();
  Result<cald_timing> timing();
  // The Job goes: what is to be given back now, or nothing if the supervisor will see to it.
  std::optional<JobResources> orphan();
  // The submit failed: nobody is told.
  void abandon();
  // Owned by the control until orphan(); the Job alone may use them.
  cald_job* handle() const { return resources_.handle.get().pointer; }
  const JobResources& resources() const { return resources_; }
  const cald_driver_table& table() const { return *table_; }
  // The clock of its deadline is CLOCK_MONOTONIC.
  bool real_time() const { return real_time_; }

 private:
  friend class JobTable;
  void end(JobEnding ending);
  Result<bool> wait_in_virtual_time(uint64_t until_ns);
  BindingUse* use() const;  // of what it holds; null if it holds no buffers (any more)

  const JobTerms terms_;
  const uint32_t process_ = process_generation();
  const cald_driver_table* const table_;
  const Session* const session_;  // to know it by, not to use
  const bool real_time_;
  RankedMutex mutex_{LockRank::JOB, "job"};
  RankedCondition changed_;
  std::atomic<JobState> state_{JobState::CREATED};
  std::atomic<bool> told_{false};  // the sink has been told of the end
  CompletionSink* sink_;
  JobResources resources_;
  Error error_;
  bool answered_ = false;  // the driver has completed it
  bool orphaned_ = false;
  // The driver sees one of query-for-the-error and timing at a time.
  RankedMutex call_mutex_{LockRank::CALL, "ended job"};
  bool detailed_ = false;             // error_ has the driver's own text
  std::shared_ptr<JobControl> next_;  // in the JobTable
};

// Jobs by tag. Tags rise by one, so they spread evenly and a chain is hardly ever longer than one;
// nothing is allocated. Not thread-safe.
class JobTable {
 public:
  void add(std::shared_ptr<JobControl> control) {
    std::shared_ptr<JobControl>& head = place(control->job_seq());
    control->next_ = std::move(head);
    head = std::move(control);
  }
  std::shared_ptr<JobControl> take(uint64_t job_seq) {
    std::shared_ptr<JobControl>* at = seek(job_seq);
    std::shared_ptr<JobControl> taken = std::move(*at);
    if (taken != nullptr) *at = std::move(taken->next_);
    return taken;
  }
  std::shared_ptr<JobControl> find(uint64_t job_seq) { return *seek(job_seq); }
  template <class Visit>
  void each(Visit&& visit) {
    for (auto& head : chains_)
      for (auto* at = &head; *at != nullptr; at = &(*at)->next_) visit(*at);
  }

 private:
  static constexpr size_t kChains = 1024;
  std::shared_ptr<JobControl>& place(uint64_t job_seq) { return chains_[job_seq % kChains]; }
  std::shared_ptr<JobControl>* seek(uint64_t job_seq) {
    std::shared_ptr<JobControl>* at = &place(job_seq);
    while (*at != nullptr && (*at)->job_seq() != job_seq) at = &(*at)->next_;
    return at;
  }
  std::shared_ptr<JobControl> chains_[kChains];
};

// Knows the jobs that drivers owe an answer, ends those whose deadline passes, and gives back what
// dropped jobs held. One thread for the process, started with the first need. A fork's child has
// one of its own and knows nothing of its parent's jobs.
class JobSupervisor {
 public:
  static JobSupervisor& get();

  // From now on its completion is recognised and its deadline watched. A job whose submit has not
  // returned is lost only afterwards.
  void add(std::shared_ptr<JobControl> control);
  // Ends the supervision; null if the tag is unknown or was taken before.
  std::shared_ptr<JobControl> take(uint64_t job_seq);
  // Null if the tag is unknown or was taken.
  std::shared_ptr<JobControl> find(uint64_t job_seq);
  // On a session of virtual time: its jobs whose deadline is not after its now_ns() are lost.
  void lose_overdue(const Session& session);
  // Gives back what an answered job held: at once if the driver is through with it, else later.
  void dispose(JobResources resources);
  // The same, always on the supervisor's thread.
  void dispose_later(JobResources resources);

 private:
  void wake_by(uint64_t t_ns);  // under mutex_
  void run();

  RankedMutex mutex_{LockRank::TABLE, "job supervisor"};
  RankedCondition wake_;
  JobTable jobs_;
  // Lists: assigning over a JobResources would drop the old parents before the old children.
  std::list<JobResources> garbage_;
  std::list<JobResources> unsettled_;  // of the thread alone: the driver was not through with them
  // No deadline before it is unseen. The thread looks at all jobs when it comes, and sleeps on
  // through the deadlines of jobs that have ended: with one job after another it wakes once per
  // deadline's length, not once per job.
  uint64_t wakes_at_ = UINT64_MAX;
  bool running_ = false;
};

// The driver refused the submit: it owes no answer and nobody is told.
void refuse_job(JobControl& control);

// The driver's callback for every job. `user` is the job's tag, not an address.
void on_job_complete(void* user, const cald_completion* completion);
inline void* job_tag(uint64_t job_seq) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(job_seq));
}

}  // namespace calrt
