// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/runtime.h"

#include <unistd.h>

#include <mutex>

#include "drivers/calrt076/border.h"

namespace calrt::calrt076 {
namespace {

struct Process {
  std::mutex mutex;  // guards what follows
  uint32_t holders = 0;
  pid_t pid = 0;
};
Process& process() {
  static Process one;
  return one;
}

}  // namespace

Result<Runtime> Runtime::start() {
  Process& here = process();
  std::lock_guard lock(here.mutex);
  if (here.holders != 0 && here.pid != getpid())
    return fail(Status::INVALID_STATE,
                "the SDK was started by process %d, this one is its fork %d: it cannot be used "
                "here; start a new program instead",
                here.pid, getpid());
  if (here.holders == 0) {
    CALRT_TRY(told(sdk::init(), "starting the SDK"));
    here.pid = getpid();
  }
  ++here.holders;
  return Runtime();
}

// A runtime that does not end (a device is open that could not be closed) stays as it is: nothing
// can be done about it, and the next start says so.
Runtime::~Runtime() {
  if (!held_) return;
  Process& here = process();
  std::lock_guard lock(here.mutex);
  if (--here.holders == 0 && here.pid == getpid()) (void)sdk::shutdown();
}

}  // namespace calrt::calrt076
