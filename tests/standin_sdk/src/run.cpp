// SPDX-License-Identifier: Apache-2.0
// Runs and their OutputBufs: a queue, one thread that stands for the device, and Wait.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "state.h"

namespace calrt::standin {
namespace {

Run* find_run(calrt_model* model, uint64_t number) {
  for (Run& run : model->runs)
    if (run.number == number) return &run;
  return nullptr;
}

int unknown_run(uint64_t number) {
  return refuse(CALRT_E_RUN_UNKNOWN, "run=%llu is not known", static_cast<ull>(number));
}

int check_set(const calrt_model& model, uint32_t graph, int set) {
  if (graph >= model.graphs.size())
    return refuse(CALRT_E_IO_INDEX, "graph=%u of %zu", graph, model.graphs.size());
  if (set < 0 || set >= static_cast<int>(kSets))
    return refuse(CALRT_E_ARGUMENT, "set=%d: PING is 0, PONG is 1", set);
  return 0;
}

int check_inputs(const Graph& graph, const void* const* inputs) {
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    if (inputs[i] == nullptr || reinterpret_cast<uintptr_t>(inputs[i]) % graph.inputs[i].align != 0)
      return refuse(CALRT_E_ARGUMENT, "%s: the address of %s is null or not aligned to %u",
                    graph.name.c_str(), graph.inputs[i].name, graph.inputs[i].align);
  return 0;
}

// The work of one run, as far as the host can see it: its error, and the logits if that is 0.
int compute(calrt_model* model, const Run& run, Graph* graph, std::vector<unsigned char>* out) {
  const auto value = [&](size_t input, uint32_t i) {
    int32_t number;
    std::memcpy(&number, static_cast<const char*>(run.inputs[input]) + size_t{4} * i, 4);
    return static_cast<uint32_t>(number);  // what is negative is too large
  };
  const uint32_t seq = value(2, 0);
  const uint32_t n = graph->kind == CALRT_GRAPH_PREFILL ? value(3, 0) : graph->rows;
  if (seq >= kSequences || n == 0 || n > graph->rows) return CALRT_E_IO_VALUE;
  const uint32_t first = value(1, 0);
  if (first >= model->desc.context) return CALRT_E_IO_VALUE;
  for (uint32_t i = 0; i < n; ++i)
    if (value(0, i) >= model->desc.vocab || value(1, i) != first + i) return CALRT_E_IO_VALUE;
  if (uint64_t{first} + n > model->taken[seq]) return CALRT_E_KV_RANGE;
  for (uint32_t i = 0; i < n; ++i)
    model->cells.write(seq, first + i, value(0, i), static_cast<int32_t>(first + i));
  const mock::Sums sums = model->cells.fold(mock::fold_portable, seq, first + n);
  graph->logits.write(out->data(), 0, sums, model->noise);
  for (const calrt_io_desc& input : graph->inputs) model->device->h2d_bytes += input.bytes;
  model->device->d2h_bytes += out->size();
  return 0;
}

void pass_time(Lock* lock, uint32_t us) {
  lock->unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(us));
  lock->lock();
}

void execute(calrt_model* model, uint64_t number, Lock* lock) {
  Run& run = *find_run(model, number);  // stays: outstanding runs are not forgotten
  Graph& graph = *model->graphs[run.graph];
  OutBuf& outbuf = graph.outbufs[run.set];
  run.state = CALRT_RUN_RUNNING;
  outbuf.state = CALRT_OUTBUF_WRITING;
  trace(*model->device, CALRT_TRACE_BEGIN, run, graph);
  if (due("run_never_ends")) {
    lock->unlock();
    never_return();
  }
  if (const auto us = due_number("run_takes", 1000)) pass_time(lock, *us);
  const auto failed = due_number("run_fails", CALRT_E_RUN);
  const int error = failed ? static_cast<int>(*failed) : compute(model, run, &graph, &outbuf.data);
  if (const auto ms = due_number("late_completion", 500)) pass_time(lock, *ms * 1000);
  trace(*model->device, CALRT_TRACE_END, run, graph);
  run.state = error == 0 ? CALRT_RUN_DONE : CALRT_RUN_FAILED;
  outbuf.state = error == 0 ? CALRT_OUTBUF_READY : CALRT_OUTBUF_FREE;
  if (error != 0) outbuf.run = 0;
  ++(error == 0 ? model->device->counters.completed : model->device->counters.failed);
  model->unreported.push_back({number, error, run.graph, run.set, 0});
  if (model->unreported.size() > kRemembered) model->unreported.pop_front();
  model->changed.notify_all();
}

}  // namespace
}  // namespace calrt::standin

using namespace calrt::standin;

uint32_t calrt_model::outstanding() const {
  const auto is_one = [](const Run& run) { return run.outstanding(); };
  return static_cast<uint32_t>(std::count_if(runs.begin(), runs.end(), is_one));
}

void calrt_model::work() {
  Lock lock(runtime().mutex);
  while (!closing) {
    const auto queued = [](const Run& run) { return run.state == CALRT_RUN_QUEUED; };
    const auto next = std::find_if(runs.begin(), runs.end(), queued);
    if (next != runs.end())
      execute(this, next->number, &lock);
    else
      changed.wait(lock);
  }
}

int calrt_bind_set(calrt_model* model, uint32_t graph, int set, const void* const* inputs) {
  STANDIN_ENTER(bind_set);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_set(*model, graph, set));
  Graph& of = *model->graphs[graph];
  for (const Run& run : model->runs)
    if (run.outstanding() && run.graph == graph && run.set == set)
      return misuse(CALRT_E_STATE, "run %llu is outstanding", static_cast<ull>(run.number));
  if (inputs != nullptr) STANDIN_CHECK(check_inputs(of, inputs));
  of.bound[set].clear();
  if (inputs != nullptr) of.bound[set].assign(inputs, inputs + of.inputs.size());
  return 0;
}

int calrt_infer(calrt_model* model, uint32_t graph, int set, const void* const* inputs,
                uint64_t* run) {
  STANDIN_ENTER(infer);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_set(*model, graph, set));
  Graph& of = *model->graphs[graph];
  if (run == nullptr) return refuse(CALRT_E_ARGUMENT, "run is null");
  if (inputs == nullptr && of.bound[set].empty())
    return refuse(CALRT_E_ARGUMENT, "%s: no inputs, and none are bound", of.name.c_str());
  if (inputs == nullptr) inputs = of.bound[set].data();
  STANDIN_CHECK(check_inputs(of, inputs));
  if (model->outstanding() == kQueueDepth)
    return refuse(CALRT_E_QUEUE_FULL, "%u runs are outstanding", kQueueDepth);
  OutBuf& outbuf = of.outbufs[set];
  if (outbuf.state != CALRT_OUTBUF_FREE && outbuf.state != CALRT_OUTBUF_READY)
    return refuse(CALRT_E_OUTBUF_STATE, "%s: the OutputBuf of set %d is run %llu's, in state %d",
                  of.name.c_str(), set, static_cast<ull>(outbuf.run), outbuf.state);
  while (model->runs.size() > kRemembered) model->runs.pop_front();
  const uint64_t number = ++runtime().last_run;
  Run& queued = model->runs.emplace_back();
  queued.number = number;
  queued.graph = graph;
  queued.set = set;
  queued.inputs.assign(inputs, inputs + of.inputs.size());
  outbuf.state = CALRT_OUTBUF_QUEUED;
  outbuf.run = *run = number;
  ++model->device->counters.submitted;
  trace(*model->device, CALRT_TRACE_SUBMIT, queued, of);
  model->changed.notify_all();
  return 0;
}

int calrt_wait(calrt_model* model, calrt_done* out) {
  STANDIN_ENTER(wait);
  STANDIN_CHECK(check_model(model));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  if (due("wait_never_returns")) {
    lock.unlock();
    never_return();
  }
  ++model->waiting;
  model->changed.wait(lock, [&] {
    return model->closing || !model->unreported.empty() || model->outstanding() == 0;
  });
  --model->waiting;
  model->changed.notify_all();
  if (model->unreported.empty()) return refuse(CALRT_E_STATE, "nothing is outstanding");
  const calrt_done done = model->unreported.front();
  *out = done;
  out->error = shown(done.error);
  if (!due("completion_twice")) model->unreported.pop_front();
  return 0;
}

int calrt_query(calrt_model* model, uint64_t run, int* state) {
  STANDIN_ENTER(query);
  STANDIN_CHECK(check_model(model));
  if (state == nullptr) return refuse(CALRT_E_ARGUMENT, "state is null");
  const Run* found = find_run(model, run);
  if (found == nullptr) return unknown_run(run);
  *state = found->state;
  return 0;
}

int calrt_cancel(calrt_model* model, uint64_t run) {
  STANDIN_ENTER(cancel);
  STANDIN_CHECK(check_model(model));
  Run* found = find_run(model, run);
  if (found == nullptr) return unknown_run(run);
  if (found->state != CALRT_RUN_QUEUED)
    return refuse(CALRT_E_STATE, "run %llu has begun", static_cast<ull>(run));
  found->state = CALRT_RUN_CANCELLED;
  OutBuf& outbuf = model->graphs[found->graph]->outbufs[found->set];
  outbuf.state = CALRT_OUTBUF_FREE;
  outbuf.run = 0;
  ++model->device->counters.cancelled;
  if (due("completion_after_cancel"))
    model->unreported.push_back({run, 0, found->graph, found->set, 0});
  model->changed.notify_all();
  return 0;
}

int calrt_outbuf_acquire(calrt_model* model, uint64_t run, uint32_t output, calrt_outbuf* out) {
  STANDIN_ENTER(outbuf_acquire);
  STANDIN_CHECK(check_model(model));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  if (output != 0) return refuse(CALRT_E_IO_INDEX, "output=%u of 1", output);
  for (const auto& graph : model->graphs)
    for (OutBuf& outbuf : graph->outbufs) {
      if (outbuf.run != run || outbuf.state != CALRT_OUTBUF_READY) continue;
      outbuf.state = CALRT_OUTBUF_ACQUIRED;
      outbuf.acquired = run;
      *out = {outbuf.data.data(), outbuf.data.size()};
      if (!due("outputbuf_reused_early")) return 0;
      // As if the next run had taken it, which has no number yet.
      outbuf.run = runtime().last_run + 1;
      outbuf.state = CALRT_OUTBUF_WRITING;
      std::fill(outbuf.data.begin(), outbuf.data.end(), static_cast<unsigned char>(0x41));
      return 0;
    }
  return refuse(CALRT_E_OUTBUF_STATE, "no OutputBuf is ready with run %llu", static_cast<ull>(run));
}

int calrt_outbuf_release(calrt_model* model, uint64_t run) {
  STANDIN_ENTER(outbuf_release);
  STANDIN_CHECK(check_model(model));
  for (const auto& graph : model->graphs)
    for (OutBuf& outbuf : graph->outbufs) {
      if (run == 0 || outbuf.acquired != run) continue;
      outbuf.state = CALRT_OUTBUF_FREE;
      outbuf.run = outbuf.acquired = 0;
      return 0;
    }
  return misuse(CALRT_E_OUTBUF_STATE, "nothing of run %llu is acquired", static_cast<ull>(run));
}

int calrt_outbuf_state(calrt_model* model, uint32_t graph, int set, int* state, uint64_t* run) {
  STANDIN_ENTER(outbuf_state);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_set(*model, graph, set));
  if (state == nullptr || run == nullptr) return refuse(CALRT_E_ARGUMENT, "state or run is null");
  const OutBuf& outbuf = model->graphs[graph]->outbufs[set];
  *state = outbuf.state;
  *run = outbuf.run;
  return 0;
}
