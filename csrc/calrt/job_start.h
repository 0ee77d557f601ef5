// SPDX-License-Identifier: Apache-2.0
// From a filled description to a running job: the one way for graph runs and KV operations.
// Internal to csrc/calrt.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "calrt/job_control.h"
#include "calrt/session_pump.h"

namespace calrt {

// What every description has, whatever it describes.
template <class Desc>
Desc described(const JobTerms& terms, const JobResources& resources) {
  Desc desc{};
  desc.struct_size = sizeof desc;
  desc.model = resources.model->handle();
  desc.job_seq = terms.job_seq;
  desc.deadline_ns = terms.deadline_ns;
  // A device that is waited for does not call back: a second way to the end would be a race.
  const SessionPump* pump = resources.session->pump();
  if (pump == nullptr || !pump->waits()) {
    desc.on_complete = on_job_complete;
    desc.user = job_tag(terms.job_seq);
  }
  return desc;
}

// Nothing may fail between the driver's OK and the Job, so all memory is had before the call.
template <class Call>
Result<std::shared_ptr<Job>> Job::start(const JobTerms& terms, JobResources resources,
                                        Call&& call) {
  std::shared_ptr<Job> job(new Job);
  const cald_driver_table& table = resources.session->device()->table();
  Session& session = *resources.session;
  auto control = std::make_shared<JobControl>(terms, std::move(resources));
  JobSupervisor::get().add(control);
  auto submitted = [&] {
    const std::scoped_lock one_at_a_time(session.serial());
    return call_driver_for<cald_job>(terms.entry, std::forward<Call>(call));
  }();
  if (!submitted.ok()) {
    session.device()->heed(submitted.error().code);
    refuse_job(*control);
    return std::move(submitted).error();
  }
  control->submitted(JobHandle({*submitted, &table}));
  if (SessionPump* pump = session.pump()) pump->watch(control);
  job->control_ = std::move(control);
  return job;
}

}  // namespace calrt
