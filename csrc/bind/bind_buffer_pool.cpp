// SPDX-License-Identifier: Apache-2.0
// BufferPool: equal buffers, lent one by one.
#include <pybind11/stl.h>

#include <algorithm>

#include "bind/named.h"
#include "bind/objects.h"
#include "bind/views.h"

namespace calrt::bind {
namespace {

constexpr double kLoanTimeoutS = 60;           // of an acquire() that names none
constexpr uint64_t kLoanSliceNs = 50'000'000;  // how long Ctrl-C may go unseen

std::shared_ptr<PyBuffer> acquire_buffer(const PyBufferPool& self,
                                         Arg<"timeout", std::optional<double>> timeout) {
  const uint64_t until = deadline_in("timeout", timeout->value_or(kLoanTimeoutS));
  const std::shared_ptr<BufferPool> pool = self.pool;
  BufferPool::Turn turn(pool->queue());  // one place in the queue for all the slices
  while (true) {
    const uint64_t slice = std::min(until, now_ns() + kLoanSliceNs);
    auto loan = without_gil([&] { return turn.wait(slice); });
    if (loan.ok()) return std::make_shared<PyBuffer>(PyBuffer{*std::move(loan)});
    if (loan.error().code != Status::BUFFER_POOL_EXHAUSTED || slice == until)
      raise(loan.error(), self.context().of(python_object(&self)));
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

py::dict pool_stats(const PyBufferPool& self) {
  const PoolStats now = self.pool->stats();
  py::dict stats;
  stats["capacity"] = now.capacity;
  stats["free"] = now.free;
  stats["leased"] = now.leased;
  stats["in_flight"] = now.in_flight;
  stats["quarantined"] = now.quarantined;
  stats["waiting"] = now.waiting;
  return stats;
}

void close_pool(PyBufferPool& self, Arg<"force", bool> force) {
  if (self.closed) return;
  if (!*force) refuse_views("buffer pool", self.pool->exports());
  self.closed = true;
  without_gil([&] { self.pool->close(); });
}

std::string pool_repr(const PyBufferPool& self) {
  const PoolStats now = self.pool->stats();
  return "<calrt.BufferPool " + std::to_string(now.free) + " of " + std::to_string(now.capacity) +
         " free, " + std::to_string(self.pool->plan().bytes) + " bytes each, " +
         domain_name(self.pool->plan().domain) + (self.closed ? ", closed>" : ">");
}

}  // namespace

void bind_buffer_pool(py::module_& m) {
  py::classh<PyBufferPool>(
      m, "BufferPool", py::is_final(), plain_type(),
      "At most `count` equal buffers of a device, each made when it is first needed and lent again "
      "when its lease is closed and the last view of it and the last job on it have ended. They "
      "are not cleared in between. Close it, or use it in `with`.")
      .def_property_readonly(
          "nbytes", [](const PyBufferPool& self) { return self.pool->plan().bytes; },
          "Size of one buffer in bytes.")
      .def_property_readonly(
          "domain", [](const PyBufferPool& self) { return domain_name(self.pool->plan().domain); },
          "host, host_pinned, device or shared.")
      .def_property_readonly(
          "closed", [](const PyBufferPool& self) { return self.closed; },
          "True once close() was called.")
      .def("acquire", &acquire_buffer, py::arg("timeout") = py::none(),
           "A Buffer that nobody else uses; close() it, or use it in `with`, to give it back.\n\n"
           "Those who wait are served in the order they came. timeout: seconds, None = 60, 0 does "
           "not wait; CapacityError (BUFFER_POOL_EXHAUSTED) then, with the numbers; the driver's "
           "own CapacityError if a first buffer cannot be had. StateError once the pool is closed. "
           "The GIL is free meanwhile and Ctrl-C is seen within 50 ms.")
      .def("stats", &pool_stats,
           "capacity = free + leased + in_flight (a job is bound to it) + quarantined (of a lost "
           "job that the driver has not answered); and waiting.")
      .def("close", &close_pool, py::arg("force") = false,
           "Ends the waits and frees what nobody holds; leases stay valid. Idempotent.\n\n"
           "BufferError while views of its buffers live, and nothing changes; with `force` they "
           "keep the memory for themselves.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def(
          "__exit__",
          [](PyBufferPool& self, const py::object&, const py::object&, const py::object&) {
            close_pool(self, Arg<"force", bool>(true));
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"))
      .def("__repr__", &pool_repr);
}

}  // namespace calrt::bind
