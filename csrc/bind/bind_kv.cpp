// SPDX-License-Identifier: Apache-2.0
// Kv and Lane: reservations of a model's lanes, and what is known of them.
#include <pybind11/stl.h>

#include "bind/fast_call.h"
#include "bind/kv_objects.h"
#include "bind/named.h"

namespace calrt::bind {
namespace {

constexpr double kReserveS = 60;  // wait of reserve() without a timeout

// A prompt whose beginning may be there already, as a reservation looks for it; or none.
struct Wanted {
  std::shared_ptr<engine::PrefixCache> prefixes;
  std::shared_ptr<const kv::Prefix> prompt;
};

using Prompt = std::optional<std::vector<int32_t>>;

Prompt prompt_of(const PyKv& self, const py::handle& prompt) {
  if (prompt.is_none()) return std::nullopt;
  return self.tokens("prompt", prompt);
}

Result<Wanted> wanted_of(const PyKv& self, Prompt prompt, std::string salt) {
  Wanted wanted;
  if (!prompt) return wanted;
  CALRT_TRY_ASSIGN(wanted.prefixes, self.runner->prefixes());
  CALRT_TRY_ASSIGN(kv::Prefix prefix, wanted.prefixes->prefix(*std::move(prompt), std::move(salt)));
  wanted.prompt = std::make_shared<const kv::Prefix>(std::move(prefix));
  return wanted;
}

std::shared_ptr<PyLane> reserve_lane(
    const PyKv& self, Arg<"tokens", uint32_t> tokens, Arg<"timeout", std::optional<double>> timeout,
    Arg<"cancel", std::optional<std::shared_ptr<engine::CancelToken>>> token,
    const py::object& prompt, Arg<"salt", std::string> salt) {
  const uint64_t until = deadline_in("timeout", timeout->value_or(kReserveS));
  engine::CancelToken* cancel = *token ? (*token)->get() : nullptr;
  Prompt ids = prompt_of(self, prompt);
  Model& model = *self.runner->model();
  const kv::LaneRef lane = run_on(self, [&]() -> Result<kv::LaneRef> {
    self.runner->sweep();
    CALRT_TRY_ASSIGN(const Wanted wanted, wanted_of(self, std::move(ids), *salt));
    CALRT_TRY_ASSIGN(kv::Reservation reserved,
                     self.runner->queue()->reserve(tokens, until, {&interrupted, &model}, cancel,
                                                   wanted.prompt));
    return lane_of(std::move(reserved), wanted.prefixes, model);
  });
  return lane_object(self.runner, lane);
}

std::shared_ptr<PyWaiter> enqueue_for_lane(
    const PyKv& self, Arg<"tokens", uint32_t> tokens, Arg<"timeout", std::optional<double>> timeout,
    Arg<"cancel", std::optional<std::shared_ptr<engine::CancelToken>>> token,
    const py::object& prompt, Arg<"salt", std::string> salt) {
  const uint64_t until = deadline_in("timeout", timeout->value_or(kReserveS));
  engine::CancelToken* cancel = *token ? (*token)->get() : nullptr;
  Prompt ids = prompt_of(self, prompt);
  auto waiter = std::make_shared<PyWaiter>();
  waiter->runner = self.runner;
  waiter->waiter = run_on(self, [&]() -> Result<std::shared_ptr<engine::LaneWaiter>> {
    self.runner->sweep();
    CALRT_TRY_ASSIGN(Wanted wanted, wanted_of(self, std::move(ids), *salt));
    waiter->prefixes = std::move(wanted.prefixes);
    return self.runner->queue()->enqueue(tokens, until, cancel, std::move(wanted.prompt));
  });
  return waiter;
}

py::object try_reserve_lane(py::handle object, const Given& given) {
  static const Parameters parameters(
      "try_reserve", std::array{"tokens", "prefer", "only", "prompt", "salt"}, 1, 5);
  static PyObject* const no_salt = PyUnicode_InternFromString("");
  const auto [tokens, prefer, only, prompt, salt] =
      parameters.read<5>(given, {{{}, {}, Py_False, {}, no_salt}});
  const PyKv& self = *held<PyKv>(object);
  kv::Need need;
  std::optional<uint32_t> preferred;
  std::string salt_text;
  from_python("tokens", tokens, &need.tokens);
  from_python("prefer", prefer, &preferred);
  from_python("only", only, &need.only);
  Prompt ids = prompt_of(self, prompt);
  from_python("salt", salt, &salt_text);
  need.prefer = preferred_lane(self.table(), preferred, need.only);
  const kv::LaneRef lane = run_on(self, [&]() -> Result<kv::LaneRef> {
    CALRT_TRY_ASSIGN(const Wanted wanted, wanted_of(self, std::move(ids), std::move(salt_text)));
    need.prompt = wanted.prompt.get();
    CALRT_TRY_ASSIGN(kv::Reservation reserved, self.table().try_reserve(need, now_ns()));
    return lane_of(std::move(reserved), wanted.prefixes, *self.runner->model());
  });
  return py::cast(lane_object(self.runner, lane));
}

py::object can_allocate(py::handle object, const Given& given) {
  static const Parameters parameters("can_allocate", std::array{"tokens"}, 1, 1);
  const auto [tokens] = parameters.read<1>(given);
  const PyKv& self = *held<PyKv>(object);
  uint32_t count = 0;
  from_python("tokens", tokens, &count);
  return describe_capacity(unwrap(self.table_now().can_allocate(count), self.context()));
}

std::vector<uint32_t> scrub_lanes(const PyKv& self, Arg<"job_seq", uint64_t> job_seq) {
  return run_on(self, [&]() -> Result<std::vector<uint32_t>> {
    self.runner->sweep();
    std::vector<uint32_t> lanes =
        self.runner->scrubber()->scrub(self.table().poisoned(job_seq, false));
    self.runner->queue()->lane_freed();
    return lanes;
  });
}

// "3 of 8 cells", "5 of 8 cells, positions [2, 4) are a hole: ...", "released".
std::string describe_lease(const engine::LaneLease& lease) {
  const auto now = lease.snapshot();
  const auto ref = lease.ref();
  if (!now.ok() || !ref.ok()) return "released";
  const auto sequence = lease.queue()->table()->sequence(*ref);
  if (!sequence.ok()) return sequence.error().message;
  const std::string pending = sequence->pending();
  return std::to_string(sequence->cells()) + " of " + std::to_string(now->reserved) + " cells" +
         (pending.empty() ? "" : ", " + pending);
}

template <class Field>
auto of_snapshot(const PyLane& self, Field field) {
  return unwrap(without_gil([&] { return self.lease->snapshot(); }), self.context()).*field;
}

py::object release_lane(py::handle object, const Given& given) {
  static const Parameters parameters("release", std::array<const char*, 0>{}, 0, 0);
  (void)parameters.read<0>(given);
  const PyLane& self = *held<PyLane>(object);
  without_gil([&] { self.lease->release(); });
  return py::none();
}

void bind_lane(py::module_& m) {
  py::classh<PyLane> lane(
      m, "Lane", py::is_final(), plain_type(),
      "One leased lane; given back by release(), `with` or garbage collection.");
  add_method<&release_lane>(lane, "release",
                            "release($self, /)\n--\n\n"
                            "Gives the lane back, once its job (if any) has ended. Idempotent.");
  lane.def_property_readonly(
          "index", [](const PyLane& self) { return self.lease->lane(); }, "Number of the lane.")
      .def_property_readonly(
          "length", [](const PyLane& self) { return of_snapshot(self, &kv::LaneSnapshot::length); },
          "Cells that hold a token, from the beginning.")
      .def_property_readonly(
          "reserved",
          [](const PyLane& self) { return of_snapshot(self, &kv::LaneSnapshot::reserved); },
          "Cells promised to this lease.")
      .def_property_readonly(
          "pending",
          [](const PyLane& self) -> std::optional<std::string> {
            const auto sequence =
                unwrap(without_gil([&]() -> Result<kv::Sequence> {
                         CALRT_TRY_ASSIGN(const kv::LaneRef ref, self.lease->ref());
                         return self.lease->queue()->table()->sequence(ref);
                       }),
                       self.context());
            if (sequence.canonical()) return std::nullopt;
            return sequence.pending();
          },
          "What keeps graphs from running on the lane, and what to do about it: a shift to be "
          "applied, a hole, a position that is there twice. None if nothing does.")
      .def(
          "truncate",
          [](const PyLane& self, Arg<"length", uint32_t> length) {
            unwrap(without_gil([&] { return self.lease->truncate(length); }), self.context());
          },
          py::arg("length"),
          "Forgets the cells from `length` on; StateError while a job runs on the lane.")
      .def("__enter__", [](const py::object& self) { return self; })
      .def(
          "__exit__",
          [](const PyLane& self, const py::object&, const py::object&, const py::object&) {
            without_gil([&] { self.lease->release(); });
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"))
      .def("__repr__", [](const PyLane& self) {
        return "<calrt.Lane " + std::to_string(self.lease->lane()) + ": " +
               without_gil([&] { return describe_lease(*self.lease); }) + ">";
      });
}

}  // namespace

bool interrupted(void* model) {
  if (!static_cast<const Model*>(model)->check_open().ok()) return true;
  const GilTaken gil;
  return !gil || PyErr_CheckSignals() != 0;
}

void PyKv::check_alive() const {
  Result<void> alive = runner->model()->check_alive();
  if (alive.ok()) return;
  without_gil([&] { runner->queue()->lane_freed(); });
  unwrap(std::move(alive), context());
}

kv::LaneTable& PyKv::table_now() const {
  if (!runner->model()->check_alive().ok()) without_gil([&] { runner->queue()->lane_freed(); });
  return table();
}

Result<kv::LaneRef> PyKv::ref(const char* field, const PyLane& lane) const {
  if (lane.lease->queue() != runner->queue())
    return fail(Status::INVALID_HANDLE, "%s: lane %u belongs to another model", field,
                lane.lease->lane());
  return lane.lease->ref();
}

std::vector<int32_t> PyKv::tokens(const char* field, const py::handle& value) const {
  return token_ids(field, value, runner->model()->info().vocab);
}

Result<kv::LaneRef> lane_of(kv::Reservation reserved,
                            const std::shared_ptr<engine::PrefixCache>& prefixes, Model& model) {
  if (prefixes == nullptr) return reserved.commit();
  CALRT_TRY_ASSIGN(const engine::PreparedLane ready,
                   prefixes->prepare(std::move(reserved),
                                     {deadline_in("timeout", kMoveS), {&interrupted, &model}}));
  return ready.lane;
}

engine::MoveCall PyKv::move_call(const std::optional<double>& timeout) const {
  return {deadline_in("timeout", timeout.value_or(kMoveS)), {&interrupted, runner->model().get()}};
}

std::shared_ptr<PyLane> lane_object(const std::shared_ptr<engine::GraphRunner>& runner,
                                    const kv::LaneRef& ref) {
  auto lane = std::make_shared<PyLane>();
  lane->lease = std::make_shared<engine::LaneLease>(runner->queue(), ref);
  lane->model = runner->model().get();
  return lane;
}

uint32_t preferred_lane(const kv::LaneTable& table, const std::optional<uint32_t>& prefer,
                        bool only) {
  if (only && !prefer) raise(fail(Status::INVALID_ARGUMENT, "only=True needs prefer=LANE"));
  if (prefer && *prefer >= table.lanes())
    raise(fail(Status::OUT_OF_RANGE, "prefer=%u is outside 0..%u (the lanes)", *prefer,
               table.lanes() - 1));
  return prefer.value_or(kv::kAnyLane);
}

void check_lane_number(const kv::LaneTable& table, uint32_t lane) {
  if (lane >= table.lanes())
    raise(fail(Status::OUT_OF_RANGE, "lane=%u is outside 0..%u", lane, table.lanes() - 1));
}

py::dict describe_lane(const kv::LaneSnapshot& lane) {
  py::dict out;
  out["state"] = kv::lane_state_name(lane.state);
  out["length"] = lane.length;
  out["reserved"] = lane.reserved;
  out["job_seq"] = lane.job_seq;
  out["canonical"] = lane.canonical;
  out["pins"] = lane.pins;
  out["failed_scrubs"] = lane.failed_scrubs;
  return out;
}

py::dict describe_capacity(const kv::Capacity& capacity) {
  static const std::array names{
      PyUnicode_InternFromString("now"), PyUnicode_InternFromString("free"),
      PyUnicode_InternFromString("lanes"), PyUnicode_InternFromString("cells")};
  const std::array<py::object, 4> values{py::bool_(capacity.now), py::int_(capacity.free),
                                         py::int_(capacity.lanes), py::int_(capacity.cells)};
  py::dict out;
  for (size_t i = 0; i < names.size(); ++i)
    if (PyDict_SetItem(out.ptr(), names[i], values[i].ptr()) != 0) throw py::error_already_set();
  return out;
}

void bind_kv(py::module_& m) {
  bind_lane(m);
  bind_kv_waiting(m);
  bind_lane_table(m);
  py::classh<PyKv> kv(m, "Kv", py::is_final(), plain_type(), "See calrt.kv.Kv. Thread-safe.");
  add_method<&can_allocate>(kv, "can_allocate",
                            "can_allocate($self, /, tokens)\n--\n\nSee calrt.kv.Kv.can_allocate.");
  add_method<&try_reserve_lane>(
      kv, "try_reserve",
      "try_reserve($self, /, tokens, prefer=None, only=False, prompt=None, salt='')\n--\n\n"
      "See calrt.kv.Kv.try_reserve.");
  kv.def_property_readonly(
        "lanes", [](const PyKv& self) { return self.table().lanes(); }, "See calrt.kv.Kv.lanes.")
      .def_property_readonly(
          "cells", [](const PyKv& self) { return self.table().cells(); }, "See calrt.kv.Kv.cells.")
      .def("reserve", &reserve_lane, py::arg("tokens"), py::arg("timeout") = py::none(),
           py::arg("cancel") = py::none(), py::arg("prompt") = py::none(), py::arg("salt") = "",
           "See calrt.kv.Kv.reserve.")
      .def("enqueue", &enqueue_for_lane, py::arg("tokens"), py::arg("timeout") = py::none(),
           py::arg("cancel") = py::none(), py::arg("prompt") = py::none(), py::arg("salt") = "",
           "A place in the queue: see calrt.kv.Kv.areserve.")
      .def(
          "free_lanes", [](const PyKv& self) { return self.table_now().free_lanes(); },
          "See calrt.kv.Kv.free_lanes.")
      .def(
          "waiters",
          [](const PyKv& self) {
            return without_gil([&] { return self.runner->queue()->waiters(); });
          },
          "Callers that wait for a lane.")
      .def(
          "stale_completions",
          [](const PyKv& self) {
            return without_gil([&] { return self.table().stale_completions(); });
          },
          "Ends of jobs that were dropped: see calrt.kv.Kv.stats.")
      .def(
          "snapshot",
          [](const PyKv& self, const py::object& lane) {
            const kv::LaneTable& table = self.table_now();
            if (const PyLane* leased = held<PyLane>(lane)) {
              return describe_lane(unwrap(without_gil([&]() -> Result<kv::LaneSnapshot> {
                                            CALRT_TRY_ASSIGN(const kv::LaneRef ref,
                                                             self.ref("lane", *leased));
                                            return table.snapshot(ref);
                                          }),
                                          self.context()));
            }
            uint32_t number = 0;
            from_python("lane", lane, &number);
            check_lane_number(table, number);
            return describe_lane(without_gil([&] { return table.snapshot(number); }));
          },
          py::arg("lane"), "See calrt.kv.Kv.snapshot.")
      .def("scrub", &scrub_lanes, py::arg("job_seq") = 0, "See calrt.kv.Kv.scrub.")
      .def(
          "check_integrity",
          [](const PyKv& self) {
            unwrap(without_gil([&] { return self.table().check_integrity(); }), self.context());
          },
          "See calrt.kv.Kv.check_integrity.");
  m.def(
      "token_ids",
      [](Arg<"field", std::string> field, const py::object& values, Arg<"vocab", uint32_t> vocab) {
        return token_ids(field->c_str(), values, vocab);
      },
      py::arg("field"), py::arg("values"), py::arg("vocab"),
      "A list or array of token ids of 0..vocab - 1 as a list; the error names `field`.");
  bind_kv_sequences(kv);
  bind_kv_state(kv);
  bind_kv_prefixes(kv);
}

}  // namespace calrt::bind
