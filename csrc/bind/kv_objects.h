// SPDX-License-Identifier: Apache-2.0
// What stands behind Kv, LaneWaiter, CancelToken, LaneTable, LaneRef and Reservation. Locks of kv
// and engine are taken without the GIL: a thread that waits for one never holds up Python.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind/objects.h"
#include "kv/lanes.h"

namespace calrt::bind {

// Asked on a waiting thread: the device was closed, or Python has a signal to handle, whose error
// stays set for the caller to raise. `model` is a const Model*.
bool interrupted(void* model);

struct PyKv {  // "Kv"
  std::shared_ptr<engine::GraphRunner> runner;
  ~PyKv() { drop_without_gil(runner); }
  kv::LaneTable& table() const { return *runner->queue()->table(); }
  ErrorContext context() const { return ErrorContext(*runner->model()); }
  // Raises what keeps the model from serving. With the GIL held.
  void check_alive() const;
  // Books that know of a device that was lost, whoever was told. With the GIL held.
  kv::LaneTable& table_now() const;
  // The lane that a lease of this model holds; the error names `field`.
  Result<kv::LaneRef> ref(const char* field, const PyLane& lane) const;
  // Token ids of the model's vocabulary.
  std::vector<int32_t> tokens(const char* field, const py::handle& value) const;
  // A data move of at most `timeout` seconds, of None: kMoveS.
  engine::MoveCall move_call(const std::optional<double>& timeout) const;
};

inline constexpr double kMoveS = 600;

// `call`'s answer or its Python exception. Without the GIL, on an open model; what an interrupted
// wait was interrupted by goes first.
template <class Call>
auto run_on(const PyKv& self, Call&& call) {
  self.check_alive();
  auto answer = without_gil([&]() -> decltype(call()) {
    auto got = call();
    if (!got.ok() && got.error().code == Status::CANCELLED)
      CALRT_TRY(self.runner->model()->check_alive());
    return got;
  });
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  return unwrap(std::move(answer), self.context());
}

// The same with the lane of `lease`.
template <class Call>
auto run_on(const PyKv& self, const char* field, const PyLane& lease, Call&& call) {
  return run_on(self, [&]() -> decltype(call(kv::LaneRef{})) {
    CALRT_TRY_ASSIGN(const kv::LaneRef lane, self.ref(field, lease));
    return call(lane);
  });
}

// The lane of a reservation, committed; with what it found of a prompt, if it looked for one. Then
// it waits for data moves, of at most kMoveS. Without the GIL.
Result<kv::LaneRef> lane_of(kv::Reservation reserved,
                            const std::shared_ptr<engine::PrefixCache>& prefixes, Model& model);

// A committed lane as Python's.
std::shared_ptr<PyLane> lane_object(const std::shared_ptr<engine::GraphRunner>& runner,
                                    const kv::LaneRef& ref);

struct PyWaiter {  // "LaneWaiter"
  std::shared_ptr<engine::GraphRunner> runner;
  std::shared_ptr<engine::LaneWaiter> waiter;
  std::shared_ptr<engine::PrefixCache> prefixes;  // if it waits with a prompt
  ~PyWaiter() {
    drop_without_gil(waiter);
    drop_without_gil(prefixes);
    drop_without_gil(runner);
  }
};

struct PyTable {  // "LaneTable"
  std::shared_ptr<kv::LaneTable> table;
  kv::Compat compat = kv::Compat::STRICT;
  uint32_t every = 0;  // tokens between two keys; 0: no prefixes
  // The keys of a prompt, made outside of any lock; INVALID_STATE naming `field` without prefixes.
  Result<kv::Prefix> prefix(const char* field, std::vector<int32_t> tokens, std::string salt) const;
};

struct PyReservation {  // "Reservation"
  kv::Reservation reservation;
  ~PyReservation();
};

// Plain data as dicts and tuples; calrt.kv gives them names.
py::dict describe_lane(const kv::LaneSnapshot& lane);
py::dict describe_capacity(const kv::Capacity& capacity);
py::list describe_runs(const kv::Sequence& sequence);
py::dict describe_prefix_counters(const kv::LaneTable& table);
py::list drain_prefix_events(kv::LaneTable& table);
// INVALID_ARGUMENT: `only` without `prefer`; OUT_OF_RANGE: `prefer` is no lane.
uint32_t preferred_lane(const kv::LaneTable& table, const std::optional<uint32_t>& prefer,
                        bool only);
// OUT_OF_RANGE naming `lane`.
void check_lane_number(const kv::LaneTable& table, uint32_t lane);

void bind_kv_sequences(py::classh<PyKv>& kv);
void bind_kv_state(py::classh<PyKv>& kv);
void bind_kv_prefixes(py::classh<PyKv>& kv);
void bind_kv_waiting(py::module_& m);
void bind_lane_table(py::module_& m);
void bind_lane_table_jobs(py::classh<PyTable>& table);
void bind_lane_table_sequences(py::classh<PyTable>& table);

}  // namespace calrt::bind
