// SPDX-License-Identifier: Apache-2.0
// Job: wait, cancel, await, outputs.
#include <pybind11/stl.h>

#include <algorithm>

#include "bind/arguments.h"
#include "bind/graph_objects.h"
#include "engine/completion_fd.h"
#include "engine/graph_call.h"
#include "layout/roles.h"

namespace calrt::bind {
namespace {

constexpr uint64_t kSliceNs = 50'000'000;  // how long Ctrl-C may go unseen

ErrorContext context_of(const PyJob& self) {
  return {self.job->job()->model()->device()->spec(), self.job->job()->job_seq()};
}

// Returns once the job is done; raises its own error if it failed.
void wait(const PyJob& self, const std::optional<double>& timeout) {
  const uint64_t until = timeout ? deadline_in("timeout", *timeout) : CALD_NO_DEADLINE;
  Job& job = *self.job->job();
  while (true) {
    const uint64_t now = now_ns();
    const uint64_t slice = std::min(until, now + kSliceNs);
    Result<void> answer = without_gil([&] { return job.wait(slice); });
    // The job may have ended between the time-out and this line: then it has an answer of its own.
    if (!answer.ok() && answer.error().code == Status::WAIT_TIMEOUT && job.terminal())
      answer = without_gil([&] { return job.wait(0); });
    if (answer.ok()) return;
    if (answer.error().code != Status::WAIT_TIMEOUT || job.terminal())
      raise(answer.error(), context_of(self));
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (slice == until)
      raise(fail(Status::WAIT_TIMEOUT,
                 "job %llu is %s after timeout=%g s; nothing changed, wait again",
                 static_cast<unsigned long long>(job.job_seq()), job_state_name(job.state()),
                 timeout.value_or(0)),
            context_of(self));
  }
}

py::dict outputs(const PyJob& self) {
  Job& job = *self.job->job();
  if (!job.terminal())
    raise(fail(Status::INVALID_STATE, "job %llu is %s: wait() or await it before its outputs",
               static_cast<unsigned long long>(job.job_seq()), job_state_name(job.state())),
          context_of(self));
  unwrap(without_gil([&] { return job.wait(0); }), context_of(self));
  const std::shared_ptr<BindingSet>& set = job.bindings();
  const cald_graph& graph = job.model()->graph(set->graph());
  py::dict tensors;
  for (uint32_t i = 0; i < graph.n_outputs; ++i) {
    const cald_io& io = *graph.outputs[i];
    const uint64_t rows = io.role == CALD_ROLE_LOGITS ? self.job->output_rows() : 0;
    tensors[role_name(io.role)] = tensor_of(set, io, rows, false);
  }
  return tensors;
}

py::dict timing(const PyJob& self) {
  const cald_timing times =
      unwrap(without_gil([&] { return self.job->job()->timing(); }), context_of(self));
  py::dict out;
  out["submitted_ns"] = times.submitted_ns;
  out["queue_ns"] = times.queue_ns;
  out["h2d_ns"] = times.h2d_ns;
  out["infer_ns"] = times.infer_ns;
  out["d2h_ns"] = times.d2h_ns;
  return out;
}

void bind_completions(py::module_& m) {
  using engine::CompletionFd;
  py::classh<CompletionFd>(
      m, "Completions", py::is_final(), plain_type(),
      "A descriptor that an event loop can watch: readable when watched jobs have "
      "ended. One per loop.")
      .def(py::init([] { return unwrap(CompletionFd::make()); }))
      .def("fileno", &CompletionFd::fd, "The descriptor. Owned by this object.")
      .def("drain", &CompletionFd::drain,
           "job_seq of each watched job that ended since the last call.")
      .def(
          "watch",
          [](const std::shared_ptr<CompletionFd>& self, const PyJob& job) {
            job.job->notify(self);
          },
          py::arg("job"), "Posts the job's job_seq here when it ends, at once if it has.");
}

}  // namespace

void bind_job(py::module_& m) {
  py::classh<PyJob>(m, "Job", py::is_final(), plain_type(),
                    "A submitted graph run. It owns its buffers until it has ended.\n\n"
                    "Dropping a job neither waits for it nor cancels it.")
      .def_property_readonly(
          "job_seq", [](const PyJob& self) { return self.job->job()->job_seq(); },
          "The job's number, rising and unique in this process.")
      .def_property_readonly(
          "state", [](const PyJob& self) { return job_state_name(self.job->job()->state()); },
          "created, queued, running, done, failed, cancelled or lost.")
      .def_property_readonly(
          "done", [](const PyJob& self) { return self.job->job()->terminal(); },
          "True once the job has ended, in whatever state.")
      .def_property_readonly(
          "outputs", &outputs,
          "Outputs by role, as Tensors valid as long as they or a view of them live; "
          "logits is [rows, vocabulary].\n\nStateError before the end; the job's own "
          "error if it failed.")
      .def_property_readonly(
          "timing", &timing,
          "submitted_ns (CLOCK_MONOTONIC) and the durations queue_ns, h2d_ns, infer_ns, "
          "d2h_ns; 0 where not measured.")
      .def_property_readonly(
          "deadline_ns", [](const PyJob& self) { return self.job->deadline_ns(); },
          "When the job counts as lost (CLOCK_MONOTONIC, ns).")
      .def(
          "wait",
          [](const py::object& self, const std::optional<double>& timeout) {
            wait(py::cast<const PyJob&>(self), timeout);
            return self;
          },
          py::arg("timeout") = py::none(),
          "Waits until the job has ended and returns it; raises the job's own error if it "
          "failed.\n\n"
          "timeout: seconds; WaitTimeoutError then, and nothing changed. None waits until the "
          "job's "
          "deadline at the latest. The GIL is free meanwhile and Ctrl-C is seen within 50 ms.")
      .def(
          "cancel",
          [](const PyJob& self) {
            unwrap(without_gil([&] { return self.job->job()->cancel(); }), context_of(self));
          },
          "Asks the device to drop the job. Best effort: it still ends in exactly one state.")
      .def(
          "__await__",
          [](const py::object& self) {
            return py::module_::import("calrt._await")
                .attr("wait_for_job")(self)
                .attr("__await__")();
          },
          "Waits in the running event loop; cancelling the await requests cancel().");
  bind_completions(m);
}

}  // namespace calrt::bind
