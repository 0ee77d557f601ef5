// SPDX-License-Identifier: Apache-2.0
// Jobs as a check sees them: what was told of each, and how it stands. A job is ended and forgotten
// with its Job. One thread; completions come from any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "conformance/kit.h"

namespace calrt::conformance {

// All completions of one job. Lives until the program ends, so that a late one finds it.
class Told {
 public:
  struct Word {
    cald_completion completion;
    std::thread::id thread;
    uint64_t order;  // among all completions
  };
  static Told* make();
  static void on_complete(void* user, const cald_completion* completion);

  size_t count() const;
  cald_completion last() const;
  std::thread::id thread() const;  // of the last
  uint64_t order() const;          // of the last, from 1; 0 = none came

 private:
  mutable std::mutex mutex_;
  std::vector<Word> words_;
};

struct JobAsk {  // what a job is submitted with; the rest is the call's
  uint64_t job_seq = 1;
  uint64_t deadline_ns = 0;  // 0: ten minutes from now
  bool tell = true;          // with on_complete, where the device calls back
};

class Job {
 public:
  Job(Kit& kit, cald_job* handle, Told* told, uint64_t job_seq)
      : kit_(&kit), handle_(handle), told_(told), job_seq_(job_seq) {}
  ~Job();
  Job(Job&& other) noexcept { *this = std::move(other); }
  Job& operator=(Job&& other) noexcept {
    std::swap(kit_, other.kit_);
    std::swap(handle_, other.handle_);
    std::swap(told_, other.told_);
    std::swap(job_seq_, other.job_seq_);
    return *this;
  }

  cald_job* handle() const { return handle_; }
  uint64_t job_seq() const { return job_seq_; }
  const Told& told() const { return *told_; }
  // CALD_JOB_*; what it failed with, if it failed.
  int32_t state();
  cald_status failure() const { return failure_; }
  const std::string& failure_text() const { return failure_text_; }
  bool ended() { return state() >= CALD_JOB_DONE; }
  // Until it has ended; a job that takes longer than a test's patience breaks the rule.
  void wait();
  void expect(int32_t state, const char* what);  // waits, and is that its end?
  void forget();                                 // job_destroy, now; it has ended
  void abandon() { handle_ = nullptr; }          // its session is gone, and it with it

 private:
  Kit* kit_ = nullptr;
  cald_job* handle_ = nullptr;
  Told* told_ = nullptr;
  uint64_t job_seq_ = 0;
  cald_status failure_ = CALD_OK;
  std::string failure_text_;
};

}  // namespace calrt::conformance
