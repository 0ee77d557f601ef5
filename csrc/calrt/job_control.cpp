// SPDX-License-Identifier: Apache-2.0
#include "calrt/job_control.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "calrt/device.h"
#include "calrt/driver_host.h"

namespace calrt {
namespace {

constexpr uint64_t kSettleNs = 1'000'000'000;  // from a completion to the driver's own end of it
constexpr const char* kQuarantine = "its buffers stay quarantined until the driver answers";

}  // namespace

JobControl::JobControl(const JobTerms& terms, JobResources resources)
    : terms_(terms),
      table_(&resources.session->device()->table()),
      session_(resources.session.get()),
      real_time_(!session_->virtual_clock()),
      sink_(terms.sink),
      resources_(std::move(resources)) {}

void JobControl::submitted(JobHandle handle) {
  const std::scoped_lock lock(mutex_);
  resources_.handle = std::move(handle);
  if (state() == JobState::CREATED) state_.store(JobState::QUEUED, std::memory_order_release);
}

// Under mutex_. A waiter goes on only after the sink has been told.
void JobControl::end(JobEnding ending) {
  const auto status = static_cast<int32_t>(ending.error.code);
  error_ = std::move(ending.error);
  // Before anybody is told: who sees this end sees the device lost.
  if (resources_.session != nullptr) resources_.session->device()->heed(error_.code);
  state_.store(ending.state, std::memory_order_release);
  if (CompletionSink* sink = sink_) {
    if (ending.state != JobState::LOST || !sink->awaits_answer()) sink_ = nullptr;
    sink->completed(job_seq(), ending.state, status);
  }
  told_.store(true, std::memory_order_release);
  changed_.notify_all();
}

BindingUse* JobControl::use() const {
  if (resources_.bindings != nullptr) return &resources_.bindings->job_seq_;
  return resources_.use.get();
}

void JobControl::complete(const cald_completion* completion) {
  const std::scoped_lock lock(mutex_);
  answered_ = true;
  if (BindingUse* held = use()) held->store(0, std::memory_order_release);
  if (state() < JobState::DONE)
    end(read_completion(completion, terms_.bound, terms_.entry));
  else if (CompletionSink* sink = std::exchange(sink_, nullptr))
    sink->answered(job_seq());
  if (orphaned_) JobSupervisor::get().dispose_later(std::move(resources_));
}

void JobControl::lose(std::optional<Error> why) {
  std::vector<uint64_t> whom;
  std::string text;
  {
    const std::scoped_lock lock(mutex_);
    if (state() >= JobState::DONE) return;
    if (sink_ != nullptr) whom = sink_->requests(job_seq());
    Error error{Status::EXECUTION_FAILED, 0, {}, "job", false, nullptr};
    if (why.has_value()) {
      error = std::move(*why);
      error.message = "lost: the driver cannot tell its end: " + error.message + "; " + kQuarantine;
    } else {
      char after[64];
      std::snprintf(after, sizeof after, "%.3f s after submit",
                    static_cast<double>(deadline_ns() - terms_.submitted_ns) / 1e9);
      error.message = std::string("lost: no answer by its deadline, ") + after + "; " + kQuarantine;
    }
    text = error.message;
    if (BindingUse* held = use()) held->fetch_or(kLostUse, std::memory_order_release);
    end({JobState::LOST, std::move(error)});
  }
  log_record({LOG_WARNING, "jobs", text.c_str(), job_seq(), whom});
}

Result<bool> JobControl::wait(uint64_t until_ns) {
  if (told_.load(std::memory_order_acquire)) return true;
  if (!real_time_) return wait_in_virtual_time(until_ns);
  using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as the deadlines
  const uint64_t limit = std::min(until_ns, deadline_ns());
  const Clock::time_point until{std::chrono::nanoseconds(static_cast<int64_t>(limit))};
  std::unique_lock lock(mutex_);
  const bool ended = changed_.wait_until(lock, until, [&] { return state() >= JobState::DONE; });
  if (ended || limit != deadline_ns()) return ended;
  lock.unlock();
  lose();  // do not depend on the supervisor's thread being on time
  return true;
}

// Time moves only by polling, so waiting is polling: from one time the device asks for to the next.
// A device that asks for no time at all takes the job to its deadline.
Result<bool> JobControl::wait_in_virtual_time(uint64_t until_ns) {
  Session& session = *resources_.session;
  const uint64_t give_up = monotonic_ns() + kHardTimeoutNs;
  for (uint64_t now = session.now_ns();;) {
    CALRT_TRY_ASSIGN(const uint64_t next, session.poll(now));
    if (told_.load(std::memory_order_acquire)) return true;
    now = std::max(now, session.now_ns());  // somebody else may poll, too
    if (now >= until_ns || monotonic_ns() >= give_up) return false;
    now = std::min({std::max(next, now + 1), until_ns, std::max(deadline_ns(), now + 1)});
  }
}

bool JobControl::wait_for_driver(uint64_t until_ns) {
  cald_error detail{};
  detail.struct_size = sizeof detail;
  cald_completion completion{};
  completion.struct_size = sizeof completion;
  completion.job_seq = job_seq();
  completion.bytes_in = completion.bytes_out = CALD_BYTES_UNKNOWN;
  const auto waited = call_driver(
      "job_wait", [&](cald_error* why) { return table().job_wait(handle(), until_ns, why); });
  if (!waited.ok()) {
    if (waited.error().code != Status::WAIT_TIMEOUT) lose(waited.error());
    return false;
  }
  const auto asked = call_driver("job_query", [&](cald_error*) {
    return table().job_query(handle(), &completion.state, &detail);
  });
  if (!asked.ok()) {
    lose(asked.error());
    return false;
  }
  if (completion.state == CALD_JOB_FAILED) {
    completion.status = detail.code;
    completion.native_code = detail.native_code;
    completion.flags = detail.flags;
  }
  on_job_complete(job_tag(job_seq()), &completion);
  return true;
}

std::vector<uint64_t> JobControl::requests() {
  const std::scoped_lock lock(mutex_);
  return sink_ != nullptr ? sink_->requests(job_seq()) : std::vector<uint64_t>();
}

Error JobControl::error() {
  const std::scoped_lock calls(call_mutex_);
  if (!detailed_ && state() == JobState::FAILED && handle() != nullptr) {
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
      const Error told = driver_error(static_cast<cald_status>(error_.code), detail, terms_.entry);
      error_.message = told.message;
      if (detail.where[0] != '\0') error_.where = told.where;
      if (!error_.unmapped && error_.native_code == 0) {
        error_.native_code = told.native_code;
        error_.unmapped = told.unmapped;
        error_.status_class = told.status_class;
      }
    }
  }
  detailed_ = true;
  Error out = error_;
  const char* sentence = status_row(static_cast<int32_t>(out.code)).sentence;
  out.message = "job " + std::to_string(job_seq()) + ": " +
                (out.message.empty() ? std::string(sentence) : out.message);
  return out;
}

Result<cald_timing> JobControl::timing() {
  const JobState now = state();
  if (now < JobState::DONE || now == JobState::LOST)
    return fail(Status::INVALID_STATE, "timing: job %llu is %s; it is known once the job has ended",
                (unsigned long long)job_seq(), job_state_name(now));
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

void JobControl::abandon() {
  JobResources dropped;
  const std::scoped_lock lock(mutex_);
  sink_ = nullptr;
  if (BindingUse* held = use()) held->store(0, std::memory_order_release);
  std::swap(dropped, resources_);
}

}  // namespace calrt
