// SPDX-License-Identifier: Apache-2.0
#include "calrt/job_control.h"

#include <chrono>

#include "calrt/driver_host.h"

namespace calrt {
namespace {

constexpr uint64_t kSettleNs = 1'000'000'000;  // from a completion to the driver's own end of it

}  // namespace

JobControl::JobControl(uint64_t job_seq, uint64_t deadline_ns, CompletionSink* sink,
                       JobResources resources)
    : job_seq_(job_seq),
      submitted_ns_(monotonic_ns()),
      deadline_ns_(deadline_ns),
      sink_(sink),
      resources_(std::move(resources)) {}

void JobControl::submitted(JobHandle handle) {
  const std::scoped_lock lock(mutex_);
  resources_.handle = std::move(handle);
  if (state() == JobState::CREATED) state_.store(JobState::QUEUED, std::memory_order_release);
}

// Under mutex_, so that a waiter who sees the end also sees that the sink has been told.
void JobControl::end(JobState state, Status status, int64_t native_code, bool unmapped,
                     const char* why) {
  error_ = Error{status, native_code, why, "job", unmapped};
  state_.store(state, std::memory_order_release);
  if (CompletionSink* sink = std::exchange(sink_, nullptr))
    sink->completed(job_seq_, state, static_cast<int32_t>(status));
  changed_.notify_all();
}

void JobControl::complete(const cald_completion* completion) {
  const std::scoped_lock lock(mutex_);
  answered_ = true;
  if (resources_.bindings != nullptr)  // null: the driver refuses the submit at this very moment
    resources_.bindings->job_seq_.store(0, std::memory_order_release);
  if (state() < JobState::DONE) {
    const int32_t told = completion != nullptr ? completion->state : 0;
    const cald_status status = completion != nullptr ? completion->status : CALD_OK;
    if (told == CALD_JOB_DONE && status == CALD_OK)
      end(JobState::DONE, Status::OK, 0, false, "");
    else if (told == CALD_JOB_CANCELLED)
      end(JobState::CANCELLED, Status::CANCELLED, 0, false, "");
    else if (told != CALD_JOB_DONE && told != CALD_JOB_FAILED)
      end(JobState::FAILED, Status::INTERNAL, told, false, "the driver reported no terminal state");
    else if (status == CALD_OK)
      end(JobState::FAILED, Status::INTERNAL, 0, false,
          "the driver reported a failure without a status");
    else if (status < 0 || status >= kStatusCount)
      end(JobState::FAILED, Status::INTERNAL, status, true, "");
    else
      end(JobState::FAILED, static_cast<Status>(status), 0, false, "");
  }
  if (orphaned_) JobSupervisor::get().dispose_later(std::move(resources_));
}

void JobControl::lose() {
  const std::scoped_lock lock(mutex_);
  if (state() >= JobState::DONE) return;
  char why[160];
  std::snprintf(
      why, sizeof why,
      "lost: no answer by its deadline, %.3f s after submit; its buffers stay quarantined "
      "until the driver answers",
      static_cast<double>(deadline_ns_ - submitted_ns_) / 1e9);
  end(JobState::LOST, Status::EXECUTION_FAILED, 0, false, why);
}

bool JobControl::wait(uint64_t until_ns) {
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as the deadlines
  const uint64_t limit = std::min(until_ns, deadline_ns_);
  const Clock::time_point until{std::chrono::nanoseconds(static_cast<int64_t>(limit))};
  std::unique_lock lock(mutex_);
  const bool ended = changed_.wait_until(lock, until, [&] { return state() >= JobState::DONE; });
  if (ended || limit != deadline_ns_) return ended;
  lock.unlock();
  lose();  // do not depend on the supervisor's thread being on time
  return true;
}

std::vector<uint64_t> JobControl::requests() {
  const std::scoped_lock lock(mutex_);
  return sink_ != nullptr ? sink_->requests(job_seq_) : std::vector<uint64_t>();
}

Error JobControl::error() {
  const std::scoped_lock calls(call_mutex_);
  if (!detailed_ && state() != JobState::LOST && handle() != nullptr) {
    cald_error detail{};
    detail.struct_size = sizeof detail;
    int32_t ignored = 0;
    try {
      if (table().job_wait(handle(), monotonic_ns() + kSettleNs, nullptr) == CALD_OK)
        (void)table().job_query(handle(), &ignored, &detail);
    } catch (...) {
      detail.message[0] = '\0';  // the completion's status stands; there is just no text
    }
    if (detail.message[0] != '\0') {
      const auto code = static_cast<cald_status>(error_.code);
      const Error told = driver_error(code, detail, "job");
      error_.message = told.message;
      error_.where = told.where;
      if (!error_.unmapped && error_.native_code == 0) error_.native_code = told.native_code;
    }
  }
  detailed_ = true;
  Error out = error_;
  const char* sentence = status_row(static_cast<int32_t>(out.code)).sentence;
  out.message = "job " + std::to_string(job_seq_) + ": " +
                (out.message.empty() ? std::string(sentence) : out.message);
  return out;
}

Result<cald_timing> JobControl::timing() {
  const JobState now = state();
  if (now < JobState::DONE || now == JobState::LOST)
    return fail(Status::INVALID_STATE, "timing: job %llu is %s; it is known once the job has ended",
                (unsigned long long)job_seq_, job_state_name(now));
  const auto entry = CALRT_DRIVER_ENTRY(table(), job_timing);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "timing: driver %s does not measure jobs", table().name);
  const std::scoped_lock calls(call_mutex_);
  cald_timing timing{};
  timing.struct_size = sizeof timing;
  CALRT_TRY(call_driver("job_wait", [&](cald_error* detail) {
    return table().job_wait(handle(), monotonic_ns() + kSettleNs, detail);
  }));
  CALRT_TRY(call_driver("job_timing",
                        [&](cald_error* detail) { return entry(handle(), &timing, detail); }));
  return timing;
}

std::optional<JobResources> JobControl::orphan() {
  const std::scoped_lock lock(mutex_);
  if (answered_) return std::move(resources_);
  orphaned_ = true;
  return std::nullopt;
}

JobResources JobControl::abandon() {
  const std::scoped_lock lock(mutex_);
  sink_ = nullptr;
  if (resources_.bindings) resources_.bindings->job_seq_.store(0, std::memory_order_release);
  return std::move(resources_);
}

}  // namespace calrt
