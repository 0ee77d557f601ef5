// SPDX-License-Identifier: Apache-2.0
// Sampler and StepRunner.
#include <pybind11/stl.h>

#include <algorithm>
#include <mutex>

#include "bind/named.h"
#include "bind/objects.h"
#include "engine/runner.h"
#include "layout/layout.h"
#include "layout/pack.h"
#include "sampling/sampler.h"

namespace calrt::bind {
namespace {

struct PySampler {
  Sampler sampler;
  uint32_t vocab, tokens;
  std::vector<float> row;  // for layouts that are not dense
};

int32_t sample(PySampler& self, Arg<"logits", Ref<PyTensor>> logits, Arg<"row", int64_t> at) {
  PyTensor tensor = **logits;
  const int64_t row = at;
  if (tensor.shape.size() == 2) {
    const auto rows = static_cast<int64_t>(tensor.shape[0]);
    if (row < 0 || row >= rows)
      raise(fail(Status::OUT_OF_RANGE, "row=%lld is outside 0..%lld", static_cast<long long>(row),
                 static_cast<long long>(rows - 1)));
    tensor = tensor.row(static_cast<uint64_t>(row));
  }
  if (tensor.shape.size() != 1 || tensor.shape[0] != self.vocab)
    raise(fail(Status::SHAPE_MISMATCH, "logits: a tensor [%u] or [rows, %u] is due", self.vocab,
               self.vocab));
  LogitsView view{unwrap(tensor.data()), tensor.dtype == CALD_BF16, self.vocab, self.tokens};
  const auto strides = plain_strides(tensor.layout, 1);
  const bool dense = strides && (*strides)[0] == dtype_size(tensor.dtype);
  if (!dense || (tensor.dtype != CALD_BF16 && tensor.dtype != CALD_F32)) {
    self.row.resize(self.vocab);
    unwrap(unpack_f32(tensor.layout, tensor.dtype, tensor.shape.data(), 1, view.data,
                      self.row.data()));
    view.data = self.row.data();
    view.bf16 = false;
  }
  const Sampled sampled = self.sampler.sample(view);
  if (sampled.token < 0)
    raise(
        fail(Status::EXECUTION_FAILED, "no logit is finite: the device's answer cannot be right"));
  return sampled.token;
}

struct PyRunner {
  std::shared_ptr<engine::StepRunner> runner;
  std::shared_ptr<engine::GraphRunner> model;
  ~PyRunner() {
    drop_without_gil(runner);
    drop_without_gil(model);
  }
};

// Runners to be stopped before the interpreter goes: their threads outlive no library.
std::vector<std::weak_ptr<engine::StepRunner>>& open_runners() {
  static auto* runners =
      new std::vector<std::weak_ptr<engine::StepRunner>>();  // guarded by the GIL
  return *runners;
}

void close_runners() {
  for (const auto& weak : open_runners())
    if (auto runner = weak.lock())
      (void)without_gil([&] { return runner->close(now_ns() + 2'000'000'000); }).ok();
  open_runners().clear();
}

std::shared_ptr<PyRunner> make_runner(Arg<"model", Ref<PyModel>> of,
                                      Arg<"max_events", uint32_t> max_events,
                                      Arg<"prefill_chunk", uint32_t> prefill_chunk,
                                      Arg<"decode_ticks_per_chunk", uint32_t> ticks,
                                      Arg<"job_timeout", double> timeout,
                                      Arg<"in_flight", uint32_t> in_flight) {
  const PyModel& model = **of;
  const double job_timeout = timeout;
  engine::RunnerOptions options;
  options.max_events = max_events;
  options.prefill_chunk = prefill_chunk;
  options.decode_ticks_per_chunk = ticks;
  options.in_flight = in_flight;
  if (!(job_timeout > 0) || job_timeout > 86400)
    raise(fail(Status::OUT_OF_RANGE, "job_timeout=%g: 0 < seconds <= 86400 is due", job_timeout));
  options.job_timeout_ns = static_cast<uint64_t>(job_timeout * 1e9);
  auto made = unwrap(without_gil([&] {
                       return engine::StepRunner::make(model.model(),
                                                       model.runner->queue()->table(), options);
                     }),
                     model.context());
  std::shared_ptr<engine::StepRunner> runner(std::move(made));
  auto& open = open_runners();
  std::erase_if(open, [](const auto& weak) { return weak.expired(); });
  open.push_back(runner);
  return std::make_shared<PyRunner>(PyRunner{std::move(runner), model.runner});
}

using Tokens = std::vector<int32_t>;

void start(const PyRunner& self, Arg<"request", uint64_t> request, Arg<"lane", Ref<PyLane>> leased,
           Arg<"tokens", Tokens> tokens, Arg<"position", uint32_t> position,
           Arg<"history", Tokens> history, Arg<"stop_tokens", Tokens> stop_tokens,
           Arg<"max_tokens", uint32_t> max_tokens,
           Arg<"deadline_ns", std::optional<uint64_t>> deadline_ns,
           Arg<"sampling", SamplingParams> sampling) {
  const PyLane& lane = **leased;
  if (lane.lease->queue() != self.model->queue())
    raise(fail(Status::INVALID_HANDLE, "lane %u belongs to another model", lane.lease->lane()));
  engine::Start start;
  start.request = request;
  start.lane = unwrap(lane.lease->ref());
  start.position = position;
  start.tokens = *tokens;
  start.history = *history;
  start.stop_tokens = *stop_tokens;
  start.max_tokens = max_tokens;
  start.deadline_ns = deadline_ns->value_or(UINT64_MAX);
  start.sampling = *sampling;
  // start() never waits, so the GIL stays: nobody can release the lane in between.
  unwrap(self.runner->start(std::move(start)));
  unwrap(lane.lease->hand_over());
}

py::object detail(const engine::Event& event) {
  if (event.kind == engine::EventKind::ENDED &&
      event.value == static_cast<int64_t>(engine::Finish::FAILED))
    return py::make_tuple(event.status, event.native_code, event.text);
  if (event.kind != engine::EventKind::TOKEN || event.top.empty()) return py::none();
  py::list top;
  for (const TokenProb& prob : event.top) top.append(py::make_tuple(prob.token, prob.logprob));
  return py::make_tuple(event.logprob, top);
}

py::list drain(const PyRunner& self) {
  py::list out;
  for (const engine::Event& event : self.runner->drain())
    out.append(py::make_tuple(static_cast<int>(event.kind), event.request, event.value, event.t_ns,
                              detail(event)));
  return out;
}

py::dict statistics(const PyRunner& self) {
  const engine::RunnerStatistics s = self.runner->statistics();
  py::dict out;
  out["ticks"] = s.ticks;
  out["chunks"] = s.chunks;
  out["tokens"] = s.tokens;
  out["prompt_tokens"] = s.prompt_tokens;
  out["padded_rows"] = s.padded_rows;
  out["rows"] = s.rows;
  out["stale_completions"] = s.stale_completions;
  out["failed_jobs"] = s.failed_jobs;
  out["events_dropped"] = s.events_dropped;
  out["device_ns"] = s.device_ns;
  out["sample_ns"] = s.sample_ns;
  out["idle_ns"] = s.idle_ns;
  out["active"] = s.active;
  out["prefilling"] = s.prefilling;
  out["decoding"] = s.decoding;
  return out;
}

void bind_sampler(py::module_& m) {
  py::classh<PySampler>(
      m, "Sampler", py::is_final(), plain_type(),
      "The sampler chain of one request: penalties, top-k, top-p, min-p, temperature, draw. "
      "What it draws depends on its seed, its tokens and the logits alone.")
      .def(py::init([](Arg<"vocab", uint32_t> columns, Arg<"tokens", uint32_t> known,
                       Arg<"params", SamplingParams> params) {
             const uint32_t vocab = columns, tokens = known;
             if (tokens == 0 || tokens > vocab)
               raise(fail(Status::OUT_OF_RANGE,
                          "tokens=%u is outside 1..%u (the columns of logits)", tokens, vocab));
             return std::make_shared<PySampler>(
                 PySampler{unwrap(Sampler::make(*params, vocab)), vocab, tokens, {}});
           }),
           py::arg("vocab"), py::arg("tokens"), py::arg("params"),
           "vocab: columns of the logits; tokens: those that have a token, the rest is never "
           "chosen. params: "
           "temperature, top_k, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty, "
           "repeat_last_n, seed, n_probs, logit_bias; temperature 0 is greedy.")
      .def(
          "accept",
          [](PySampler& self, Arg<"token", int32_t> token) {
            if (*token < 0 || static_cast<uint32_t>(*token) >= self.vocab)
              raise(
                  fail(Status::OUT_OF_RANGE, "token=%d is outside 0..%u", *token, self.vocab - 1));
            self.sampler.accept(token);
          },
          py::arg("token"), "Tells the penalties of a token that is in the context.")
      .def(
          "sample", &sample, py::arg("logits"), py::arg("row") = 0,
          "The next token from logits [vocab] or row `row` of [rows, vocab]; does not accept() it. "
          "ExecutionError if no logit is finite.");
}

}  // namespace

void bind_engine(py::module_& m) {
  using engine::EventKind;
  m.attr("STARTED") = static_cast<int>(EventKind::STARTED);
  m.attr("PREFILL") = static_cast<int>(EventKind::PREFILL);
  m.attr("TOKEN") = static_cast<int>(EventKind::TOKEN);
  m.attr("ENDED") = static_cast<int>(EventKind::ENDED);
  bind_sampler(m);
  py::classh<PyRunner>(
      m, "StepRunner", py::is_final(), plain_type(),
      "Keeps the device busy without Python: prefills, decodes and samples all started "
      "requests in one native thread, and tells of it in events.")
      .def(py::init(&make_runner), py::arg("model"), py::kw_only(), py::arg("max_events") = 8192,
           py::arg("prefill_chunk") = 0, py::arg("decode_ticks_per_chunk") = 1,
           py::arg("job_timeout") = 60.0, py::arg("in_flight") = 1,
           "max_events: events that may wait to be drained; the runner pauses when full. "
           "prefill_chunk: largest "
           "chunk used, 0 = the model's largest. decode_ticks_per_chunk: decode steps between two "
           "chunks. "
           "job_timeout: seconds until a job counts as lost. in_flight: jobs at a time, 1 or 2, of "
           "different lanes; outputs do not depend on it. Model.in_flight is what was allowed.")
      .def("start", &start, py::arg("request"), py::arg("lane"), py::arg("tokens"), py::kw_only(),
           py::arg("position") = 0, py::arg("history") = py::tuple(),
           py::arg("stop_tokens") = py::tuple(), py::arg("max_tokens"),
           py::arg("deadline_ns") = py::none(), py::arg("sampling"),
           "Adds a request. The lane is the runner's from here on, which frees it before ENDED.\n\n"
           "request: the caller's own number, never reused. position: cells already filled; "
           "history: the tokens "
           "in them, for the penalties. deadline_ns: CLOCK_MONOTONIC. sampling: see Sampler. Never "
           "waits; on an "
           "error the lane stays the caller's.")
      .def(
          "cancel",
          [](const PyRunner& self, Arg<"request", uint64_t> request) {
            self.runner->cancel(request);
          },
          py::arg("request"),
          "The request ends with Finish 4 at the next step; unknown ones are ignored.")
      .def(
          "fileno", [](const PyRunner& self) { return self.runner->fd(); },
          "Readable while events are pending. Owned by the runner.")
      .def("drain", &drain,
           "All pending events, oldest first, as (kind, request, value, t_ns, detail); never "
           "waits.\n\nvalue: "
           "prompt tokens done (PREFILL), token id (TOKEN), Finish (ENDED: 1 stop token, 2 budget, "
           "3 lane full, "
           "4 cancelled, 5 deadline, 6 failed). detail: (logprob, [(token, logprob), ...]) for "
           "TOKEN with "
           "n_probs, (status, native_code, text) for a failed ENDED, else None.")
      .def("statistics", &statistics, "Counts and times (ns) since the runner was made.")
      .def(
          "close",
          [](const PyRunner& self, Arg<"timeout", double> timeout) {
            const uint64_t until = deadline_in("timeout", timeout);
            unwrap(without_gil([&] { return self.runner->close(until); }));
          },
          py::arg("timeout") = 10.0,
          "Ends all requests, waits up to `timeout` seconds, joins the thread. Idempotent.");
  py::module_::import("atexit").attr("register")(py::cpp_function(&close_runners));
}

}  // namespace calrt::bind
