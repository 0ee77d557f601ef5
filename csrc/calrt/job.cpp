// SPDX-License-Identifier: Apache-2.0
#include "calrt/job.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "calrt/driver_host.h"
#include "calrt/job_start.h"

namespace calrt {
namespace {

std::atomic<uint64_t> last_job_seq{0}, strays{0}, late{0};

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

BoundBytes bound_bytes(const cald_graph& graph, const std::vector<cald_binding>& bindings) {
  BoundBytes bound;
  for (const cald_binding& binding : bindings) {
    const bool out = std::any_of(graph.outputs, graph.outputs + graph.n_outputs,
                                 [&](const cald_io* io) { return io->role == binding.role; });
    (out ? bound.out : bound.in) += binding.bytes;
  }
  return bound;
}

// What a fork's child drops of its parent's: never destroyed, since locks on the way may be held by
// threads that the child does not have.
struct Inherited {
  RankedMutex mutex{LockRank::LEAF, "inherited jobs"};
  std::vector<std::shared_ptr<JobControl>> kept;
};

}  // namespace

void on_job_complete(void* user, const cald_completion* completion) {
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

void refuse_job(JobControl& control) {
  if (JobSupervisor::get().take(control.job_seq()) == nullptr) {
    strays.fetch_add(1, std::memory_order_relaxed);
    log_job(LOG_ERROR, control.table().name, control.job_seq(),
            "the driver completed it and then refused its submit");
  }
  control.abandon();
}

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

Result<uint64_t> Job::check_deadline(const Session& session, uint64_t deadline_ns) {
  const uint64_t now = session.now_ns();
  if (deadline_ns > now) return now;
  return fail(Status::WAIT_TIMEOUT, "submit: the deadline passed %.3f s ago; nothing was submitted",
              static_cast<double>(now - deadline_ns) / 1e9);
}

Result<std::shared_ptr<Job>> Job::submit(const std::shared_ptr<Session>& session,
                                         std::shared_ptr<Model> model,
                                         std::shared_ptr<BindingSet> bindings, uint64_t deadline_ns,
                                         CompletionSink* sink, uint64_t job_seq) {
  CALRT_TRY(check_submit(*session, *model, *bindings));
  CALRT_TRY_ASSIGN(const uint64_t now, check_deadline(*session, deadline_ns));
  const JobTerms terms{job_seq != 0 ? job_seq : next_job_seq(),
                       now,
                       std::min(deadline_ns, now + kHardTimeoutNs),
                       bound_bytes(model->graph(bindings->graph()), bindings->bindings()),
                       "submit",
                       sink};
  uint64_t holder = 0;
  if (!bindings->job_seq_.compare_exchange_strong(holder, terms.job_seq))
    return fail(Status::INVALID_STATE,
                "submit: these bindings belong to job %llu, which the driver has not answered yet",
                (unsigned long long)(holder & ~kLostUse));

  JobResources resources{session, std::move(model), std::move(bindings),
                         nullptr, nullptr,          JobHandle()};
  auto desc = described<cald_job_desc>(terms, resources);
  desc.graph = resources.bindings->graph();
  desc.n_bindings = static_cast<uint32_t>(resources.bindings->bindings().size());
  desc.bindings = resources.bindings->bindings().data();
  desc.set = resources.bindings->handle();
  const cald_driver_table& table = session->device()->table();
  return start(terms, std::move(resources), [&](cald_job** out, cald_error* detail) {
    return table.submit(session->handle(), &desc, out, detail);
  });
}

Job::~Job() {
  if (control_ == nullptr) return;  // was never submitted
  if (control_->inherited()) {
    Inherited& inherited = per_process<Inherited>();
    const std::scoped_lock lock(inherited.mutex);
    inherited.kept.push_back(std::move(control_));
  } else if (auto held = control_->orphan()) {
    JobSupervisor::get().dispose(std::move(*held));
  }
}

uint64_t Job::job_seq() const { return control_->job_seq(); }
bool Job::terminal() const { return control_->state() >= JobState::DONE; }
const std::shared_ptr<BindingSet>& Job::bindings() const { return control_->resources().bindings; }
const std::shared_ptr<Model>& Job::model() const { return control_->resources().model; }

Result<void> Job::check_process(const char* what) const {
  if (!control_->inherited()) return {};
  return fail(Status::INVALID_STATE,
              "%s: job %llu was submitted before this process was forked: it is the parent's", what,
              (unsigned long long)job_seq());
}

JobState Job::state() const {
  const JobState known = control_->state();
  if (known != JobState::QUEUED || control_->inherited()) return known;
  int32_t driver_state = 0;  // only the driver knows whether it has begun
  const auto asked = call_driver("job_query", [&](cald_error* detail) {
    return control_->table().job_query(control_->handle(), &driver_state, detail);
  });
  return asked.ok() && driver_state == CALD_JOB_RUNNING ? JobState::RUNNING : control_->state();
}

Result<void> Job::wait(uint64_t deadline_ns) {
  CALRT_TRY(check_process("wait"));
  CALRT_TRY_ASSIGN(const bool ended, control_->wait(deadline_ns));
  if (!ended)
    return fail(Status::WAIT_TIMEOUT, "job %llu is %s: not done yet, nothing changed",
                (unsigned long long)job_seq(), job_state_name(state()));
  if (control_->state() == JobState::DONE) return {};
  return control_->error();
}

Result<void> Job::cancel() {
  CALRT_TRY(check_process("cancel"));
  if (terminal()) return {};
  CALRT_TRY(model()->check_granted("cancel"));
  const auto entry = CALRT_DRIVER_ENTRY(control_->table(), job_cancel);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "cancel: driver %s cannot; job %llu ends by itself",
                control_->table().name, (unsigned long long)job_seq());
  auto asked = call_driver("job_cancel",
                           [&](cald_error* detail) { return entry(control_->handle(), detail); });
  if (SessionPump* pump = control_->resources().session->pump()) pump->kick();
  return asked;
}

Result<cald_timing> Job::timing() const {
  CALRT_TRY(check_process("timing"));
  return control_->timing();
}

}  // namespace calrt
