// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/job.h"

#include <chrono>

namespace calrt::calrt076 {

Job::Job(cald_device* device, Run work, const cald_job_desc& desc)
    : run(std::move(work)),
      job_seq(desc.job_seq),
      deadline_ns(desc.deadline_ns),
      device_(device),
      on_complete_(desc.on_complete),
      user_(desc.user),
      submitted_ns_(device->driver->now_ns()) {}

void Job::begin() {
  run.output->stand(CALD_BUFFER_BUSY, job_seq);
  std::lock_guard lock(mutex_);
  state_ = CALD_JOB_RUNNING;
  begun_ns_ = device_->driver->now_ns();
}

void Job::computed() {
  std::lock_guard lock(mutex_);
  computed_ns_ = device_->driver->now_ns();
}

void Job::finish(int32_t state, const Error* why) {
  const uint64_t now = device_->driver->now_ns();  // not after somebody was told
  // Before anybody is told: then the buffer may go.
  run.output->stand(why == nullptr ? CALD_BUFFER_READY : CALD_BUFFER_IDLE, job_seq);
  cald_completion completion{};
  completion.struct_size = sizeof completion;
  completion.state = state;
  completion.job_seq = job_seq;
  completion.bytes_in = run.bytes_in;
  completion.bytes_out = why == nullptr ? run.bytes_out : 0;
  if (why != nullptr) {
    completion.status = static_cast<cald_status>(why->code);
    completion.native_code = why->native_code;
    completion.flags = why->unmapped ? CALD_ERROR_UNMAPPED : 0;
  }
  device_->jobs += 1;
  if (on_complete_ != nullptr) on_complete_(user_, &completion);
  // Waiters are told under the lock: as soon as it is free, the last owner may be gone.
  std::lock_guard lock(mutex_);
  if (why != nullptr) error_ = *why;
  ended_ns_ = now;
  state_ = state;
  ended_.notify_all();
}

Result<void> Job::query(int32_t* state) {
  std::lock_guard lock(mutex_);
  *state = state_;
  return state_ == CALD_JOB_FAILED ? Result<void>(error_) : Result<void>();
}

Result<void> Job::wait(uint64_t deadline_ns) {
  using std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return state_ >= CALD_JOB_DONE; };
  // steady_clock is CLOCK_MONOTONIC, as is the host's; INT64_MAX ns of it are 292 years.
  const auto until = static_cast<int64_t>(std::min<uint64_t>(deadline_ns, INT64_MAX));
  if (ended_.wait_until(lock, steady_clock::time_point(std::chrono::nanoseconds(until)), has_ended))
    return {};
  return fail(Status::WAIT_TIMEOUT, "job %llu has not ended",
              static_cast<unsigned long long>(job_seq));
}

void Job::describe(cald_timing* out) {
  cald_timing timing{};
  {
    std::lock_guard lock(mutex_);
    timing.submitted_ns = submitted_ns_;
    const bool ended = state_ >= CALD_JOB_DONE, begun = begun_ns_ != 0;
    if (begun) timing.queue_ns = begun_ns_ - submitted_ns_;
    const uint64_t run_end = computed_ns_ != 0 ? computed_ns_ : ended_ns_;
    if (begun && ended) timing.infer_ns = run_end - begun_ns_;
    if (begun && ended && computed_ns_ != 0) timing.d2h_ns = ended_ns_ - computed_ns_;
  }
  answer(out, timing);
}

}  // namespace calrt::calrt076
