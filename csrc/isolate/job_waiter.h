// SPDX-License-Identifier: Apache-2.0
// For devices that call back nobody: waits for the jobs of one session and tells their ends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "calrt/driver.h"

namespace calrt::isolate {

class JobWaiter {
 public:
  explicit JobWaiter(const cald_driver_table& table);
  ~JobWaiter();  // its session is closed: tells what is left, as far as the driver says
  JobWaiter(const JobWaiter&) = delete;
  JobWaiter& operator=(const JobWaiter&) = delete;

  void add(uint64_t token, uint64_t job_seq, cald_job* job);

 private:
  struct Waiting {
    uint64_t token, job_seq;
    cald_job* job;
  };
  bool ended(const Waiting& waiting, uint64_t until_ns);
  void run();

  const cald_driver_table& table_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace calrt::isolate
