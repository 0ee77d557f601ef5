// SPDX-License-Identifier: Apache-2.0
// Graph and its contexts: submitting single runs.
#include <pybind11/stl.h>

#include "bind/arguments.h"
#include "bind/graph_objects.h"
#include "layout/roles.h"

namespace calrt::bind {
namespace {

using Leases = std::vector<std::shared_ptr<engine::LaneLease>>;

constexpr double kHardTimeoutS = 600;  // of a job without a deadline of its own
constexpr uint32_t kMostSlots = 64;

Leases lane_list(const engine::GraphRunner& runner, const py::sequence& lanes) {
  Leases leases;
  for (const py::handle& item : lanes) {
    if (!py::isinstance<PyLane>(item))
      raise(fail(Status::INVALID_ARGUMENT, "lanes[%zu] is a %s: a Lane of model.kv is due",
                 leases.size(), Py_TYPE(item.ptr())->tp_name));
    const auto& lane = py::cast<const PyLane&>(item);
    if (lane.lease->queue() != runner.queue())
      raise(fail(Status::INVALID_HANDLE, "lanes[%zu] belongs to another model", leases.size()));
    leases.push_back(lane.lease);
  }
  return leases;
}

std::vector<kv::LaneRef> refs_of(const Leases& leases) {
  std::vector<kv::LaneRef> refs;
  for (const auto& lease : leases) refs.push_back(unwrap(lease->ref()));
  return refs;
}

std::shared_ptr<PyJob> wrap(std::shared_ptr<engine::LaneJob> job) {
  return std::make_shared<PyJob>(PyJob{std::move(job)});
}

std::shared_ptr<PyJob> submit(const PyGraph& self, const py::object& tokens,
                              const py::object& positions, const py::sequence& lanes,
                              const std::optional<uint32_t>& n_valid, const py::object& logit_rows,
                              const std::optional<double>& deadline) {
  engine::GraphCall call;
  call.tokens = int_list("tokens", tokens);
  call.positions = int_list("positions", positions);
  const Leases leases = lane_list(*self.runner, lanes);
  call.lanes = refs_of(leases);
  call.n_valid = n_valid;
  if (!logit_rows.is_none()) call.logit_rows = int_list("logit_rows", logit_rows);
  call.deadline_ns = deadline_in("deadline", deadline.value_or(kHardTimeoutS));
  return wrap(
      unwrap(without_gil([&] { return self.runner->submit(self.index, call); }), self.context()));
}

void check_slot(const PySlot& slot) {
  if (slot.closed) raise(fail(Status::INVALID_STATE, "the graph context of this slot is closed"));
}

std::shared_ptr<PyJob> submit_slot(PySlot& self, const std::optional<py::sequence>& lanes,
                                   const std::optional<uint32_t>& n_valid,
                                   const std::optional<double>& deadline) {
  check_slot(self);
  if (self.job && !self.job->job()->terminal())
    raise(fail(Status::INVALID_STATE,
               "job %llu of this slot is %s: wait for it, or use another slot",
               static_cast<unsigned long long>(self.job->job()->job_seq()),
               job_state_name(self.job->job()->state())));
  const Leases leases = lanes ? lane_list(*self.runner, *lanes) : self.lanes;
  const std::vector<kv::LaneRef> refs = refs_of(leases);
  const uint64_t until = deadline_in("deadline", deadline.value_or(kHardTimeoutS));
  auto job = unwrap(
      without_gil([&] { return self.runner->submit_filled(self.set, refs, n_valid, until); }),
      {self.runner->model()->device()->spec(), 0});
  self.lanes = leases;
  drop_without_gil(self.job);
  self.job = job;
  return wrap(std::move(job));
}

py::dict slot_tensors(const PySlot& self, bool inputs) {
  check_slot(self);
  const cald_graph& graph = self.runner->model()->graph(self.set->graph());
  py::dict tensors;
  const uint32_t n = inputs ? graph.n_inputs : graph.n_outputs;
  for (uint32_t i = 0; i < n; ++i) {
    const cald_io& io = inputs ? *graph.inputs[i] : *graph.outputs[i];
    tensors[role_name(io.role)] = tensor_of(self.set, io, 0, inputs);
  }
  return tensors;
}

std::shared_ptr<PyContext> make_context(const PyGraph& self, uint32_t slots,
                                        const py::sequence& lanes) {
  if (slots == 0 || slots > kMostSlots)
    raise(fail(Status::OUT_OF_RANGE, "slots=%u is outside 1..%u", slots, kMostSlots));
  const Leases leases = lane_list(*self.runner, lanes);
  auto context = std::make_shared<PyContext>();
  for (uint32_t i = 0; i < slots; ++i) {
    auto slot = std::make_shared<PySlot>();
    slot->runner = self.runner;
    slot->lanes = leases;
    slot->set = unwrap(without_gil([&]() -> Result<std::shared_ptr<BindingSet>> {
                         CALRT_TRY_ASSIGN(std::unique_ptr<BindingSet> set,
                                          self.runner->model()->make_bindings(self.index));
                         return std::shared_ptr<BindingSet>(std::move(set));
                       }),
                       self.context());
    context->slots.push_back(std::move(slot));
  }
  return context;
}

py::dict describe(const cald_io* const* ios, uint32_t n) {
  py::dict all;
  for (uint32_t i = 0; i < n; ++i) all[role_name(ios[i]->role)] = describe_io(*ios[i]);
  return all;
}

void close_context(PyContext& self) {
  for (const auto& slot : self.slots) slot->closed = true;
  self.slots.clear();
}

void bind_contexts(py::module_& m) {
  py::classh<PySlot>(
      m, "BindingSlot", py::is_final(), plain_type(),
      "One fixed set of input and output buffers. A new job on the slot overwrites them.")
      .def_property_readonly(
          "inputs", [](const PySlot& self) { return slot_tensors(self, true); },
          "Inputs by role; numpy() of each is writable. Fill tokens; submit() writes "
          "positions, lanes and n_valid from the lanes.")
      .def_property_readonly(
          "outputs", [](const PySlot& self) { return slot_tensors(self, false); },
          "Outputs by role, with every row of the graph; defined after a job is done.")
      .def("submit", &submit_slot, py::kw_only(), py::arg("lanes") = py::none(),
           py::arg("n_valid") = py::none(), py::arg("deadline") = py::none(),
           "Submits the slot and returns its Job at once.\n\nlanes: one per row (prefill: one); "
           "None takes "
           "those of the last submit or of context(). n_valid: valid tokens of a prefill chunk, "
           "None = "
           "all. deadline: seconds until the job counts as lost, None = 600. StateError while the "
           "slot's "
           "last job runs.");
  py::classh<PyContext>(m, "GraphContext", py::is_final(), plain_type(),
                        "Preallocated binding slots of one graph, for loops and ping/pong.")
      .def("__len__", [](const PyContext& self) { return self.slots.size(); })
      .def(
          "__getitem__",
          [](const PyContext& self, int64_t slot) {
            if (slot < 0 || slot >= static_cast<int64_t>(self.slots.size()))
              throw py::index_error("slot " + std::to_string(slot) + " of " +
                                    std::to_string(self.slots.size()));
            return self.slots[static_cast<size_t>(slot)];
          },
          py::arg("slot"))
      .def("__enter__", [](const py::object& self) { return self; })
      .def(
          "__exit__",
          [](PyContext& self, const py::object&, const py::object&, const py::object&) {
            close_context(self);
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"))
      .def("close", &close_context,
           "Lets go of the buffers; views of them stay valid. Idempotent.");
}

}  // namespace

const char* graph_kind_name(int32_t kind) {
  return kind == CALD_GRAPH_PREFILL ? "prefill" : "decode";
}

const char* lane_map_name(int32_t lane_map) {
  return lane_map == CALD_LANE_MAP_ANY        ? "any"
         : lane_map == CALD_LANE_MAP_IDENTITY ? "identity"
                                              : "none";
}

void bind_graph(py::module_& m) {
  py::classh<PyGraph>(
      m, "Graph", py::is_final(), plain_type(),
      "One static graph of a model: kind, batch or chunk, inputs and outputs by role.")
      .def_property_readonly(
          "name", [](const PyGraph& self) { return self.graph().name; },
          "E.g. 'decode_b4' or 'prefill_t64'.")
      .def_property_readonly(
          "kind", [](const PyGraph& self) { return graph_kind_name(self.graph().kind); },
          "'prefill' or 'decode'.")
      .def_property_readonly(
          "batch", [](const PyGraph& self) { return self.graph().batch; },
          "Rows of a decode graph; 1 for prefill.")
      .def_property_readonly(
          "chunk", [](const PyGraph& self) { return self.graph().chunk; },
          "Tokens of a prefill graph; 0 for decode.")
      .def_property_readonly(
          "lane_map", [](const PyGraph& self) { return lane_map_name(self.graph().lane_map); },
          "Which row may use which lane: 'none', 'identity' or 'any'.")
      .def_property_readonly(
          "inputs",
          [](const PyGraph& self) { return describe(self.graph().inputs, self.graph().n_inputs); },
          "Inputs by role: dtype, shape, layout, optional.")
      .def_property_readonly(
          "outputs",
          [](const PyGraph& self) {
            return describe(self.graph().outputs, self.graph().n_outputs);
          },
          "Outputs by role: dtype, shape, layout, optional.")
      .def("submit", &submit, py::kw_only(), py::arg("tokens"), py::arg("positions"),
           py::arg("lanes"), py::arg("n_valid") = py::none(), py::arg("logit_rows") = py::none(),
           py::arg("deadline") = py::none(),
           "Checks the inputs, submits one run and returns its Job at once.\n\n"
           "tokens, positions: whole numbers, one per row of a decode (missing rows are padded) or "
           "per "
           "token of a prefill chunk; a position is the cell the token fills, always the lane's "
           "length on. "
           "lanes: Lanes of model.kv, one per row; one for a prefill. n_valid: tokens of the chunk "
           "that "
           "count, None = all. logit_rows: rows of the chunk to return, None = the last. deadline: "
           "seconds "
           "until the job counts as lost, None = 600.\n\nInvalidArgumentError names the field; "
           "CapacityError "
           "when the device's queue is full.")
      .def("context", &make_context, py::arg("slots") = 1, py::kw_only(),
           py::arg("lanes") = py::tuple(),
           "`slots` preallocated binding sets, 1 to 64, that submit on `lanes` unless told "
           "otherwise.");
  bind_contexts(m);
}

}  // namespace calrt::bind
