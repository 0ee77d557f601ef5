// SPDX-License-Identifier: Apache-2.0
// The validate layer: watches both sides of the driver ABI and names each rule that is broken. What
// a caller gets wrong with a handle or a struct is refused before the driver sees it; what a driver
// gets wrong is noted, and a completion that must not come is not passed on.
//
// Each violation is one more in the counter "validate.RULE" and one log line of component
// "validate", an error, with the entry and the number of the call. What a caller left open stands
// in the log when the driver is closed.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "layers/layer.h"

namespace calrt::layers {

// CALRT_RULE(NAME, meaning). The first half are the caller's, those from OK_WITHOUT_HANDLE on the
// driver's.
#define CALRT_VALIDATE_RULES(CALRT_RULE)                                                        \
  CALRT_RULE(null_argument, "a pointer or handle that is needed is NULL")                       \
  CALRT_RULE(struct_size, "a struct says that it is shorter than ABI 0.1's")                    \
  CALRT_RULE(unknown_handle, "a handle that the driver never gave")                             \
  CALRT_RULE(stale_handle, "a handle that has been closed")                                     \
  CALRT_RULE(wrong_kind, "a handle of another kind")                                            \
  CALRT_RULE(double_free, "a handle is closed again")                                           \
  CALRT_RULE(children_alive, "a handle is closed while its children live")                      \
  CALRT_RULE(still_held, "a buffer, set or model is given back while a job or set holds it")    \
  CALRT_RULE(job_not_ended, "a job is destroyed before it has ended")                           \
  CALRT_RULE(leaked, "a handle lives when the driver is closed")                                \
  CALRT_RULE(ok_without_handle, "OK, and no handle")                                            \
  CALRT_RULE(handle_lives, "a new handle is one that lives already")                            \
  CALRT_RULE(status_range, "a status outside 0 to 29")                                          \
  CALRT_RULE(completion_size, "a completion shorter than ABI 0.1's")                            \
  CALRT_RULE(completion_state, "a completion whose state is not an end, or not its status's")   \
  CALRT_RULE(completion_seq, "a completion with another job_seq")                               \
  CALRT_RULE(completed_twice, "a second completion; not passed on")                             \
  CALRT_RULE(completed_late, "a completion after job_destroy or session_close; not passed on")  \
  CALRT_RULE(completed_refused, "a completion for a job that was refused; not passed on after") \
  CALRT_RULE(waited_untold, "job_wait is OK before the completion was told")                    \
  CALRT_RULE(state_back, "a job's state is none, goes back, or is another than was told")       \
  CALRT_RULE(queue_overrun, "more jobs are accepted than depth and queue allow")                \
  CALRT_RULE(queue_full_early, "QUEUE_FULL while fewer than depth and queue allow are there")   \
  CALRT_RULE(entry_in_completion, "an entry is called inside on_complete")

enum class Rule {
#define CALRT_RULE(name, meaning) name,
  CALRT_VALIDATE_RULES(CALRT_RULE)
#undef CALRT_RULE
};
inline constexpr int kRules = 0
#define CALRT_RULE(name, meaning) +1
    CALRT_VALIDATE_RULES(CALRT_RULE)
#undef CALRT_RULE
    ;

// Takes no configuration: INVALID_ARGUMENT if there is one.
Result<std::shared_ptr<Layer>> make_validate_layer(const std::string& config);

}  // namespace calrt::layers
