// SPDX-License-Identifier: Apache-2.0
// LaneWaiter and CancelToken: what an awaited reserve is made of.
#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {

void bind_kv_waiting(py::module_& m) {
  py::classh<engine::CancelToken>(
      m, "CancelToken", py::is_final(), plain_type(),
      "Ends every wait for a lane that it was given to, and those that come later, with "
      "CANCELLED.\n\nThread-safe. A lane that was granted and not handed out yet goes to the next.")
      .def(py::init([] { return std::make_shared<engine::CancelToken>(); }))
      .def(
          "cancel", [](engine::CancelToken& self) { without_gil([&] { self.cancel(); }); },
          "Idempotent.")
      .def_property_readonly(
          "cancelled",
          [](const engine::CancelToken& self) {
            return without_gil([&] { return self.cancelled(); });
          },
          "True once cancel() was called.");

  py::classh<PyWaiter>(m, "LaneWaiter", py::is_final(), plain_type(),
                       "A place in the queue for a lane, with exactly one outcome.")
      .def(
          "poll",
          [](const PyWaiter& self) { return without_gil([&] { return self.waiter->poll(); }); },
          "True once take() has an answer. To be called at 10 Hz: a lane may come free by itself.")
      .def(
          "take",
          [](const PyWaiter& self) {
            Model& model = *self.runner->model();
            auto lane = without_gil([&]() -> Result<kv::LaneRef> {
              CALRT_TRY_ASSIGN(kv::Reservation reserved, self.waiter->take());
              return lane_of(std::move(reserved), self.prefixes, model);
            });
            if (PyErr_Occurred() != nullptr) throw py::error_already_set();
            return lane_object(self.runner, unwrap(std::move(lane), ErrorContext(model)));
          },
          "The lane, or the wait's error; once. WaitTimeoutError while it is open. Waits for data "
          "moves if it `moves`.")
      .def_property_readonly(
          "moves", [](const PyWaiter& self) { return self.prefixes != nullptr; },
          "A prompt was given: take() may have cells to move.")
      .def(
          "cancel", [](const PyWaiter& self) { without_gil([&] { self.waiter->cancel(); }); },
          "Gives the place up, or the lane that was granted and not taken.")
      .def(
          "notify",
          [](const PyWaiter& self, Arg<"completions", std::shared_ptr<engine::CompletionFd>> fd,
             Arg<"tag", uint64_t> tag) { without_gil([&] { self.waiter->notify(*fd, tag); }); },
          py::arg("completions"), py::arg("tag"),
          "Posts `tag` there once poll() would be true, at once if it is.");
}

}  // namespace calrt::bind
