// SPDX-License-Identifier: Apache-2.0
#include "engine/tick_loop.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace calrt::engine {

namespace {

constexpr uint64_t kFirstBackoffNs = 1'000'000;
constexpr uint64_t kLongestBackoffNs = 50'000'000;
constexpr uint64_t kRecoverAgainNs = 1'000'000'000;
constexpr uint64_t kOwedCheckNs = 100'000'000;  // nobody tells when a lost job's driver answers

// After these no other request can go on either.
bool ends_all(Status code) {
  return code == Status::DEVICE_LOST || code == Status::CCU_FAULT || code == Status::MODEL_UNLOADED;
}

bool retry_is(Status code, const char* kind) {
  return std::strcmp(status_row(static_cast<int32_t>(code)).retry, kind) == 0;
}

}  // namespace

TickLoop::TickLoop(StepCore core, Submitter* submitter, uint64_t job_timeout_ns,
                   std::function<uint64_t()> clock, std::function<Result<void>()> recover)
    : core_(std::move(core)),
      submitter_(submitter),
      job_timeout_ns_(job_timeout_ns),
      clock_(std::move(clock)),
      recover_(std::move(recover)) {}

void TickLoop::step(size_t room) {
  reap();
  core_.expire(clock_());
  for (const uint32_t lane : submitter_->answered()) core_.answered(lane);
  if (job_seq_) return;
  recover();
  submit(room);
}

// Between two jobs: the lanes are tried by jobs of their own, at once and then every second.
void TickLoop::recover() {
  const uint32_t poisoned = core_.poisoned_lanes();
  if (poisoned > poisoned_ || (poisoned > 0 && clock_() >= recover_ns_)) {
    if (auto recovered = recover_(); !recovered.ok()) core_.fail_all(recovered.error(), clock_());
    recover_ns_ = clock_() + kRecoverAgainNs;
  }
  poisoned_ = core_.poisoned_lanes();
}

void TickLoop::reap() {
  for (const uint64_t job_seq : std::exchange(completions_, {})) {
    if (!job_seq_ || *job_seq_ != job_seq) {
      ++stale_;
      continue;
    }
    job_seq_.reset();
    const uint64_t now = clock_();
    device_ns_ += now - submitted_ns_;
    idle_since_ns_ = now;
    auto [result, lost] = submitter_->finish(plan_);
    if (result.ok()) result = sample();
    if (result.ok()) {
      core_.completed(plan_, tag_, results_, clock_());
      continue;
    }
    core_.failed(plan_, tag_, result.error(), lost, clock_());
    if (ends_all(result.error().code)) core_.fail_all(result.error(), clock_());
  }
}

Result<void> TickLoop::sample() {
  const uint64_t begin = clock_();
  if (results_.size() < plan_.rows.size()) results_.resize(plan_.rows.size());
  for (uint32_t i = 0; i < plan_.rows.size(); ++i) {
    const PlanRow& row = plan_.rows[i];
    if (!StepCore::wants(row)) continue;
    CALRT_TRY_ASSIGN(const LogitsView view, submitter_->logits(plan_, i));
    results_[i].sampled = row.record->sampler.sample(view, &results_[i].top);
  }
  sample_ns_ += clock_() - begin;
  return {};
}

void TickLoop::submit(size_t room) {
  waits_for_room_ = false;
  if (clock_() < retry_ns_) return;
  while (core_.next(&plan_)) {
    // Whatever happens to the requests, their last event must have a place.
    const size_t needed = core_.events().size() + core_.events_of(plan_) + core_.active();
    if (needed > room) {
      waits_for_room_ = true;
      return;
    }
    tag_ = submitter_->next_tag();
    const uint64_t now = clock_();
    if (!core_.take_lanes(plan_, tag_, now).ok()) continue;
    auto submitted = submitter_->submit(plan_, now + job_timeout_ns_);
    if (!submitted.ok()) {
      refused(submitted.error());
      if (clock_() < retry_ns_) return;
      continue;
    }
    job_seq_ = *submitted;
    submitted_ns_ = now;
    if (idle_since_ns_ != 0) idle_ns_ += now - idle_since_ns_;
    retry_ns_ = backoff_ns_ = refused_since_ns_ = 0;
    refusals_ = 0;
    core_.submitted(plan_, now);
    return;
  }
  idle_since_ns_ = 0;
  if (core_.blocked()) retry_ns_ = clock_() + kFirstBackoffNs;
}

void TickLoop::refused(const Error& error) {
  const uint64_t now = clock_();
  if (refusals_++ == 0) refused_since_ns_ = now;
  const bool wait = retry_is(error.code, "wait") && now - refused_since_ns_ < job_timeout_ns_;
  const bool again = retry_is(error.code, "once") && refusals_ == 1;
  if (wait || again) {
    core_.refused(plan_, tag_);
    backoff_ns_ = std::clamp(2 * backoff_ns_, kFirstBackoffNs, kLongestBackoffNs);
    retry_ns_ = wait ? now + backoff_ns_ : 0;
    return;
  }
  core_.refused_for_good(plan_, tag_, error, now);
  if (ends_all(error.code)) core_.fail_all(error, now);
  retry_ns_ = backoff_ns_ = refused_since_ns_ = 0;
  refusals_ = 0;
}

uint64_t TickLoop::wake_at() const {
  uint64_t at = core_.next_deadline();
  if (!job_seq_ && retry_ns_ != 0 && core_.active() > 0) at = std::min(at, retry_ns_);
  if (!job_seq_ && poisoned_ > 0) at = std::min(at, recover_ns_);
  if (submitter_->owed()) at = std::min(at, clock_() + kOwedCheckNs);
  return at;
}

void TickLoop::cancel_all() {
  core_.cancel_all(clock_());
  if (job_seq_) submitter_->cancel();
}

RunnerStatistics TickLoop::statistics() const {
  RunnerStatistics now = core_.statistics();
  now.stale_completions = stale_;
  now.device_ns = device_ns_;
  now.sample_ns = sample_ns_;
  now.idle_ns = idle_ns_;
  return now;
}

}  // namespace calrt::engine
