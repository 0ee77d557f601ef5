// SPDX-License-Identifier: Apache-2.0
#include "engine/check.h"

#include <algorithm>
#include <string>

namespace calrt::engine {

namespace {

Result<void> check_tokens(const char* field, const std::vector<int32_t>& tokens, uint32_t vocab) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] >= 0 && static_cast<uint32_t>(tokens[i]) < vocab) continue;
    return fail(Status::OUT_OF_RANGE, "%s[%zu]=%d: not in the vocabulary of %u tokens", field, i,
                tokens[i], vocab);
  }
  return {};
}

}  // namespace

size_t least_events(const std::vector<GraphShape>& graphs, uint32_t lanes) {
  constexpr size_t kPerRequest = 4;  // as StepCore::events_of
  uint32_t widest = 1;
  for (const GraphShape& graph : graphs) {
    if (!graph.prefill) widest = std::max(widest, std::min(graph.size, lanes));
  }
  return kPerRequest * widest + lanes;
}

Result<void> check_options(const RunnerOptions& options, const std::vector<GraphShape>& graphs,
                           uint32_t lanes) {
  const size_t least = least_events(graphs, lanes);
  if (options.max_events < least) {
    return fail(Status::OUT_OF_RANGE, "max_events=%u: this model needs room for at least %zu",
                options.max_events, least);
  }
  if (options.decode_ticks_per_chunk == 0) {
    return fail(Status::OUT_OF_RANGE, "decode_ticks_per_chunk=0: must be 1 or more");
  }
  if (options.job_timeout_ns == 0) {
    return fail(Status::OUT_OF_RANGE, "job_timeout=0: a job needs some time");
  }
  std::string chunks;
  bool fits = options.prefill_chunk == 0;
  for (const GraphShape& graph : graphs) {
    if (!graph.prefill) continue;
    chunks += (chunks.empty() ? "" : ", ") + std::to_string(graph.size);
    fits = fits || graph.size <= options.prefill_chunk;
  }
  if (!fits && !chunks.empty()) {
    return fail(Status::OUT_OF_RANGE, "prefill_chunk=%u: below every chunk of the model (%s)",
                options.prefill_chunk, chunks.c_str());
  }
  for (uint32_t lane = 0; lane < lanes; ++lane) {
    const bool served = std::any_of(graphs.begin(), graphs.end(), [&](const GraphShape& graph) {
      return !graph.prefill && graph.serves(lane);
    });
    if (!served) {
      return fail(Status::UNSUPPORTED, "no decode graph of the model can serve lane %u of %u", lane,
                  lanes);
    }
  }
  return {};
}

Result<void> check_start(const Start& start, uint32_t vocab, const kv::LaneTable& lanes) {
  if (start.tokens.empty()) {
    return fail(Status::INVALID_ARGUMENT, "tokens: at least one is needed to begin with");
  }
  if (start.max_tokens == 0) {
    return fail(Status::INVALID_ARGUMENT, "max_tokens=0: at least one token must be asked for");
  }
  CALRT_TRY(check_tokens("tokens", start.tokens, vocab));
  CALRT_TRY(check_tokens("history", start.history, vocab));
  CALRT_TRY(check_tokens("stop_tokens", start.stop_tokens, vocab));
  const uint32_t cells = lanes.cells();
  if (start.position >= cells || start.tokens.size() > cells - start.position) {
    return fail(Status::OUT_OF_RANGE,
                "%zu tokens from position %u on do not fit a lane of %u cells", start.tokens.size(),
                start.position, cells);
  }
  CALRT_TRY_ASSIGN(const kv::LaneSnapshot lane, lanes.snapshot(start.lane));
  if (lane.state == kv::LaneState::POISONED) return kv::poisoned_lane(start.lane.lane);
  if (lane.job_seq != 0) {
    return fail(Status::INVALID_STATE, "lane %u is busy with job %llu: start when it has ended",
                start.lane.lane, static_cast<unsigned long long>(lane.job_seq));
  }
  if (lane.length != start.position) {
    return fail(Status::INVALID_STATE, "position=%u: lane %u holds %u tokens", start.position,
                start.lane.lane, lane.length);
  }
  return {};
}

}  // namespace calrt::engine
