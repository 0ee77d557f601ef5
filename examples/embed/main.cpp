// SPDX-License-Identifier: Apache-2.0
// A server's core in one file: open a device, load a package, prefill, decode, sample, and for
// every class of error do what the status table says.
//
//   embed DEVICE PACKAGE COUNT TOKEN...     e.g. embed cpu ~/.cache/calrt/packages/KEY 16 1 2 3,
//                                           where calrt has packed a GGUF file once
//
// Prints COUNT tokens that continue the given ones. Exit codes: 0 fine, 1 it failed, 2 usage.
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "calrt/device.h"
#include "calrt/model.h"
#include "calrt/package.h"
#include "engine/graph_runner.h"
#include "layout/layout.h"
#include "layout/pack.h"
#include "recovery.h"
#include "sampling/sampler.h"

namespace {

using calrt::Error;
using calrt::Result;
using calrt::Status;
using calrt::engine::GraphCall;
using calrt::engine::GraphRunner;
using calrt::engine::LaneJob;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr int kAttempts = 3;  // of anything that is tried again

struct Request {
  std::vector<int32_t> prompt;
  uint32_t count = 0;
};

// A device with one loaded model. The runner holds the model, the model the device.
struct Loaded {
  std::shared_ptr<calrt::Device> device;
  std::shared_ptr<GraphRunner> runner;
};

Result<Loaded> load(const std::string& spec, const std::string& directory) {
  Loaded loaded;
  CALRT_TRY_ASSIGN(loaded.device, calrt::Device::open(spec, {}));
  auto package = calrt::Package::open(directory);
  if (package->verdict().rejected()) return package->verdict().error();
  CALRT_TRY_ASSIGN(auto model, calrt::Model::load(loaded.device, std::move(package), {}));
  CALRT_TRY_ASSIGN(loaded.runner, GraphRunner::make(std::move(model)));
  return loaded;
}

// The graph of one more token, and the largest chunk that is no longer than what is left of the
// prompt (else the smallest: the rest of it is padding).
uint32_t decode_graph(const calrt::Model& model) { return model.decode_graphs().front(); }
uint32_t prefill_graph(const calrt::Model& model, size_t left) {
  uint32_t best = model.prefill_graphs().front();
  for (uint32_t graph : model.prefill_graphs())
    if (model.graph(graph).chunk <= left) best = graph;
  return best;
}

// The first row of a job's logits as floats, wherever the device left them.
Result<void> first_row(const LaneJob& job, std::vector<float>* row) {
  const auto& bindings = job.job()->bindings();
  const cald_graph& graph = job.job()->model()->graph(bindings->graph());
  const cald_io& io = *graph.outputs[0];
  const void* data = bindings->buffer(io.role)->data();
  if (data == nullptr) return calrt::fail(Status::UNSUPPORTED, "logits are not in host memory");
  const calrt::LayoutRow first = calrt::layout_row(io.layout, 0);
  row->resize(io.shape[1]);
  return calrt::unpack_f32(first.layout, io.dtype, &io.shape[1], 1,
                           static_cast<const char*>(data) + first.offset, row->data());
}

// Runs `tokens` from cell `position` of the lane on; `row` gets the logits of the last.
Result<void> run(GraphRunner& runner, uint32_t graph, const calrt::kv::LaneRef& lane,
                 uint32_t position, std::span<const int32_t> tokens, std::vector<float>* row) {
  std::vector<int32_t> positions(tokens.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(position + i);
  GraphCall call;
  call.tokens = tokens;
  call.positions = positions;
  call.lanes = {&lane, 1};
  call.deadline_ns = runner.model()->device()->now_ns() + 60 * kSecond;  // then the job is lost
  CALRT_TRY_ASSIGN(const auto job, runner.submit(graph, call));
  CALRT_TRY(job->job()->wait(call.deadline_ns));
  return first_row(*job, row);
}

// Prefill, then decode token by token. The tokens that came are in `out`, also after an error.
Result<void> generate(GraphRunner& runner, const Request& request, const calrt::kv::LaneRef& lane,
                      std::vector<int32_t>* out) {
  const calrt::Model& model = *runner.model();
  calrt::SamplingParams params;
  params.temperature = 0;  // greedy: the same tokens each time
  CALRT_TRY_ASSIGN(auto sampler, calrt::Sampler::make(params, model.info().vocab));
  std::vector<float> row;
  uint32_t position = 0;
  for (std::span<const int32_t> left = request.prompt; !left.empty();) {
    const uint32_t graph = prefill_graph(model, left.size());
    const auto chunk = left.first(std::min<size_t>(left.size(), model.graph(graph).chunk));
    CALRT_TRY(run(runner, graph, lane, position, chunk, &row));
    position += static_cast<uint32_t>(chunk.size());
    left = left.subspan(chunk.size());
  }
  for (int32_t token : request.prompt) sampler.accept(token);
  out->clear();
  while (true) {
    const calrt::LogitsView view{row.data(), false, model.info().vocab, model.info().vocab};
    const int32_t token = sampler.sample(view).token;
    if (token < 0) return calrt::fail(Status::EXECUTION_FAILED, "no logit is a finite number");
    sampler.accept(token);
    out->push_back(token);
    if (out->size() == request.count) return {};
    CALRT_TRY(run(runner, decode_graph(model), lane, position++, {&token, 1}, &row));
  }
}

// One lane for the time of one request.
Result<void> serve(GraphRunner& runner, const Request& request, std::vector<int32_t>* out) {
  const auto cells = static_cast<uint32_t>(request.prompt.size()) + request.count;
  const uint64_t patience = runner.model()->device()->now_ns() + 5 * kSecond;
  CALRT_TRY_ASSIGN(auto reservation, runner.queue()->reserve(cells, patience));
  CALRT_TRY_ASSIGN(const calrt::kv::LaneRef lane, reservation.commit());
  const auto& table = runner.queue()->table();
  Result<void> answer = generate(runner, request, lane, out);
  if (!answer.ok() && embed::action_for(answer.error()) == embed::Action::SCRUB_LANE)
    (void)runner.scrubber()->scrub(table->poisoned(0, false));  // is it still any good?
  if (auto released = table->release(lane); !released.ok()) return released;
  runner.queue()->lane_freed();
  return answer;
}

// What an operator would do by hand, at most kAttempts times.
Result<void> serve_with_recovery(const std::string& spec, const std::string& directory,
                                 const Request& request, std::vector<int32_t>* out) {
  Error last;
  Loaded loaded;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (loaded.runner == nullptr) {
      auto made = load(spec, directory);
      if (made.ok())
        loaded = *std::move(made);
      else
        last = made.error();
    }
    if (loaded.runner != nullptr) {
      auto answer = serve(*loaded.runner, request, out);
      if (answer.ok()) return {};
      last = answer.error();
    }
    embed::report(last);
    switch (embed::action_for(last)) {
      case embed::Action::FIX_CALL:
      case embed::Action::GIVE_UP:
        return last;
      case embed::Action::WAIT_AND_RETRY:
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        break;
      case embed::Action::RETRY:
      case embed::Action::SCRUB_LANE:
        break;
      case embed::Action::RELOAD_MODEL:
      case embed::Action::REOPEN_DEVICE:
        if (loaded.runner != nullptr) (void)loaded.runner->close(loaded.device->now_ns() + kSecond);
        loaded = {};
        break;
    }
  }
  return last;
}

bool number(const char* text, int32_t* out) {
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), *out);
  return error == std::errc() && *end == '\0' && *out >= 0;
}

}  // namespace

int main(int argc, char** argv) {
  Request request;
  int32_t count = 0;
  bool fine = argc >= 5 && number(argv[3], &count) && count > 0;
  request.count = static_cast<uint32_t>(count);
  for (int i = 4; fine && i < argc; ++i) fine = number(argv[i], &request.prompt.emplace_back());
  if (!fine) {
    std::fprintf(stderr, "usage: embed DEVICE PACKAGE COUNT TOKEN...\n");
    return 2;
  }
  std::vector<int32_t> tokens;
  if (!serve_with_recovery(argv[1], argv[2], request, &tokens).ok()) return 1;
  for (int32_t token : tokens) std::printf("%d\n", token);
  return 0;
}
