// SPDX-License-Identifier: Apache-2.0
// Graph and its contexts: submitting single runs.
#include <pybind11/stl.h>

#include "bind/fast_call.h"
#include "bind/graph_objects.h"
#include "bind/named.h"
#include "bind/views.h"
#include "layout/roles.h"

namespace calrt::bind {
namespace {

using Leases = std::vector<std::shared_ptr<engine::LaneLease>>;

constexpr double kHardTimeoutS = 600;  // of a job without a deadline of its own
constexpr uint32_t kMostSlots = 64;

// The lanes of a call; `leases`, if given, becomes their owners.
std::vector<kv::LaneRef> lane_refs(const engine::GraphRunner& runner, const py::handle& lanes,
                                   Leases* leases = nullptr) {
  const auto items = py::reinterpret_steal<py::object>(
      PyUnicode_Check(lanes.ptr()) ? nullptr : PySequence_Fast(lanes.ptr(), ""));
  if (!items) {
    PyErr_Clear();
    raise(fail(Status::INVALID_ARGUMENT, "lanes is a %s: a list of Lanes of model.kv is due",
               Py_TYPE(lanes.ptr())->tp_name));
  }
  std::vector<kv::LaneRef> refs;
  const auto n = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  refs.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    const py::handle item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<py::ssize_t>(i));
    const PyLane* lane = held<PyLane>(item);
    if (lane == nullptr)
      raise(fail(Status::INVALID_ARGUMENT, "lanes[%zu] is a %s: a Lane of model.kv is due", i,
                 Py_TYPE(item.ptr())->tp_name));
    const auto& lease = lane->lease;
    if (lease->queue() != runner.queue())
      raise(fail(Status::INVALID_HANDLE, "lanes[%zu] belongs to another model", i));
    refs.push_back(unwrap(lease->ref()));
    if (leases != nullptr) leases->push_back(lease);
  }
  return refs;
}

std::vector<kv::LaneRef> refs_of(const Leases& leases) {
  std::vector<kv::LaneRef> refs;
  refs.reserve(leases.size());
  for (const auto& lease : leases) refs.push_back(unwrap(lease->ref()));
  return refs;
}

py::object wrap(std::shared_ptr<engine::LaneJob> job) {
  return py::cast(std::make_unique<PyJob>(PyJob{std::move(job)}));
}

// Of a prefill's chunk; a decode has none, which the call's own check says.
std::optional<uint32_t> valid_count(const cald_graph& graph, const py::handle& n_valid) {
  return optional_count("n_valid", n_valid, graph.chunk > 0 ? 1 : 0,
                        graph.chunk > 0 ? graph.chunk : UINT32_MAX);
}

uint64_t job_deadline(const py::handle& seconds) {
  return deadline_in("deadline", optional_seconds("deadline", seconds).value_or(kHardTimeoutS));
}

py::object submit(py::handle object, const Given& given) {
  static const Parameters parameters(
      "submit", std::array{"tokens", "positions", "lanes", "n_valid", "logit_rows", "deadline"}, 3,
      0);
  const auto [tokens, positions, lanes, n_valid, logit_rows, deadline] = parameters.read<6>(given);
  const PyGraph& self = *held<PyGraph>(object);
  const IntArgument token_ids("tokens", tokens), cells("positions", positions);
  const std::vector<kv::LaneRef> refs = lane_refs(*self.runner, lanes);
  std::optional<IntArgument> rows;
  if (!logit_rows.is_none()) rows.emplace("logit_rows", logit_rows);
  engine::GraphCall call;
  call.tokens = token_ids.values();
  call.positions = cells.values();
  call.lanes = refs;
  call.n_valid = valid_count(self.graph(), n_valid);
  if (rows) call.logit_rows = rows->values();
  call.deadline_ns = job_deadline(deadline);
  return wrap(
      unwrap(without_gil([&] { return self.runner->submit(self.index, call); }), self.context()));
}

void check_slot(const PySlot& slot) {
  if (slot.closed) raise(fail(Status::INVALID_STATE, "the graph context of this slot is closed"));
}

py::object submit_slot(py::handle object, const Given& given) {
  static const Parameters parameters("submit", std::array{"lanes", "n_valid", "deadline"}, 0, 0);
  const auto [lanes, n_valid, deadline] = parameters.read<3>(given);
  PySlot& self = *held<PySlot>(object);
  check_slot(self);
  if (self.job && !self.job->job()->terminal())
    raise(fail(Status::INVALID_STATE,
               "job %llu of this slot runs: wait for it, or use another slot",
               static_cast<unsigned long long>(self.job->job()->job_seq())));
  Leases leases;
  const std::vector<kv::LaneRef> refs =
      lanes.is_none() ? refs_of(self.lanes) : lane_refs(*self.runner, lanes, &leases);
  const std::optional<uint32_t> count =
      valid_count(self.runner->model()->graph(self.set->graph()), n_valid);
  const uint64_t until = job_deadline(deadline);
  std::shared_ptr<engine::LaneJob> last = std::move(self.job);  // another thread may submit too
  auto job = unwrap(without_gil([&, before = std::move(last)]() mutable {
                      before.reset();
                      return self.runner->submit_filled(self.set, refs, count, until);
                    }),
                    ErrorContext(*self.runner->model()));
  if (!lanes.is_none()) self.lanes = std::move(leases);
  self.job = job;
  return wrap(std::move(job));
}

void bind_slot(const PySlot& self, Arg<"role", std::string> name,
               Arg<"buffer", Ref<PyBuffer>> buffer) {
  check_slot(self);
  const int32_t role = role_from_name(*name);
  if (role == 0)
    raise(fail(Status::INVALID_ARGUMENT,
               "role='%s' is the name of no role: see graph.inputs and "
               "graph.outputs",
               name->c_str()));
  unwrap(self.set->rebind(role, (*buffer)->open()), ErrorContext(*self.runner->model()));
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

std::shared_ptr<PyContext> make_context(const PyGraph& self, Arg<"slots", uint32_t> count,
                                        const py::handle& lanes) {
  const uint32_t slots = count;
  if (slots == 0 || slots > kMostSlots)
    raise(fail(Status::OUT_OF_RANGE, "slots=%u is outside 1..%u", slots, kMostSlots));
  Leases leases;
  (void)lane_refs(*self.runner, lanes, &leases);
  auto context = std::make_shared<PyContext>();
  context->graph = self.graph().name;
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

void close_context(PyContext& self, Arg<"force", bool> force) {
  if (!*force) {
    ExportCensus census;
    for (const auto& slot : self.slots) slot->set->count_exports(&census);
    refuse_views("graph context", census);
  }
  for (const auto& slot : self.slots) slot->closed = true;
  self.slots.clear();
}

// "<calrt.Graph 'decode_b4': decode, batch 4, lane_map any>"
std::string describe_graph(const PyGraph& self) {
  const cald_graph& graph = self.graph();
  const bool prefill = graph.kind == CALD_GRAPH_PREFILL;
  return std::string("<calrt.Graph '") + graph.name + "': " + graph_kind_name(graph.kind) +
         (prefill ? ", chunk " : ", batch ") + std::to_string(prefill ? graph.chunk : graph.batch) +
         ", lane_map " + lane_map_name(graph.lane_map) + ">";
}

// "<calrt.BindingSlot of 'decode_b4': job 12 done>"
std::string describe_slot(const PySlot& self) {
  std::string state = "idle";
  if (self.closed)
    state = "closed";
  else if (self.job)
    state = "job " + std::to_string(self.job->job()->job_seq()) +
            (self.job->job()->terminal() ? " ended" : " runs");
  return std::string("<calrt.BindingSlot of '") +
         self.runner->model()->graph(self.set->graph()).name + "': " + state + ">";
}

void bind_contexts(py::module_& m) {
  py::classh<PySlot> slot(
      m, "BindingSlot", py::is_final(), plain_type(),
      "One fixed set of input and output buffers. A new job on the slot overwrites them.");
  slot.def_property_readonly(
          "inputs", [](const PySlot& self) { return slot_tensors(self, true); },
          "Inputs by role; numpy() of each is writable. Fill tokens; submit() writes "
          "positions, lanes and n_valid from the lanes.")
      .def_property_readonly(
          "outputs", [](const PySlot& self) { return slot_tensors(self, false); },
          "Outputs by role, with every row of the graph; defined after a job is done.")
      .def("bind", &bind_slot, py::arg("role"), py::arg("buffer"),
           "Binds a buffer of the device, such as a pool's, in place of the slot's own; it stays "
           "bound until the context is closed, whatever becomes of `buffer`.\n\n"
           "InvalidArgumentError if it is too small, not aligned or in a wrong domain; StateError "
           "while a job runs on the slot.")
      .def("__repr__", &describe_slot);
  add_method<&submit_slot>(
      slot, "submit",
      "submit($self, /, *, lanes=None, n_valid=None, deadline=None)\n--\n\n"
      "Submits the slot and returns its Job at once.\n\nlanes: one per row (prefill: one); None "
      "takes those of the last submit or of context(). n_valid: valid tokens of a prefill chunk, "
      "None = all. deadline: seconds until the job counts as lost, None = 600, which is the most. "
      "StateError while "
      "the slot's last job runs.");
  py::classh<PyContext>(m, "GraphContext", py::is_final(), plain_type(),
                        "Preallocated binding slots of one graph, for loops and ping/pong.")
      .def("__len__", [](const PyContext& self) { return self.slots.size(); })
      .def(
          "__getitem__",
          [](const PyContext& self, Arg<"slot", int64_t> which) {
            const int64_t slot = which;
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
            close_context(self, Arg<"force", bool>(true));
          },
          py::arg("kind"), py::arg("value"), py::arg("tb"))
      .def("close", &close_context, py::arg("force") = false,
           "Lets go of the buffers. Idempotent.\n\nBufferError while views of them live, and "
           "nothing "
           "changes; with `force` they keep the memory for themselves.")
      .def("__repr__", [](const PyContext& self) {
        const std::string slots =
            self.slots.empty() ? "closed" : std::to_string(self.slots.size()) + " slots";
        return "<calrt.GraphContext of '" + self.graph + "': " + slots + ">";
      });
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
  bind_contexts(m);
  py::classh<PyGraph> graph(
      m, "Graph", py::is_final(), plain_type(),
      "One static graph of a model: kind, batch or chunk, inputs and outputs by role.");
  graph
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
      .def("context", &make_context, py::arg("slots") = 1, py::kw_only(),
           py::arg("lanes") = py::tuple(),
           "`slots` preallocated binding sets, 1 to 64, that submit on `lanes` unless told "
           "otherwise.")
      .def("__repr__", &describe_graph);
  add_method<&submit>(
      graph, "submit",
      "submit($self, /, *, tokens, positions, lanes, n_valid=None, logit_rows=None, "
      "deadline=None)\n"
      "--\n\n"
      "Checks the inputs, submits one run and returns its Job at once.\n\n"
      "tokens, positions: whole numbers, 1 to `batch` of a decode (missing rows are padded) or 1 "
      "to "
      "`chunk` of a prefill; they are copied, and a contiguous int32 array is the quickest. A "
      "position is the cell that the token fills: the lane's length for the first, one more for "
      "each further token of a chunk. lanes: Lanes of model.kv, one per row; one for a prefill. "
      "n_valid: tokens of the chunk that count, None = all. logit_rows: rows of the chunk to "
      "return, None = the last. deadline: seconds until the job counts as lost, None = 600, which "
      "is the most.\n\n"
      "InvalidArgumentError names the field; StateError where a lane has another job or the model "
      "is closed; CapacityError when the device's queue is full.");
}

}  // namespace calrt::bind
