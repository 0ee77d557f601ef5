// SPDX-License-Identifier: Apache-2.0
#include "engine/tick_loop.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/out_of_memory.h"

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
                   std::function<uint64_t()> clock, std::function<Result<void>()> recover,
                   uint32_t in_flight)
    : core_(std::move(core)),
      submitter_(submitter),
      job_timeout_ns_(job_timeout_ns),
      clock_(std::move(clock)),
      recover_(std::move(recover)),
      flights_(in_flight) {
  completions_.reserve(kCompletionRoom);
}

bool TickLoop::busy() const {
  return std::any_of(flights_.begin(), flights_.end(),
                     [](const Flight& flight) { return flight.job_seq.has_value(); });
}

// The flight of this job; without a number, a free one.
TickLoop::Flight* TickLoop::find(const std::optional<uint64_t>& job_seq) {
  for (Flight& flight : flights_) {
    if (flight.job_seq == job_seq) return &flight;
  }
  return nullptr;
}

// Events that the ends of what is in flight may produce.
size_t TickLoop::events_owed() const {
  size_t owed = 0;
  for (const Flight& flight : flights_) {
    if (flight.job_seq) owed += core_.events_of(flight.plan);
  }
  return owed;
}

void TickLoop::step(size_t room) {
  reap();
  core_.expire(clock_());
  for (const uint32_t lane : submitter_->answered()) core_.answered(lane);
  if (recovery_due()) {
    if (busy()) return;  // it wants the device alone: what is in flight ends first
    recover();
  }
  submit(room);
}

// Poisoned lanes are tried at once and then every second.
bool TickLoop::recovery_due() {
  const uint32_t poisoned = core_.poisoned_lanes();
  if (poisoned > poisoned_ || (poisoned > 0 && clock_() >= recover_ns_)) return true;
  poisoned_ = poisoned;
  return false;
}

// By jobs of their own, while nothing else is in flight.
void TickLoop::recover() {
  if (auto recovered = recover_(); !recovered.ok()) core_.fail_all(recovered.error(), clock_());
  recover_ns_ = clock_() + kRecoverAgainNs;
  poisoned_ = core_.poisoned_lanes();
}

void TickLoop::reap() {
  // One after the other: what an exception leaves is reaped next time.
  while (!completions_.empty()) {
    const uint64_t job_seq = completions_.front();
    completions_.erase(completions_.begin());
    Flight* flight = find(job_seq);
    if (flight == nullptr) {
      ++stale_;
      continue;
    }
    flight->job_seq.reset();
    const uint64_t now = clock_();
    device_ns_ += now - std::max(flight->submitted_ns, ended_ns_);
    ended_ns_ = now;
    if (!busy()) idle_since_ns_ = now;
    auto [result, lost] = submitter_->finish(flight->plan, job_seq);
    if (result.ok()) result = or_out_of_memory([&] { return sample(flight->plan); });
    if (result.ok()) {
      core_.completed(flight->plan, flight->tag, results_, clock_());
      continue;
    }
    core_.failed(flight->plan, flight->tag, result.error(), lost, clock_());
    if (ends_all(result.error().code)) core_.fail_all(result.error(), clock_());
  }
}

Result<void> TickLoop::sample(const JobPlan& plan) {
  const uint64_t begin = clock_();
  if (results_.size() < plan.rows.size()) results_.resize(plan.rows.size());
  for (uint32_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    if (!StepCore::wants(row)) continue;
    CALRT_TRY_ASSIGN(const LogitsView view, submitter_->logits(plan, i));
    results_[i].sampled = row.record->sampler.sample(view, &results_[i].top);
  }
  sample_ns_ += clock_() - begin;
  return {};
}

void TickLoop::submit(size_t room) {
  waits_for_room_ = false;
  if (clock_() < retry_ns_) return;
  retry_ns_ = 0;
  while (Flight* flight = find(std::nullopt)) {
    if (!core_.next(&flight->plan)) {
      if (busy()) return;  // its end brings more
      idle_since_ns_ = 0;
      if (core_.blocked()) retry_ns_ = clock_() + kFirstBackoffNs;
      return;
    }
    // Whatever happens to the requests, their last event must have a place.
    const size_t needed =
        core_.events().size() + events_owed() + core_.events_of(flight->plan) + core_.active();
    if (needed > room) {
      waits_for_room_ = true;
      return;
    }
    if (!submit(flight)) return;
  }
}

// False if nothing may be submitted for now.
bool TickLoop::submit(Flight* flight) {
  flight->tag = submitter_->next_tag();
  const uint64_t now = clock_();
  if (!core_.take_lanes(flight->plan, flight->tag, now).ok()) return true;
  auto submitted =
      or_out_of_memory([&] { return submitter_->submit(flight->plan, now + job_timeout_ns_); });
  if (!submitted.ok()) {
    refused(*flight, submitted.error());
    return clock_() >= retry_ns_;
  }
  flight->job_seq = *submitted;
  flight->submitted_ns = now;
  if (idle_since_ns_ != 0) idle_ns_ += now - std::exchange(idle_since_ns_, 0);
  retry_ns_ = backoff_ns_ = refused_since_ns_ = 0;
  refusals_ = 0;
  core_.submitted(flight->plan, now);
  return true;
}

void TickLoop::refused(const Flight& flight, const Error& error) {
  const uint64_t now = clock_();
  if (refusals_++ == 0) refused_since_ns_ = now;
  const bool wait = retry_is(error.code, "wait") && now - refused_since_ns_ < job_timeout_ns_;
  const bool again = retry_is(error.code, "once") && refusals_ == 1;
  if (wait || again) {
    core_.refused(flight.plan, flight.tag);
    backoff_ns_ = std::clamp(2 * backoff_ns_, kFirstBackoffNs, kLongestBackoffNs);
    retry_ns_ = wait ? now + backoff_ns_ : 0;
    return;
  }
  core_.refused_for_good(flight.plan, flight.tag, error, now);
  if (ends_all(error.code)) core_.fail_all(error, now);
  retry_ns_ = backoff_ns_ = refused_since_ns_ = 0;
  refusals_ = 0;
}

uint64_t TickLoop::wake_at() const {
  uint64_t at = core_.next_deadline();
  const bool free = std::any_of(flights_.begin(), flights_.end(),
                                [](const Flight& flight) { return !flight.job_seq; });
  if (free && retry_ns_ != 0 && core_.active() > 0) at = std::min(at, retry_ns_);
  if (!busy() && poisoned_ > 0) at = std::min(at, recover_ns_);
  if (submitter_->owed()) at = std::min(at, clock_() + kOwedCheckNs);
  return at;
}

void TickLoop::cancel_all() {
  core_.cancel_all(clock_());
  if (busy()) submitter_->cancel();
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
