// SPDX-License-Identifier: Apache-2.0
// The replay layer: stands around a driver and gives what a record layer's file says instead of
// what the driver does.
//
//   replay:FILE [check]
//
// The nth job whose inputs equal those of recorded jobs comes to what the nth of these came to:
// refused with the same error, or told with the same state, status and outputs, as often, or never.
// The driver runs it all the same, and its end is when the recorded one is told. The nth call of
// any other entry fails as it did then; one that was well is the driver's own.
//
// A divergence is one more in the counter "replay.diverged" and a warning that names the line: a
// job that was not recorded, or more often than it was (the driver's own end stands); outputs that
// were recorded by their SHA-256 alone and are others now; a call that fails and did not then.
// With `check` nothing is changed: whatever differs from the file is a divergence.
//
// Counters: replay.jobs (given from the file, or compared), replay.calls (made to fail),
// replay.diverged, replay.left (recorded jobs not asked for yet).
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "layers/layer.h"

namespace calrt::layers {

Result<std::shared_ptr<Layer>> make_replay_layer(const std::string& config);

}  // namespace calrt::layers
