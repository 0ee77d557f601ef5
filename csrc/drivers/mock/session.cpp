// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/session.h"

#include <chrono>
#include <system_error>

using calrt::Error;
using calrt::fail;
using calrt::Result;
using calrt::Status;
using namespace calrt::mock;

namespace {

std::chrono::steady_clock::time_point time_of(uint64_t t_ns) {
  return std::chrono::steady_clock::time_point(
      std::chrono::nanoseconds(static_cast<int64_t>(std::min<uint64_t>(t_ns, INT64_MAX))));
}

Error late(const Job& job) {
  return fail(Status::EXECUTION_FAILED, "job %llu: its deadline passed before it began",
              static_cast<ull>(job.terms.job_seq));
}

}  // namespace

Result<void> cald_session::start() {
  if (!threaded()) return {};
  try {
    worker_ = std::thread([this] { worker_loop(); });
  } catch (const std::system_error& error) {
    return fail(Status::OUT_OF_HOST_MEMORY, "could not start the session's thread: %s",
                error.what());
  }
  return {};
}

cald_session::~cald_session() {
  {
    Lock lock(bell_->mutex);
    closing_ = true;
    bell_->open = false;
    std::deque<JobRef> unbegun;
    unbegun.swap(waiting_);
    for (const JobRef& job : unbegun)
      end(lock, job, CALD_JOB_FAILED,
          fail(Status::EXECUTION_FAILED, "the session was closed before job %llu began",
               static_cast<ull>(job->terms.job_seq)));
    if (!threaded() && running_ != nullptr) (void)advance(lock, running_->due_ns);
    bell_->rung.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

uint64_t cald_session::now_ns() const {
  return device_->settings.virtual_clock ? virtual_ns_ : device_->driver->now_ns();
}

Result<std::shared_ptr<Job>> cald_session::submit(std::unique_ptr<Work> work, const Terms& terms) {
  const uint32_t home = work->model()->plan.session;
  if (home != index_)
    return fail(Status::INVALID_ARGUMENT,
                "the model lies on the chips of session %u: session %u cannot run it", home,
                index_);
  auto job = std::make_shared<Job>();
  job->bell = bell_;
  job->session = this;
  job->device = device_;
  job->terms = terms;
  job->work = std::move(work);
  const Stages& stages = job->work->stages();
  job->stages = {device_->scaled(stages.in_ns), device_->scaled(stages.run_ns),
                 device_->scaled(stages.out_ns)};
  const uint32_t room = device_->preset->queue;
  const Lock lock(bell_->mutex);
  // A job that waits for an idle device to take it needs no place in the queue.
  const size_t queued = waiting_.size() + (running_ != nullptr ? 1 : 0);
  if (queued > room)
    return fail(Status::QUEUE_FULL, "%zu jobs have not ended: one runs, and at most %u may wait",
                queued, room);
  job->submitted_ns = now_ns();
  job->work->mark_output(CALD_BUFFER_QUEUED, terms.job_seq);
  waiting_.push_back(job);
  kicked_ = true;
  bell_->rung.notify_all();
  return job;
}

void cald_session::cancel(const JobRef& job) {
  Lock lock(bell_->mutex);
  if (running_ == job) job->cancel_asked = true;
  const auto at = std::find(waiting_.begin(), waiting_.end(), job);
  if (at == waiting_.end()) return;
  waiting_.erase(at);
  end(lock, job, CALD_JOB_CANCELLED,
      fail(Status::CANCELLED, "job %llu was cancelled before it began",
           static_cast<ull>(job->terms.job_seq)));
}

Result<uint64_t> cald_session::poll(uint64_t now_ns) {
  if (threaded())
    return fail(Status::UNSUPPORTED,
                "poll: this device was opened with a thread of its own; open "
                "it with completion=poll or clock=virtual");
  Lock lock(bell_->mutex);
  if (device_->settings.virtual_clock) {
    now_ns = virtual_ns_ = std::max(virtual_ns_, now_ns);
    uint64_t furthest = device_->virtual_ns.load();
    while (furthest < now_ns && !device_->virtual_ns.compare_exchange_weak(furthest, now_ns)) {
    }
  }
  return advance(lock, now_ns);
}

void cald_session::worker_loop() {
  Lock lock(bell_->mutex);
  while (!closing_ || running_ != nullptr) {
    kicked_ = false;
    const uint64_t now = now_ns();
    const uint64_t next = advance(lock, now);
    const auto news = [&] { return kicked_ || (closing_ && running_ == nullptr); };
    if (next == CALD_NO_DEADLINE)
      bell_->rung.wait(lock, [&] { return kicked_ || closing_; });
    else if (next > now)
      bell_->rung.wait_until(lock, time_of(next), news);
  }
}

// ---- the state machine --------------------------------------------------------------------------

// Events in the order of their times: the running job ends, a waiting one passes its deadline.
uint64_t cald_session::advance(Lock& lock, uint64_t now_ns) {
  for (;;) {
    if (running_ == nullptr) {
      if (waiting_.empty()) return CALD_NO_DEADLINE;
      begin_next(lock, now_ns);
      continue;
    }
    auto first = waiting_.begin();
    for (auto at = first; at != waiting_.end(); ++at)
      if ((*at)->terms.deadline_ns < (*first)->terms.deadline_ns) first = at;
    const uint64_t expiry =
        first == waiting_.end() ? CALD_NO_DEADLINE : (*first)->terms.deadline_ns;
    const uint64_t next = std::min(running_->due_ns, expiry);
    if (next > now_ns) return next;
    if (expiry > running_->due_ns) {
      finish_running(lock);
    } else {  // also at the moment in which it could begin
      const JobRef job = *first;
      waiting_.erase(first);
      end(lock, job, CALD_JOB_FAILED, late(*job));
    }
  }
}

// The device goes on as soon as it is free, however late the thread is that drives it.
void cald_session::begin_next(Lock& lock, uint64_t now_ns) {
  const JobRef job = std::move(waiting_.front());
  waiting_.pop_front();
  const uint64_t start = std::max(free_ns_, job->submitted_ns);
  const bool too_late =
      (device_->settings.virtual_clock ? start : std::max(start, now_ns)) >= job->terms.deadline_ns;
  if (too_late) return end(lock, job, CALD_JOB_FAILED, late(*job));
  if (Result<void> begun = job->work->begin(); !begun.ok())
    return end(lock, job, CALD_JOB_FAILED, std::move(begun).error());
  running_ = job;
  job->state = CALD_JOB_RUNNING;
  job->begun_ns = start;
  job->due_ns = start + job->stages.in_ns + job->stages.run_ns + job->stages.out_ns;
  job->work->mark_output(CALD_BUFFER_BUSY, job->terms.job_seq);
  ++device_->counters.jobs;
}

void cald_session::finish_running(Lock& lock) {
  const JobRef job = running_;
  const bool cancelled = job->cancel_asked;
  lock.unlock();
  if (!cancelled) job->work->finish();
  lock.lock();
  // Before the job is seen to have ended there must be room for the next one.
  free_ns_ = job->due_ns;
  running_ = nullptr;
  device_->counters.busy_ns += job->due_ns - job->begun_ns;
  if (device_->trace.on()) trace(*job);
  if (!cancelled) return end(lock, job, CALD_JOB_DONE, {});
  end(lock, job, CALD_JOB_CANCELLED,
      fail(Status::CANCELLED, "job %llu was cancelled while it ran",
           static_cast<ull>(job->terms.job_seq)));
}

void cald_session::end(Lock& lock, const JobRef& job, int32_t terminal, Error why) {
  const bool done = terminal == CALD_JOB_DONE;
  count(*job, terminal);
  lock.unlock();
  // Before anybody is told: then the buffer may go.
  job->work->mark_output(done ? CALD_BUFFER_READY : CALD_BUFFER_IDLE, job->terms.job_seq);
  const bool calls = device_->settings.completion != CALD_COMPLETION_WAIT;
  if (calls && job->terms.on_complete != nullptr) {
    cald_completion completion{};
    completion.struct_size = sizeof completion;
    completion.state = terminal;
    completion.job_seq = job->terms.job_seq;
    completion.status = done ? CALD_OK : static_cast<cald_status>(why.code);
    completion.bytes_in = job->due_ns != 0 ? job->work->bytes_in() : 0;
    completion.bytes_out = done ? job->work->bytes_out() : 0;
    job->terms.on_complete(job->terms.user, &completion);
  }
  lock.lock();
  job->error = std::move(why);
  job->state = terminal;
  bell_->rung.notify_all();
}

void cald_session::count(const Job& job, int32_t terminal) {
  Counters& counters = device_->counters;
  if (terminal == CALD_JOB_DONE) {
    ++counters.jobs_done;
    counters.h2d_bytes += job.work->bytes_in();
    counters.d2h_bytes += job.work->bytes_out();
  } else {
    ++(terminal == CALD_JOB_CANCELLED ? counters.jobs_cancelled : counters.jobs_failed);
  }
}

// A track for each engine of a session: copies in, runs, copies out. What takes no time does not
// show, but the run does: it names the job.
void cald_session::trace(const Job& job) {
  const uint32_t track = 3 * index_;
  const uint64_t seq = job.terms.job_seq, begun = device_->device_time(job.begun_ns);
  const uint64_t run = begun + job.stages.in_ns, out = run + job.stages.run_ns;
  Trace& trace = device_->trace;
  if (run != begun) trace.add("copy in", seq, track, begun, run);
  trace.add(job.work->name(), seq, track + 1, run, out);
  if (job.stages.out_ns != 0) trace.add("copy out", seq, track + 2, out, out + job.stages.out_ns);
}

// ---- a job's handle -----------------------------------------------------------------------------

namespace calrt::mock {

void query(const Job& job, int32_t* state, cald_error* err) {
  const std::lock_guard lock(job.bell->mutex);
  *state = job.state;
  if (job.state == CALD_JOB_FAILED || job.state == CALD_JOB_CANCELLED)
    (void)report(job.error, "job", err);
}

Result<void> wait(Job& job, uint64_t deadline_ns) {
  std::unique_lock lock(job.bell->mutex);
  const auto ended = [&] { return job.state >= CALD_JOB_DONE; };
  // Virtual time does not pass by waiting: only whoever polls can end the job.
  if (job.device->settings.virtual_clock
          ? ended()
          : job.bell->rung.wait_until(lock, time_of(deadline_ns), ended))
    return {};
  return fail(Status::WAIT_TIMEOUT, "job %llu has not ended yet",
              static_cast<ull>(job.terms.job_seq));
}

Result<void> cancel(const std::shared_ptr<Job>& job) {
  if (!job->device->preset->cancel)
    return fail(Status::UNSUPPORTED, "%s cannot cancel a job", job->device->preset->device_class);
  {
    const std::lock_guard lock(job->bell->mutex);
    if (job->state >= CALD_JOB_DONE || !job->bell->open) return {};
  }
  job->session->cancel(job);
  return {};
}

cald_timing timing_of(const Job& job) {
  const std::lock_guard lock(job.bell->mutex);
  cald_timing timing{};
  timing.submitted_ns = job.submitted_ns;
  if (job.due_ns == 0) return timing;  // it has not begun
  timing.queue_ns = job.begun_ns - job.submitted_ns;
  timing.h2d_ns = job.stages.in_ns;
  timing.infer_ns = job.stages.run_ns;
  timing.d2h_ns = job.stages.out_ns;
  return timing;
}

}  // namespace calrt::mock
