// SPDX-License-Identifier: Apache-2.0
// Only wiring: an inbox, one thread around a TickLoop, and the ring.
#include "engine/runner.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/ranked_mutex.h"
#include "calrt/driver_host.h"
#include "engine/check.h"
#include "engine/lane_scrub.h"
#include "engine/ring.h"
#include "engine/submitter.h"
#include "engine/tick_loop.h"

namespace calrt::engine {

namespace {

// Far enough for any wait, near enough not to overflow the clock.
std::chrono::steady_clock::time_point time_of(uint64_t t_ns) {
  const uint64_t latest = monotonic_ns() + 3'600'000'000'000;
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(std::min(t_ns, latest)));
}

}  // namespace

struct StepRunner::Impl final : CompletionSink {
  Impl(std::shared_ptr<kv::LaneTable> table, const RunnerOptions& given)
      : lanes(std::move(table)), options(given), ring(given.max_events) {}

  const std::shared_ptr<kv::LaneTable> lanes;
  const RunnerOptions options;
  uint32_t vocab = 0;
  EventRing ring;
  std::unique_ptr<JobSubmitter> submitter;
  std::unique_ptr<TickLoop> loop;  // the thread's own
  std::thread thread;
  const pid_t process = getpid();  // where the thread runs

  mutable RankedMutex mutex{LockRank::TABLE, "runner"};  // the ring is looked at under it
  RankedCondition changed, exited;
  std::vector<std::unique_ptr<Record>> starts;
  std::vector<uint64_t> cancels, completions, reaped;
  struct Known {
    uint64_t lease;
    bool cancelled;
  };
  std::map<uint64_t, Known> known;  // requests that have not ended
  bool closing = false, running = false, stalled = false, drained = false;
  RunnerStatistics statistics;

  // Never allocates: a job or two are in flight, and of lost ones the submitter keeps count itself.
  void completed(uint64_t job_seq, JobState, int32_t) noexcept override {
    std::lock_guard lock(mutex);
    if (completions.size() < completions.capacity()) completions.push_back(job_seq);
    changed.notify_one();
  }

  std::vector<uint64_t> requests(uint64_t job_seq) noexcept override {
    try {
      return submitter->serves(job_seq);
    } catch (const std::bad_alloc&) {
      return {};
    }
  }

  void run();
  void turn(bool* closed);
  bool fail_all(const char* why);
  void take_inbox(bool* cancel_all);
  void publish();
};

// One turn's worth of news, handed to the loop outside the lock.
void StepRunner::Impl::take_inbox(bool* cancel_all) {
  std::vector<std::unique_ptr<Record>> new_starts;
  std::vector<uint64_t> new_cancels;
  {
    std::unique_lock lock(mutex);
    const auto news = [&] {
      return !starts.empty() || !cancels.empty() || !completions.empty() ||
             (closing && !*cancel_all) || (stalled && drained);
    };
    stalled = loop->waits_for_room();
    const uint64_t wake = loop->wake_at();
    if (wake == UINT64_MAX) {
      changed.wait(lock, news);
    } else {
      changed.wait_until(lock, time_of(wake), news);
    }
    drained = false;
    new_starts.swap(starts);
    new_cancels.swap(cancels);
    reaped.clear();
    reaped.swap(completions);
    *cancel_all = closing;
  }
  // Ends first: if something fails here, no flight may stay in the air.
  for (const uint64_t job_seq : reaped) loop->completed(job_seq);
  for (auto& record : new_starts) loop->core().start(std::move(record));
  for (const uint64_t request : new_cancels) loop->core().cancel(request, monotonic_ns());
}

void StepRunner::Impl::publish() {
  std::vector<Event>& events = loop->core().events();
  {
    std::lock_guard lock(mutex);
    statistics = loop->statistics();
    for (const Event& event : events) {
      if (event.kind == EventKind::ENDED) known.erase(event.request);
    }
  }
  ring.publish(&events);
}

void StepRunner::Impl::turn(bool* closed) {
  const bool before = *closed;
  take_inbox(closed);
  if (*closed && !before) loop->cancel_all();
  loop->step(ring.room());
  publish();
}

// The host ran out of memory, or worse: the requests fail, the process lives. False if not even
// that could be done.
bool StepRunner::Impl::fail_all(const char* why) {
  try {
    log_line(LOG_ERROR, "engine", "a tick failed, all its requests end: %s", why);
    loop->core().fail_all(fail(Status::OUT_OF_HOST_MEMORY, "the host failed in a tick: %s", why),
                          monotonic_ns());
    publish();
    return true;
  } catch (...) {
    return false;
  }
}

void StepRunner::Impl::run() {
  bool closed = false, alive = true;
  while (alive && !(closed && loop->idle())) {
    try {
      turn(&closed);
    } catch (const std::exception& failed) {
      alive = fail_all(failed.what());
    } catch (...) {
      alive = fail_all("unknown exception");
    }
  }
  std::lock_guard lock(mutex);
  running = false;
  exited.notify_all();
}

namespace {

std::function<Result<void>()> recovery(std::shared_ptr<LaneScrubber> scrubber,
                                       std::shared_ptr<kv::LaneTable> table) {
  return [scrubber = std::move(scrubber), table = std::move(table)]() -> Result<void> {
    scrubber->scrub_unowned();
    const uint32_t off = table->offline_lanes();
    if (2 * off <= table->lanes()) return {};
    return fail(Status::DEVICE_LOST, "%u of %u lanes do not work any more: load the model again",
                off, table->lanes());
  };
}

}  // namespace

Result<std::unique_ptr<StepRunner>> StepRunner::make(std::shared_ptr<Model> model,
                                                     std::shared_ptr<kv::LaneTable> lanes,
                                                     const RunnerOptions& options) {
  CALRT_TRY(model->check_open());
  if (lanes->lanes() != model->info().lanes || lanes->cells() != model->info().cells) {
    return fail(Status::SHAPE_MISMATCH, "the table has %u lanes of %u cells, the model %u of %u",
                lanes->lanes(), lanes->cells(), model->info().lanes, model->info().cells);
  }
  if (options.in_flight < 1 || options.in_flight > 2) {
    return fail(Status::OUT_OF_RANGE, "in_flight=%u: 1 or 2 jobs", options.in_flight);
  }
  auto impl = std::make_unique<Impl>(lanes, options);
  impl->vocab = model->info().vocab;
  impl->completions.reserve(TickLoop::kCompletionRoom);
  impl->reaped.reserve(TickLoop::kCompletionRoom);
  CALRT_TRY(impl->ring.open());
  CALRT_TRY_ASSIGN(std::shared_ptr<Session> session,
                   model->device()->session(model->session_index()));
  auto scrubber = std::make_shared<LaneScrubber>(model, std::move(session), lanes);
  CALRT_TRY_ASSIGN(impl->submitter,
                   JobSubmitter::make(std::move(model), impl.get(), options.in_flight));
  const std::vector<GraphShape> shapes = impl->submitter->shapes();
  CALRT_TRY(check_options(options, shapes, lanes->lanes()));
  StepCore core(shapes, std::move(lanes), {options.prefill_chunk, options.decode_ticks_per_chunk});
  impl->loop = std::make_unique<TickLoop>(
      std::move(core), impl->submitter.get(), options.job_timeout_ns, monotonic_ns,
      recovery(std::move(scrubber), impl->lanes), options.in_flight);
  impl->running = true;
  try {
    impl->thread = std::thread([raw = impl.get()] { raw->run(); });
  } catch (const std::system_error& error) {
    return fail(Status::OUT_OF_HOST_MEMORY, "no thread for the runner: %s", error.what());
  }
  return std::unique_ptr<StepRunner>(new StepRunner(std::move(impl)));
}

StepRunner::StepRunner(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StepRunner::~StepRunner() {
  if (impl_->process != getpid()) {
    (void)impl_.release();  // a fork's child has no such thread to join, or to wake
    return;
  }
  // Ends: a job in flight is lost at its deadline at the latest.
  (void)close(UINT64_MAX);
}

Result<void> StepRunner::start(Start start) {
  CALRT_TRY(check_start(start, impl_->vocab, *impl_->lanes));
  CALRT_TRY_ASSIGN(Sampler sampler, Sampler::make(start.sampling, impl_->vocab));
  for (const int32_t token : start.history) sampler.accept(token);
  for (const int32_t token : start.tokens) sampler.accept(token);
  const uint64_t request = start.request, lease = start.lane.lease;
  auto record = std::make_unique<Record>(std::move(start), std::move(sampler));

  std::lock_guard lock(impl_->mutex);
  if (impl_->closing) return fail(Status::INVALID_STATE, "the runner is closed");
  if (impl_->ring.room() == 0) {
    return fail(Status::QUEUE_FULL, "%zu events are pending: drain them before the next start",
                impl_->ring.capacity());
  }
  for (const auto& [other, known] : impl_->known) {
    if (other == request || known.lease == lease) {
      return fail(Status::INVALID_STATE, "request %llu already runs, on lane %u",
                  static_cast<unsigned long long>(other), record->start.lane.lane);
    }
  }
  impl_->known.emplace(request, Impl::Known{lease, false});
  impl_->starts.push_back(std::move(record));
  impl_->changed.notify_one();
  return {};
}

void StepRunner::cancel(uint64_t request) {
  std::lock_guard lock(impl_->mutex);
  const auto found = impl_->known.find(request);
  if (found == impl_->known.end() || std::exchange(found->second.cancelled, true)) return;
  impl_->cancels.push_back(request);
  impl_->changed.notify_one();
}

int StepRunner::fd() const { return impl_->ring.fd(); }

std::vector<Event> StepRunner::drain() {
  std::vector<Event> events = impl_->ring.drain();
  std::lock_guard lock(impl_->mutex);
  impl_->drained = true;
  if (impl_->stalled) impl_->changed.notify_one();
  return events;
}

RunnerStatistics StepRunner::statistics() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->statistics;
}

Result<void> StepRunner::close(uint64_t deadline_ns) {
  if (impl_->process != getpid()) return {};
  {
    std::unique_lock lock(impl_->mutex);
    impl_->closing = true;
    impl_->changed.notify_one();
    const auto gone = [&] { return !impl_->running; };
    if (deadline_ns == UINT64_MAX) {
      impl_->exited.wait(lock, gone);
    } else if (!impl_->exited.wait_until(lock, time_of(deadline_ns), gone)) {
      return fail(Status::WAIT_TIMEOUT,
                  "what is in flight has not ended yet: close again, or drop the runner");
    }
  }
  if (impl_->thread.joinable()) impl_->thread.join();
  return {};
}

}  // namespace calrt::engine
