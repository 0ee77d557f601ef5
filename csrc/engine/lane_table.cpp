// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_table.h"

#include <algorithm>
#include <utility>

namespace calrt::engine {

const char* request_state_name(RequestState state) {
  constexpr const char* kNames[kRequestStates] = {
      "QUEUED", "PREFILL", "PREFILL_BUSY", "DECODE", "DECODE_BUSY", "DRAINING", "ENDED"};
  const auto index = static_cast<size_t>(state);
  return index < kRequestStates ? kNames[index] : "?";
}

const char* request_event_name(RequestEvent event) {
  constexpr const char* kNames[kRequestEvents] = {"SUBMIT",     "CHUNK_DONE", "PROMPT_DONE",
                                                  "TOKEN_DONE", "JOB_FAILED", "END"};
  const auto index = static_cast<size_t>(event);
  return index < kRequestEvents ? kNames[index] : "?";
}

std::optional<RequestState> transition(RequestState from, RequestEvent event) {
  for (const TransitionRow& row : kTransitions) {
    if (row.from == from && row.event == event) return row.to;
  }
  return std::nullopt;
}

Record::Record(Start given, Sampler chain)
    : start(std::move(given)), sampler(std::move(chain)), position(start.position) {
  std::sort(start.stop_tokens.begin(), start.stop_tokens.end());
}

bool Record::stops_at(int32_t drawn) const {
  return std::binary_search(start.stop_tokens.begin(), start.stop_tokens.end(), drawn);
}

Result<void> Record::on(RequestEvent event) {
  const auto next = transition(state, event);
  if (!next) {
    return fail(Status::INTERNAL, "request %llu: %s has no meaning in state %s",
                static_cast<unsigned long long>(start.request), request_event_name(event),
                request_state_name(state));
  }
  state = *next;
  return {};
}

Result<void> Record::check_invariants(uint32_t cells) const {
  const auto broken = [&](const char* rule) -> Error {
    return fail(Status::INTERNAL, "request %llu (%s, position %u, prompt %u, generated %u): %s",
                static_cast<unsigned long long>(start.request), request_state_name(state), position,
                done, generated, rule);
  };
  if (position > cells) return broken("position <= cells");
  if (done > start.tokens.size()) return broken("prompt done <= prompt");
  if (generated > start.max_tokens) return broken("generated <= budget");
  const bool decoding = state == RequestState::DECODE || state == RequestState::DECODE_BUSY;
  if (decoding && remaining() != 0) return broken("decoding follows the whole prompt");
  if (decoding && token < 0) return broken("a decoding request has a token to feed");
  if (decoding && position >= cells) return broken("a decoding request has a cell to write");
  const uint32_t fed = generated > 0 ? generated - 1 : 0;
  const bool counted = state != RequestState::DRAINING && state != RequestState::ENDED;
  if (counted && position != start.position + done + fed) return broken("position = what was fed");
  return {};
}

}  // namespace calrt::engine
