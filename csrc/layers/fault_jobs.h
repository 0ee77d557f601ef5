// SPDX-License-Identifier: Apache-2.0
// Ends of jobs, caught on their way from the driver and told as a rule wants it: later, otherwise,
// twice, or never. Thread-safe.
//
// The driver gets a tag, never an address: what it tells of a job that is gone finds nothing.
// Nothing is told of a job after its job_destroy, or of a session after its session_close.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "layers/fault_rules.h"
#include "layers/layer.h"

namespace calrt::layers {

class FaultJobs : public std::enable_shared_from_this<FaultJobs> {
 public:
  explicit FaultJobs(std::shared_ptr<FaultRules> rules) : rules_(std::move(rules)) {}
  ~FaultJobs();

  // True when ends of jobs are to be caught at all.
  bool wanted() const;
  // Each stands for the entry of its name.
  void submit(Call& call);
  void kv_submit(Call& call);
  void job_query(Call& call);
  void job_wait(Call& call);
  void job_cancel(Call& call);
  void job_destroy(Call& call);
  void poll(Call& call);
  void session_close(Call& call);
  void driver_close(Call& call);        // ends the thread
  void forget(const cald_job* handle);  // it is destroyed without job_destroy

 private:
  struct Job;
  using JobPtr = std::shared_ptr<Job>;
  using Lock = std::unique_lock<std::mutex>;

  template <auto Member>
  void submit_caught(Call& call, const JobPtr& job);
  void arrive(const JobPtr& job, const cald_completion* completion);
  static void change(Job& job);  // what will be told, by the job's rules
  // The following under mutex_, which tell() and remove() let go meanwhile.
  void tell(const JobPtr& job, Lock& lock);                    // on this thread
  void tell_at(const JobPtr& job, uint64_t t_ns, Lock& lock);  // on the layer's thread or in poll
  void remove(const JobPtr& job, Lock& lock);
  JobPtr find(const cald_job* handle) const;
  std::vector<JobPtr> of(const cald_session* session) const;
  uint64_t now(const cald_session* session) const;

  bool completes_by(int32_t mode) const { return rules_->shape().completion == mode; }
  void run();
  void stop();

  const std::shared_ptr<FaultRules> rules_;
  std::mutex mutex_;
  std::condition_variable changed_;                 // some job
  std::condition_variable due_;                     // something for the thread
  std::list<JobPtr> jobs_;                          // in order of submit
  std::multimap<uint64_t, JobPtr> later_;           // to be told, by time
  std::map<const cald_session*, uint64_t> polled_;  // what poll said the time is
  std::thread thread_;
  bool stopping_ = false;
};

}  // namespace calrt::layers
