// SPDX-License-Identifier: Apache-2.0
// One record per request in the plan (a request holds one lane, so at most one per lane), and the
// table of its life. An event that the table does not list for a state is refused and changes
// nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/result.h"
#include "engine/plan.h"

namespace calrt::engine {

enum class RequestState : uint8_t {
  QUEUED,        // in the plan, nothing submitted yet
  PREFILL,       // part of the prompt is done, no job in flight
  PREFILL_BUSY,  // a job with prompt tokens is in flight
  DECODE,        // a token waits to be fed
  DECODE_BUSY,   // a job with that token is in flight
  DRAINING,      // ended for its owner, but a job that writes its lane is in flight
  ENDED,
};
inline constexpr size_t kRequestStates = 7;

enum class RequestEvent : uint8_t {
  SUBMIT,       // a job with its tokens was accepted by the device
  CHUNK_DONE,   // the job ended, more of the prompt remains
  PROMPT_DONE,  // the job ended with the last of the prompt
  TOKEN_DONE,   // the job ended with the token fed
  JOB_FAILED,
  END,  // stop token, budget, lane full, cancel, deadline, failure
};
inline constexpr size_t kRequestEvents = 6;

const char* request_state_name(RequestState state);
const char* request_event_name(RequestEvent event);

struct TransitionRow {
  RequestState from;
  RequestEvent event;
  RequestState to;
};

// Every legal pair; all others are illegal.
inline constexpr std::array<TransitionRow, 17> kTransitions{{
    {RequestState::QUEUED, RequestEvent::SUBMIT, RequestState::PREFILL_BUSY},
    {RequestState::QUEUED, RequestEvent::END, RequestState::ENDED},
    {RequestState::PREFILL, RequestEvent::SUBMIT, RequestState::PREFILL_BUSY},
    {RequestState::PREFILL, RequestEvent::END, RequestState::ENDED},
    {RequestState::PREFILL_BUSY, RequestEvent::CHUNK_DONE, RequestState::PREFILL},
    {RequestState::PREFILL_BUSY, RequestEvent::PROMPT_DONE, RequestState::DECODE},
    {RequestState::PREFILL_BUSY, RequestEvent::JOB_FAILED, RequestState::ENDED},
    {RequestState::PREFILL_BUSY, RequestEvent::END, RequestState::DRAINING},
    {RequestState::DECODE, RequestEvent::SUBMIT, RequestState::DECODE_BUSY},
    {RequestState::DECODE, RequestEvent::END, RequestState::ENDED},
    {RequestState::DECODE_BUSY, RequestEvent::TOKEN_DONE, RequestState::DECODE},
    {RequestState::DECODE_BUSY, RequestEvent::JOB_FAILED, RequestState::ENDED},
    {RequestState::DECODE_BUSY, RequestEvent::END, RequestState::DRAINING},
    {RequestState::DRAINING, RequestEvent::CHUNK_DONE, RequestState::ENDED},
    {RequestState::DRAINING, RequestEvent::PROMPT_DONE, RequestState::ENDED},
    {RequestState::DRAINING, RequestEvent::TOKEN_DONE, RequestState::ENDED},
    {RequestState::DRAINING, RequestEvent::JOB_FAILED, RequestState::ENDED},
}};

// The state after `event`, or nothing when the pair is illegal.
std::optional<RequestState> transition(RequestState from, RequestEvent event);

// Owned by the thread that runs the plan.
struct Record {
  Record(Start start, Sampler sampler);

  Start start;
  Sampler sampler;
  RequestState state = RequestState::QUEUED;
  uint32_t position;                  // the next cell to write
  uint32_t done = 0;                  // tokens of the prompt that are in cells
  uint32_t generated = 0;             // tokens drawn
  int32_t token = -1;                 // drawn last, to be fed next
  uint64_t served = 0;                // number of the job that had it last
  Finish finish = Finish::CANCELLED;  // what DRAINING will end with
  Error error;                        // with FAILED

  bool busy() const {
    return state == RequestState::PREFILL_BUSY || state == RequestState::DECODE_BUSY ||
           state == RequestState::DRAINING;
  }
  bool prompting() const { return state == RequestState::QUEUED || state == RequestState::PREFILL; }
  uint32_t remaining() const { return static_cast<uint32_t>(start.tokens.size()) - done; }
  bool stops_at(int32_t token) const;
  // Applies the table. INTERNAL naming the pair if it is illegal; nothing is changed then.
  Result<void> on(RequestEvent event);
  // What is true of every record between two events; the first broken rule is named.
  Result<void> check_invariants(uint32_t cells) const;
};

}  // namespace calrt::engine
