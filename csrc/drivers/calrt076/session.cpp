// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/session.h"

#include <chrono>
#include <system_error>

using calrt::Error;
using calrt::fail;
using calrt::Result;
using calrt::Status;
using namespace calrt::calrt076;

using ull = unsigned long long;

cald_session::cald_session(cald_device* device)
    : device_(device), waiter_(device, [this](const Error* why) {
        std::lock_guard lock(mutex_);
        ended_ = why == nullptr ? Result<void>() : Result<void>(*why);
        wake_.notify_all();
      }) {}

Result<void> cald_session::start() {
  CALRT_TRY(waiter_.start());
  try {
    pump_ = std::thread([this] { pump(); });
  } catch (const std::system_error& error) {
    return fail(Status::OUT_OF_HOST_MEMORY, "could not start the session's thread: %s",
                error.what());
  }
  return {};
}

cald_session::~cald_session() {
  std::deque<JobPtr> unbegun;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    unbegun.swap(queue_);
  }
  wake_.notify_all();
  for (const JobPtr& job : unbegun) {
    const Error why = fail(Status::EXECUTION_FAILED, "the session was closed before job %llu began",
                           static_cast<ull>(job->job_seq));
    job->finish(CALD_JOB_FAILED, &why);
  }
  if (pump_.joinable()) pump_.join();
}

Result<std::shared_ptr<Job>> cald_session::submit(const cald_job_desc& desc) {
  CALRT_TRY_ASSIGN(Run run, read_run(*device_, desc));
  const auto job = std::make_shared<Job>(device_, std::move(run), desc);
  {
    std::lock_guard lock(mutex_);
    const uint32_t runs = running_ != nullptr ? 1 : 0;
    if (runs + queue_.size() >= kDepth + kQueue)
      return fail(Status::QUEUE_FULL, "%u job runs and %zu wait; at most %u may wait", runs,
                  queue_.size(), kQueue);
    job->run.output->stand(CALD_BUFFER_QUEUED, job->job_seq);
    queue_.push_back(job);
  }
  wake_.notify_all();
  return job;
}

void cald_session::cancel(const Job& job) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const JobPtr& queued) { return queued.get() == &job; });
  if (found == queue_.end()) return;
  const JobPtr waiting = std::move(*found);
  queue_.erase(found);
  const Error why = fail(Status::CANCELLED, "cancelled before it began");
  waiting->finish(CALD_JOB_CANCELLED, &why);
}

// Only this thread calls the SDK for a model's runs, apart from Wait. It holds no lock meanwhile.
void cald_session::pump() {
  using std::chrono::steady_clock;
  Lock lock(mutex_);
  for (;;) {
    end_overdue();
    if (running_ != nullptr && ended_) {
      end_running(lock);
    } else if (running_ == nullptr && !queue_.empty()) {
      begin_next(lock);
    } else if (stop_ && running_ == nullptr) {
      return;
    } else {
      uint64_t first = INT64_MAX;
      for (const JobPtr& job : queue_) first = std::min(first, job->deadline_ns);
      wake_.wait_until(lock, steady_clock::time_point(std::chrono::nanoseconds(first)));
    }
  }
}

// Also while the SDK hangs in a run: what is overdue need not wait for its turn to be told so.
void cald_session::end_overdue() {
  for (;;) {
    const uint64_t now = device_->driver->now_ns();
    const auto late = std::find_if(queue_.begin(), queue_.end(),
                                   [&](const JobPtr& job) { return now >= job->deadline_ns; });
    if (late == queue_.end()) return;
    const JobPtr job = std::move(*late);
    queue_.erase(late);
    const Error why = fail(Status::EXECUTION_FAILED, "job %llu: its deadline passed in the queue",
                           static_cast<ull>(job->job_seq));
    job->finish(CALD_JOB_FAILED, &why);
  }
}

void cald_session::begin_next(Lock& lock) {
  running_ = std::move(queue_.front());
  queue_.pop_front();
  const JobPtr job = running_;
  lock.unlock();
  job->begin();
  const Result<void> given = job->run.padding ? Result<void>() : give(job->run);
  lock.lock();
  if (given.ok() && !job->run.padding) return;  // the waiter tells
  running_ = nullptr;
  job->finish(given.ok() ? CALD_JOB_DONE : CALD_JOB_FAILED, given.ok() ? nullptr : &given.error());
}

Result<void> cald_session::give(Run& run) {
  cald_model& model = *run.model;
  CALRT_TRY(told(sdk::apply(model.handle, run.lane, run.first + run.rows), "taking KV cells"));
  CALRT_TRY(told(sdk::infer(model.handle, run.graph->index, run.inputs.data(), &run_), "infer()"));
  model.run_begins();
  waiter_.await(model.handle, run_);
  return {};
}

void cald_session::end_running(Lock& lock) {
  const JobPtr job = running_;
  Result<void> end = *std::move(ended_);
  ended_.reset();
  lock.unlock();
  if (end.ok()) end = take_back(*job);
  job->run.model->run_ended();
  // The output was overwritten before it was read. To run again writes the same cells.
  if (!end.ok() && end.error().native_code == sdk::kOutbufState && !job->run.again) {
    job->run.again = true;
    device_->reruns += 1;
    end = give(job->run);
    if (end.ok()) {
      lock.lock();
      return;
    }
  }
  lock.lock();
  running_ = nullptr;
  if (end.ok()) {
    job->finish(CALD_JOB_DONE, nullptr);
    return;
  }
  // It began, so its cells may be written: a status that says otherwise would be a promise.
  Error why = std::move(end).error();
  if (leaves_cells(why.code)) why.code = Status::EXECUTION_FAILED;
  job->finish(CALD_JOB_FAILED, &why);
}

Result<void> cald_session::take_back(Job& job) {
  job.computed();
  const Run& run = job.run;
  CALRT_TRY(told(sdk::output(run.model->handle, run.graph->index, run_, run.logits,
                             run.graph->logits().layout.bytes),
                 "the run's output"));
  device_->tokens += run.rows;
  return {};
}
