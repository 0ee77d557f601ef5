// SPDX-License-Identifier: Apache-2.0
// Submits again while others' jobs fill the session's queue.
#pragma once

#include <chrono>
#include <thread>

#include "calrt/session.h"
#include "engine/reserve.h"

namespace calrt::engine {

// What `submit` answers as soon as it is not QUEUE_FULL: others' jobs end, or are lost, within
// their own deadlines. QUEUE_FULL at `deadline_ns`, and at once on virtual time, which waits for no
// one. CANCELLED when `interrupt` says so.
template <class Submit>
auto submit_patiently(Session& session, uint64_t deadline_ns, const Interrupt& interrupt,
                      Submit&& submit) -> decltype(submit()) {
  constexpr uint64_t kPauseNs = 1'000'000;
  while (true) {
    auto submitted = submit();
    if (submitted.ok() || submitted.error().code != Status::QUEUE_FULL || session.virtual_clock() ||
        session.now_ns() + kPauseNs >= deadline_ns)
      return submitted;
    if (interrupt.asked != nullptr && interrupt.asked(interrupt.user))
      return fail(Status::CANCELLED, "interrupted while the session's queue was full");
    std::this_thread::sleep_for(std::chrono::nanoseconds(kPauseNs));
  }
}

}  // namespace calrt::engine
