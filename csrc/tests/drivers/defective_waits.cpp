// SPDX-License-Identifier: Apache-2.0
// Defects of looking at jobs, waiting for them, cancelling them, and of polling.
#include <algorithm>
#include <map>
#include <memory>

#include "drivers/mock/session.h"
#include "tests/drivers/defective_hook.h"

namespace calrt::defective {
namespace {

struct Known {
  Hook* hook = nullptr;
  uint32_t looks = 0;
  bool seen_ended = false;
};
std::map<const cald_job*, Known> jobs;
std::vector<std::shared_ptr<mock::Job>> submitted;
bool is_closing = false;
uint32_t timings = 0, polls = 0;

int32_t state_of(const mock::Job& job) {
  const std::scoped_lock lock(job.bell->mutex);
  return job.state;
}

cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  cald_error mute{};
  mute.struct_size = sizeof mute;
  if (is("failed_without_why") && err != nullptr) {
    const cald_status status = mock().job_query(job, state, &mute);
    err->code = CALD_OK;
    err->message[0] = '\0';
    return status;
  }
  const cald_status status = mock().job_query(job, state, err);
  Known& known = jobs[job];
  if (is("fails_after_writing") && known.hook != nullptr && known.hook->end.status != CALD_OK)
    (void)refuse(err, known.hook->end.status, "a value is out of its range");
  if (*state < CALD_JOB_DONE) return status;
  if (is("completion_after_end")) {
    if (known.seen_ended) tell_now(known.hook);
    known.seen_ended = true;
  }
  if (is("state_goes_back") && ++known.looks % 4 == 3) *state = CALD_JOB_RUNNING;
  return status;
}

cald_status job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  if (is("wait_gives_up") && deadline_ns > job->job->device->driver->now_ns() &&
      state_of(*job->job) < CALD_JOB_DONE)
    return refuse(err, CALD_WAIT_TIMEOUT, "not yet");
  const cald_status status = mock().job_wait(job, deadline_ns, err);
  if (status == CALD_WAIT_TIMEOUT && is("wait_is_ok")) return CALD_OK;
  if (status == CALD_WAIT_TIMEOUT && is("wait_cancels")) (void)mock().job_cancel(job, nullptr);
  return status;
}

cald_status job_cancel(cald_job* job, cald_error* err) {
  if (is("cancel_of_ended") && state_of(*job->job) >= CALD_JOB_DONE)
    return refuse(err, CALD_INVALID_STATE, "the job has ended");
  if (is("cancels_nothing")) return CALD_OK;
  if (is("cancels_neighbour"))
    for (const auto& [other, known] : jobs)
      if (other->job != job->job && state_of(*other->job) < CALD_JOB_DONE) {
        (void)mock().job_cancel(const_cast<cald_job*>(other), nullptr);
        break;
      }
  return mock().job_cancel(job, err);
}

cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  const cald_status status = mock().job_timing(job, out, err);
  if (is("timing_too_long")) out->infer_ns = out->infer_ns * 2 + 1'000'000'000;
  if (is("timing_grows")) out->infer_ns += ++timings;
  return status;
}

void job_destroy(cald_job* job) {
  jobs.erase(job);
  mock().job_destroy(job);
}

void session_close(cald_session* session) {
  is_closing = true;
  mock().session_close(session);
  is_closing = false;
  if (is("tells_after_close") && session != nullptr) tell_last_again();
}

cald_status poll(cald_session* session, uint64_t now_ns, uint64_t* next_ns, cald_error* err) {
  if (is("ends_too_early")) now_ns += 10'000;
  const cald_status status = mock().poll(session, now_ns, next_ns, err);
  if (status != CALD_OK) return status;
  const bool idle = *next_ns == CALD_NO_DEADLINE;
  if (is("idle_wants_polls") && idle) *next_ns = now_ns + 1000;
  if (is("asks_for_no_time")) *next_ns = CALD_NO_DEADLINE;
  if (is("time_drifts") && !idle) *next_ns += ++polls;
  return status;
}

}  // namespace

void note_job(cald_job* job, Hook* hook) {
  jobs[job] = {hook};
  std::erase_if(submitted, [](const auto& one) { return state_of(*one) >= CALD_JOB_DONE; });
  submitted.push_back(job->job);
}

bool closing() { return is_closing; }

uint32_t unended(cald_session* session) {
  return static_cast<uint32_t>(
      std::count_if(submitted.begin(), submitted.end(), [session](const auto& job) {
        return job->session == session && state_of(*job) < CALD_JOB_DONE;
      }));
}

uint64_t now_of(cald_session* session) {
  const cald_device& device = *session->device();
  return device.settings.virtual_clock ? device.virtual_ns.load() : device.driver->now_ns();
}

void wrap_waits(cald_driver_table* table) {
  table->job_query = job_query;
  table->job_wait = job_wait;
  table->job_cancel = job_cancel;
  table->job_timing = job_timing;
  table->job_destroy = job_destroy;
  table->session_close = session_close;
  table->poll = poll;
}

}  // namespace calrt::defective
