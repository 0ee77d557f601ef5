// SPDX-License-Identifier: Apache-2.0
#include "calrt/job.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "calrt/driver_host.h"
#include "calrt/job_control.h"

namespace calrt {
namespace {

std::atomic<uint64_t> last_job_seq{0}, strays{0}, late{0};

// The driver's callback. `user` is the tag, not an address.
void on_complete(void* user, const cald_completion* completion) {
  const uint64_t tag = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(user));
  const bool same = completion == nullptr || completion->job_seq == tag;
  const std::shared_ptr<JobControl> control = same ? JobSupervisor::get().take(tag) : nullptr;
  if (control == nullptr) {
    strays.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (control->state() == JobState::LOST) late.fetch_add(1, std::memory_order_relaxed);
  control->complete(completion);
}

Result<void> check_submit(const Session& session, const Model& model, const BindingSet& bindings) {
  CALRT_TRY(model.check_open());
  if (session.device() != model.device())
    return fail(Status::INVALID_HANDLE,
                "submit: the session is of '%s', the model of another device",
                session.device()->spec().c_str());
  if (bindings.model().get() != &model)
    return fail(Status::INVALID_HANDLE, "submit: the bindings are of another model");
  if (bindings.rows() > bindings.max_rows())
    return fail(Status::SHAPE_MISMATCH, "submit: %u logit_rows bound, graph %s has at most %u",
                bindings.rows(), model.graph(bindings.graph()).name, bindings.max_rows());
  return {};
}

}  // namespace

uint64_t stray_completions() { return strays.load(std::memory_order_relaxed); }
uint64_t late_completions() { return late.load(std::memory_order_relaxed); }

void log_job(int32_t level, const char* component, uint64_t job_seq, const char* text) {
  std::vector<uint64_t> requests;
  if (const auto control = JobSupervisor::get().find(job_seq)) requests = control->requests();
  log_record({level, component, text, job_seq, requests});
}

const char* job_state_name(JobState state) {
  switch (state) {
    case JobState::CREATED:
      return "created";
    case JobState::QUEUED:
      return "queued";
    case JobState::RUNNING:
      return "running";
    case JobState::DONE:
      return "done";
    case JobState::FAILED:
      return "failed";
    case JobState::CANCELLED:
      return "cancelled";
    case JobState::LOST:
      return "lost";
  }
  return "?";
}

uint64_t Job::next_job_seq() { return last_job_seq.fetch_add(1) + 1; }

Result<std::shared_ptr<Job>> Job::submit(const std::shared_ptr<Session>& session,
                                         std::shared_ptr<Model> model,
                                         std::shared_ptr<BindingSet> bindings, uint64_t deadline_ns,
                                         CompletionSink* sink) {
  CALRT_TRY(check_submit(*session, *model, *bindings));
  const uint64_t now = monotonic_ns();
  if (deadline_ns <= now)
    return fail(Status::WAIT_TIMEOUT,
                "submit: the deadline passed %.3f s ago; nothing was submitted",
                static_cast<double>(now - deadline_ns) / 1e9);
  const uint64_t job_seq = next_job_seq();
  uint64_t holder = 0;
  if (!bindings->job_seq_.compare_exchange_strong(holder, job_seq))
    return fail(Status::INVALID_STATE,
                "submit: these bindings belong to job %llu, which the driver has not answered yet",
                (unsigned long long)holder);

  cald_job_desc desc{};
  desc.struct_size = sizeof desc;
  desc.graph = bindings->graph();
  desc.model = model->handle();
  desc.n_bindings = static_cast<uint32_t>(bindings->bindings().size());
  desc.bindings = bindings->bindings().data();
  desc.set = bindings->handle();
  desc.job_seq = job_seq;
  desc.deadline_ns = std::min(deadline_ns, now + kHardTimeoutNs);
  desc.on_complete = on_complete;
  desc.user = reinterpret_cast<void*>(static_cast<uintptr_t>(job_seq));

  auto control = std::make_shared<JobControl>(job_seq, desc.deadline_ns, sink,
                                              JobResources{session, model, bindings, JobHandle()});
  JobSupervisor& supervisor = JobSupervisor::get();
  supervisor.add(control);
  const cald_driver_table& table = session->device()->table();
  auto submitted = [&] {
    const std::scoped_lock one_at_a_time(session->submit_mutex_);
    return call_driver_for<cald_job>("submit", [&](cald_job** out, cald_error* detail) {
      return table.submit(session->handle(), &desc, out, detail);
    });
  }();
  if (!submitted.ok()) {
    if (supervisor.take(job_seq) == nullptr) {
      strays.fetch_add(1, std::memory_order_relaxed);
      log_job(LOG_ERROR, table.name, job_seq,
              "the driver completed it and then refused its submit");
    }
    (void)control->abandon();
    return std::move(submitted).error();
  }
  control->submitted(JobHandle({*submitted, &table}));
  supervisor.arm(*control);

  std::shared_ptr<Job> job(new Job);
  job->model_ = std::move(model);
  job->bindings_ = std::move(bindings);
  job->control_ = std::move(control);
  job->job_seq_ = job_seq;
  return job;
}

Job::~Job() {
  if (auto held = control_->orphan()) JobSupervisor::get().dispose(std::move(*held));
}

bool Job::terminal() const { return control_->state() >= JobState::DONE; }

JobState Job::state() const {
  const JobState known = control_->state();
  if (known != JobState::QUEUED) return known;
  int32_t driver_state = 0;  // only the driver knows whether it has begun
  const auto asked = call_driver("job_query", [&](cald_error* detail) {
    return control_->table().job_query(control_->handle(), &driver_state, detail);
  });
  return asked.ok() && driver_state == CALD_JOB_RUNNING ? JobState::RUNNING : control_->state();
}

Result<void> Job::wait(uint64_t deadline_ns) {
  if (!terminal() && model_->device()->inherited()) return model_->device()->check_open();
  if (!control_->wait(deadline_ns))
    return fail(Status::WAIT_TIMEOUT, "job %llu is %s: not done yet, nothing changed",
                (unsigned long long)job_seq_, job_state_name(state()));
  if (control_->state() == JobState::DONE) return {};
  return control_->error();
}

Result<void> Job::cancel() {
  if (terminal()) return {};
  const auto entry = CALRT_DRIVER_ENTRY(control_->table(), job_cancel);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "cancel: driver %s cannot; job %llu ends by itself",
                control_->table().name, (unsigned long long)job_seq_);
  return call_driver("job_cancel",
                     [&](cald_error* detail) { return entry(control_->handle(), detail); });
}

Result<cald_timing> Job::timing() const { return control_->timing(); }

}  // namespace calrt
