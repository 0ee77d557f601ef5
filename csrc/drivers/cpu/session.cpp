// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/session.h"

#include <system_error>

using calrt::Error;
using calrt::fail;
using calrt::Result;
using calrt::Status;
using namespace calrt::cpu;

void JobState::finish(int32_t terminal, Error why, uint64_t now_ns) {
  const bool done = terminal == CALD_JOB_DONE;
  const auto status = static_cast<cald_status>(done ? Status::OK : why.code);
  // Before anybody is told: then the buffer may go.
  if (work.output != nullptr)
    work.output->set_output_state(done ? CALD_BUFFER_READY : CALD_BUFFER_IDLE, job_seq);
  if (on_complete != nullptr) {
    cald_completion completion{};
    completion.struct_size = sizeof completion;
    completion.bytes_in = work.bytes_in;
    completion.bytes_out = done ? work.bytes_out : 0;
    completion.state = terminal;
    completion.job_seq = job_seq;
    completion.status = status;
    on_complete(user, &completion);
  }
  // Waiters are told under the lock: as soon as it is free, the last owner may be gone.
  std::lock_guard lock(mutex);
  error = std::move(why);
  ended_ns = now_ns;
  state = terminal;
  ended.notify_all();
}

Result<void> cald_session::start() {
  CALRT_TRY(pool_.start(device_->threads));
  try {
    worker_ = std::thread([this] { worker_loop(); });
  } catch (const std::system_error& error) {
    return fail(Status::OUT_OF_HOST_MEMORY, "could not start the session's thread: %s",
                error.what());
  }
  return {};
}

cald_session::~cald_session() {
  std::deque<std::shared_ptr<JobState>> unstarted;
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    unstarted.swap(queue_);
  }
  work_.notify_all();
  for (const auto& job : unstarted)
    end(*job, CALD_JOB_FAILED,
        fail(Status::EXECUTION_FAILED, "the session was closed before job %llu began",
             static_cast<unsigned long long>(job->job_seq)));
  if (worker_.joinable()) worker_.join();
}

void cald_session::end(JobState& job, int32_t terminal, Error why) {
  job.finish(terminal, std::move(why), device_->driver->now_ns());
}

template <class Desc>
Result<std::shared_ptr<JobState>> cald_session::submit(const Desc& desc) {
  if (desc.model != nullptr && desc.model->device != device_)
    return fail(Status::INVALID_HANDLE, "the model is another device's");
  auto job = std::make_shared<JobState>();
  CALRT_TRY_ASSIGN(job->work, read_job(desc));
  job->session = this;
  job->model = desc.model;
  job->job_seq = desc.job_seq;
  job->deadline_ns = desc.deadline_ns;
  job->on_complete = desc.on_complete;
  job->user = desc.user;
  job->submitted_ns = device_->driver->now_ns();
  {
    std::lock_guard lock(mutex_);
    if (running_ + queue_.size() >= kDepth + kQueue)
      return fail(Status::QUEUE_FULL, "%u job runs and %zu wait; at most %u may wait", running_,
                  queue_.size(), kQueue);
    if (job->work.output != nullptr)
      job->work.output->set_output_state(CALD_BUFFER_QUEUED, job->job_seq);
    queue_.push_back(job);
  }
  work_.notify_one();
  return job;
}

template Result<std::shared_ptr<JobState>> cald_session::submit(const cald_job_desc& desc);
template Result<std::shared_ptr<JobState>> cald_session::submit(const cald_kv_desc& desc);

void cald_session::cancel(JobState& job) {
  std::shared_ptr<JobState> waiting;
  {
    std::lock_guard lock(mutex_);
    job.cancel.store(true);
    for (auto it = queue_.begin(); it != queue_.end(); ++it) {
      if (it->get() != &job) continue;
      waiting = *it;
      queue_.erase(it);
      break;
    }
  }
  if (waiting)
    end(*waiting, CALD_JOB_CANCELLED, fail(Status::CANCELLED, "cancelled before it began"));
}

void cald_session::worker_loop() {
  for (;;) {
    std::shared_ptr<JobState> job;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      job = std::move(queue_.front());
      queue_.pop_front();
      running_ = 1;
    }
    run(*job);
    // Before the job is seen to have ended there must be room for the next one, so running_ falls
    // inside run(), just before finish().
  }
}

void cald_session::run(JobState& job) {
  const uint64_t started = device_->driver->now_ns();
  const bool late = started >= job.deadline_ns;
  bool completed = false;
  if (!late) {
    {
      std::lock_guard lock(job.mutex);
      job.state = CALD_JOB_RUNNING;
      job.started_ns = started;
    }
    if (job.work.output != nullptr)
      job.work.output->set_output_state(CALD_BUFFER_BUSY, job.job_seq);
    device_->trace.add(job.work.name(), CALD_TRACE_BEGIN, job.job_seq, started);
    completed = job.work.run(*job.model, pool_, job.cancel);
    const uint64_t ended = device_->driver->now_ns();
    device_->trace.add(job.work.name(), CALD_TRACE_END, job.job_seq, ended);
    device_->busy_ns += ended - started;
  }
  device_->jobs += 1;
  if (completed) device_->tokens += job.work.tokens();
  {
    std::lock_guard lock(mutex_);
    running_ = 0;
  }
  if (completed) {
    end(job, CALD_JOB_DONE, {});
  } else if (late) {
    end(job, CALD_JOB_FAILED,
        fail(Status::EXECUTION_FAILED, "job %llu: its deadline passed in the queue",
             static_cast<unsigned long long>(job.job_seq)));
  } else {
    end(job, CALD_JOB_CANCELLED,
        fail(Status::CANCELLED, "job %llu was cancelled while it ran",
             static_cast<unsigned long long>(job.job_seq)));
  }
}
