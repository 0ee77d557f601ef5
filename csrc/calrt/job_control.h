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
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "calrt/driver_handle.h"
#include "calrt/job.h"

namespace calrt {

struct JobResources {  // members die in reverse order: children before parents
  std::shared_ptr<Session> session;
  std::shared_ptr<Model> model;
  std::shared_ptr<BindingSet> bindings;
  JobHandle handle;
};

class JobControl {
 public:
  JobControl(uint64_t job_seq, uint64_t deadline_ns, CompletionSink* sink, JobResources resources);

  uint64_t job_seq() const { return job_seq_; }
  uint64_t deadline_ns() const { return deadline_ns_; }
  JobState state() const { return state_.load(std::memory_order_acquire); }

  void submitted(JobHandle handle);
  // The driver's answer; called once, from any thread.
  void complete(const cald_completion* completion);
  // The deadline has passed: LOST unless it has ended.
  void lose();
  // True once terminal, false at `until_ns`.
  bool wait(uint64_t until_ns);
  // Whom it serves, as its sink says; empty once the sink has been told.
  std::vector<uint64_t> requests();
  // How it failed, for people. Only after a terminal state other than DONE.
  Error error();
  Result<cald_timing> timing();
  // The Job goes: what is to be given back now, or nothing if the supervisor will see to it.
  std::optional<JobResources> orphan();
  // The submit failed: nobody is told.
  JobResources abandon();
  // Owned by the control until orphan(); the Job alone may use it.
  cald_job* handle() const { return resources_.handle.get().pointer; }
  const cald_driver_table& table() const { return resources_.session->device()->table(); }

 private:
  void end(JobState state, Status status, int64_t native_code, bool unmapped, const char* why);

  const uint64_t job_seq_, submitted_ns_, deadline_ns_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<JobState> state_{JobState::CREATED};
  CompletionSink* sink_;
  JobResources resources_;
  Error error_;
  bool answered_ = false;  // the driver has completed it
  bool orphaned_ = false;
  std::mutex call_mutex_;  // the driver sees one of query-for-the-error and timing at a time
  bool detailed_ = false;  // error_ has the driver's own text
};

// Knows the jobs that drivers owe an answer, ends those whose deadline passes, and gives back what
// dropped jobs held. One thread for the process, started with the first need.
class JobSupervisor {
 public:
  static JobSupervisor& get();

  void add(const std::shared_ptr<JobControl>& control);
  // Watches the deadline, unless the job has been answered already.
  void arm(const JobControl& control);
  // Ends the supervision; null if the tag is unknown or was taken before.
  std::shared_ptr<JobControl> take(uint64_t job_seq);
  // Null if the tag is unknown or was taken.
  std::shared_ptr<JobControl> find(uint64_t job_seq);
  // Gives back what an answered job held: at once if the driver is through with it, else later.
  void dispose(JobResources resources);
  // The same, always on the supervisor's thread.
  void dispose_later(JobResources resources);

 private:
  JobSupervisor() = default;
  void wake_by(uint64_t t_ns);  // under mutex_
  void run();
  void stop();

  std::mutex mutex_;
  std::condition_variable wake_, stopped_;
  std::map<uint64_t, std::shared_ptr<JobControl>> jobs_;
  std::set<std::pair<uint64_t, uint64_t>> deadlines_;  // (deadline, job_seq)
  // Lists: assigning over a JobResources would drop the old parents before the old children.
  std::list<JobResources> garbage_;
  std::list<JobResources> unsettled_;  // of the thread alone: the driver was not through with them
  uint64_t wakes_at_ = UINT64_MAX;
  bool running_ = false, stopping_ = false;
  pid_t process_ = 0;  // where the thread runs
};

}  // namespace calrt
