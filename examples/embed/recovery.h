// SPDX-License-Identifier: Apache-2.0
// What a server does about an error, by the recovery that calrt's status table names for its code.
#pragma once

#include "base/result.h"

namespace embed {

enum class Action {
  FIX_CALL,        // the caller's mistake: tell whoever called, keep serving
  WAIT_AND_RETRY,  // full or busy: later it will work
  RETRY,           // nothing is damaged, or once again may help: at most once
  SCRUB_LANE,      // the lane's cells are unknown: empty it, then start this request anew
  RELOAD_MODEL,    // the session is broken: unload, load
  REOPEN_DEVICE,   // the device is gone or suspect: close everything, open it again
  GIVE_UP,         // nothing that a program can do: tell the operator
};

// Never fails: a code that calrt does not know counts as a suspect device.
Action action_for(const calrt::Error& error);
// One line for a log: class, code with both numbers, what will be done.
void report(const calrt::Error& error);

}  // namespace embed
