// SPDX-License-Identifier: Apache-2.0
// Job: wait, cancel, await, outputs.
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bind/fast_call.h"
#include "bind/graph_objects.h"
#include "bind/named.h"
#include "engine/completion_fd.h"
#include "engine/graph_call.h"
#include "layout/roles.h"

namespace calrt::bind {
namespace {

constexpr uint64_t kSliceNs = 50'000'000;  // how long Ctrl-C may go unseen

ErrorContext context_of(const PyJob& self) {
  return ErrorContext(*self.job->job()->model(), self.job->job()->job_seq());
}

// A job that is done has nothing to wait for, so the GIL is kept; for any other end wait() may ask
// the driver. wait(0) sees that the lanes know of the end, too.
bool is_done(Job& job) {
  return job.terminal() && job.state() == JobState::DONE && job.wait(0).ok();
}

// Returns `object` once the job is done; raises its own error if it failed.
py::object wait(py::handle object, const Given& given) {
  static const Parameters parameters("wait", std::array{"timeout"}, 0, 1);
  const auto [seconds] = parameters.read<1>(given);
  const std::optional<double> timeout = optional_seconds("timeout", seconds);
  const PyJob& self = *held<PyJob>(object);
  Job& job = *self.job->job();
  if (is_done(job)) return py::reinterpret_borrow<py::object>(object);
  const uint64_t until = timeout ? deadline_in("timeout", *timeout) : CALD_NO_DEADLINE;
  while (true) {
    const uint64_t now = now_ns();
    const uint64_t slice = std::min(until, now + kSliceNs);
    Result<void> answer = without_gil([&] { return job.wait(slice); });
    // The job may have ended between the time-out and this line: then it has an answer of its own.
    if (!answer.ok() && answer.error().code == Status::WAIT_TIMEOUT && job.terminal())
      answer = without_gil([&] { return job.wait(0); });
    if (answer.ok()) return py::reinterpret_borrow<py::object>(object);
    if (answer.error().code != Status::WAIT_TIMEOUT || job.terminal())
      raise(answer.error(), context_of(self));
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (slice == until)
      raise(fail(Status::WAIT_TIMEOUT,
                 "job %llu has not ended after timeout=%g s; nothing changed, wait again",
                 static_cast<unsigned long long>(job.job_seq()), timeout.value_or(0)),
            context_of(self).of(object));
  }
}

const char* state_of(const PyJob& self) {
  Job& job = *self.job->job();
  if (job.terminal()) return job_state_name(job.state());
  return job_state_name(without_gil([&] { return job.state(); }));  // asks the driver
}

void make_outputs(const PyJob& self) {
  Job& job = *self.job->job();
  if (!job.terminal())
    raise(
        fail(Status::INVALID_STATE, "job %llu has not ended: wait() or await it before its outputs",
             static_cast<unsigned long long>(job.job_seq())),
        context_of(self));
  if (!is_done(job)) unwrap(without_gil([&] { return job.wait(0); }), context_of(self));
  const std::shared_ptr<BindingSet>& set = job.bindings();
  const cald_graph& graph = job.model()->graph(set->graph());
  py::dict tensors;
  for (uint32_t i = 0; i < graph.n_outputs; ++i) {
    const cald_io& io = *graph.outputs[i];
    const uint64_t rows = io.role == CALD_ROLE_LOGITS ? self.job->output_rows() : 0;
    tensors[role_name(io.role)] = tensor_of(set, io, rows, false);
  }
  self.outputs = std::move(tensors);
}

// A dict of the caller's own; the tensors in it are made once, so that they know their views.
py::object outputs(py::handle object) {
  const PyJob& self = *held<PyJob>(object);
  if (!self.outputs) make_outputs(self);
  auto copy = py::reinterpret_steal<py::object>(PyDict_Copy(self.outputs.ptr()));
  if (!copy) throw py::error_already_set();
  return copy;
}

// In whatever state.
py::object has_ended(py::handle object) {
  Job& job = *held<PyJob>(object)->job->job();
  return py::bool_(is_done(job) || job.terminal());
}

// None where the device did not measure: 0 in the driver's answer.
py::dict timing(const PyJob& self) {
  const auto asked = without_gil([&] { return self.job->job()->timing(); });
  if (!asked.ok() && asked.error().code != Status::UNSUPPORTED)
    raise(asked.error(), context_of(self));
  const cald_timing times = asked.ok() ? *asked : cald_timing{};
  py::dict out;
  const auto set = [&](const char* name, uint64_t ns) {
    out[name] = ns != 0 ? py::object(py::int_(ns)) : py::object(py::none());
  };
  set("submitted_ns", times.submitted_ns);
  set("queue_ns", times.queue_ns);
  set("h2d_ns", times.h2d_ns);
  set("infer_ns", times.infer_ns);
  set("d2h_ns", times.d2h_ns);
  return out;
}

// "<calrt.Job 12 of 'decode_b4': done>"
std::string describe_job(const PyJob& self) {
  Job& job = *self.job->job();
  return "<calrt.Job " + std::to_string(job.job_seq()) + " of '" +
         job.model()->graph(job.bindings()->graph()).name + "': " + state_of(self) + ">";
}

// Virtual time moves by waiting, and an event loop that waits for a descriptor moves nothing.
void end_on_virtual_time(Job& job) {
  if (job.terminal()) return;
  const auto session = job.model()->device()->session(job.model()->session_index());
  if (session.ok() && (*session)->virtual_clock())
    without_gil([&] { (void)job.wait(CALD_NO_DEADLINE).ok(); });  // the await asks how it ended
}

// A function of calrt's Python part, looked up once.
template <class Name>  // one static per name
const py::object& python_function(const char* module, Name name) {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<py::object> storage;
  return storage
      .call_once_and_store_result(
          [&] { return py::object(py::module_::import(module).attr(name())); })
      .get_stored();
}

// A future that ended otherwise, by a cancellation, stays as it is.
void give_result(py::handle future) {
  static const py::handle done(PyUnicode_InternFromString("done"));
  static const py::handle set_result(PyUnicode_InternFromString("set_result"));
  const auto ended =
      py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(future.ptr(), done.ptr()));
  if (!ended) throw py::error_already_set();
  if (ended.ptr() == Py_True) return;
  if (!py::reinterpret_steal<py::object>(
          PyObject_CallMethodOneArg(future.ptr(), set_result.ptr(), Py_None)))
    throw py::error_already_set();
}

// In one call, since it runs between a job's end and the line after `await`.
py::object resolve(py::handle object, const Given& given) {
  static const Parameters parameters("resolve", std::array{"waiting"}, 1, 1);
  const auto [waiting] = parameters.read<1>(given);
  auto* self = held<engine::CompletionFd>(object);
  if (self == nullptr) {
    PyErr_SetString(PyExc_TypeError, "resolve() is a method of Completions");
    throw py::error_already_set();
  }
  if (!PyDict_Check(waiting.ptr())) refuse_type("waiting", waiting, ": a dict is due");
  std::optional<py::error_already_set> failed;  // the others get their results all the same
  for (const uint64_t number : self->drain()) {
    const py::int_ tag(number);
    const auto future =
        py::reinterpret_borrow<py::object>(PyDict_GetItemWithError(waiting.ptr(), tag.ptr()));
    if (!future) continue;
    if (PyDict_DelItem(waiting.ptr(), tag.ptr()) != 0) throw py::error_already_set();
    try {
      give_result(future);
    } catch (py::error_already_set& error) {
      if (!failed) failed.emplace(error);
    }
  }
  if (failed) throw py::error_already_set(*failed);
  return py::none();
}

void bind_completions(py::module_& m) {
  using engine::CompletionFd;
  py::classh<CompletionFd> completions(
      m, "Completions", py::is_final(), plain_type(),
      "A descriptor that an event loop can watch: readable when watched jobs have "
      "ended. One per loop.");
  completions.def(py::init([] { return unwrap(CompletionFd::make()); }))
      .def("fileno", &CompletionFd::fd, "The descriptor. Owned by this object.")
      .def("drain", &CompletionFd::drain,
           "The tag of each watched job that ended since the last call, oldest first.")
      .def(
          "watch",
          [](const std::shared_ptr<CompletionFd>& self, Arg<"job", Ref<PyJob>> job,
             Arg<"tag", uint64_t> tag) { (*job)->job->notify(self, tag); },
          py::arg("job"), py::arg("tag"), "Posts `tag` here when the job ends, at once if it has.")
      .def(
          "post",
          [](CompletionFd& self, Arg<"tag", uint64_t> tag) {
            self.expect();
            self.post(tag);
          },
          py::arg("tag"), "Posts `tag` here. From any thread.");
  add_method<&resolve>(completions, "resolve",
                       "resolve($self, /, waiting)\n--\n\n"
                       "As drain(), and takes the future of each tag out of `waiting`, a dict, and "
                       "gives it the result None unless it is done. A tag that is not there is "
                       "passed over.");
}

}  // namespace

void bind_job(py::module_& m) {
  py::class_<PyJob> job(m, "Job", py::is_final(), plain_type(),
                        "A submitted graph run. It owns its buffers until it has ended.\n\n"
                        "Dropping a job neither waits for it nor cancels it.");
  job.def_property_readonly(
         "job_seq", [](const PyJob& self) { return self.job->job()->job_seq(); },
         "The job's number, rising and unique in this process.")
      .def_property_readonly("state", &state_of,
                             "created, queued, running, done, failed, cancelled or lost.")
      .def_property_readonly(
          "timing", &timing,
          "Where the time went, in ns: {'submitted_ns': on CLOCK_MONOTONIC, and the durations "
          "'queue_ns': submit to start, 'h2d_ns': inputs to the device, 'infer_ns', 'd2h_ns': "
          "outputs to the host}. As the device measured; None where it did not.\n\nStateError "
          "before the end and for a lost job.")
      .def_property_readonly(
          "deadline_ns", [](const PyJob& self) { return self.job->deadline_ns(); },
          "The deadline that submit() was given, in ns of CLOCK_MONOTONIC. The job counts as lost "
          "then, and 600 s after its submit at the latest.")
      .def(
          "cancel",
          [](const PyJob& self) {
            unwrap(without_gil([&] { return self.job->job()->cancel(); }), context_of(self));
          },
          "Asks the device to drop the job; does not wait for its end. Best effort: it still ends "
          "in exactly one state, perhaps done.\n\n"
          "UnsupportedError if the driver cannot, unless the job has ended.")
      .def(
          "__await__",
          [](const py::object& self) {
            end_on_virtual_time(*py::cast<const PyJob&>(self).job->job());
            return python_function("calrt._await", [] { return "wait_for_job"; })(self);
          },
          "Waits in the running event loop; cancelling the await requests cancel(). On a device of "
          "virtual time, which waiting moves on, it ends at once.")
      .def(
          "add_done_callback",
          [](const py::object& self, const py::object& fn, const py::object& loop) {
            python_function("calrt._callbacks", [] { return "add_done_callback"; })(self, fn, loop);
          },
          py::arg("fn"), py::kw_only(), py::arg("loop") = py::none(),
          "Calls fn(job) exactly once, when the job has ended in whatever state, also if it has "
          "already.\n\nOn a thread of calrt's own, one for all callbacks; with `loop`, an asyncio "
          "event loop, on that loop. An exception of fn goes to the logger 'calrt.callbacks' (to "
          "the loop's exception handler with `loop`). fn may use any job, wait for others too; "
          "while it runs, other callbacks wait. Until it was called a callback holds the job and "
          "its "
          "outputs; 128 may wait (on each loop, and on the thread), one more is a CapacityError. "
          "What has not been called when Python ends is not "
          "called. On a device of virtual time a callback moves no time: somebody has to wait for "
          "a job, or await one, for this one to end.")
      .def("__repr__", &describe_job);
  add_getter<&has_ended>(job, "done", "True once the job has ended, in whatever state.");
  add_getter<&outputs>(
      job, "outputs",
      "Outputs by role, as Tensors valid as long as they or a view of them live; logits is [rows, "
      "vocabulary].\n\nStateError before the end; the job's own error if it failed.");
  add_method<&wait>(
      job, "wait",
      "wait($self, /, timeout=None)\n--\n\n"
      "Waits until the job has ended and returns it; raises the job's own error if it failed.\n\n"
      "timeout: seconds; WaitTimeoutError then, and nothing changed. None waits until the job's "
      "deadline at the latest. The GIL is free meanwhile and Ctrl-C is seen within 50 ms.");
  bind_completions(m);
}

}  // namespace calrt::bind
