// SPDX-License-Identifier: Apache-2.0
// What may enter the plan: checked once at the border, one typed error each. Inside, nothing is
// checked again.
#pragma once

#include <vector>

#include "base/result.h"
#include "engine/plan.h"
#include "engine/runner.h"
#include "engine/step_core.h"

namespace calrt::engine {

// Fewest events the ring must hold so that the largest tick fits beside an end for every lane.
size_t least_events(const std::vector<GraphShape>& graphs, uint32_t lanes);
// The options against the model: every lane must be able to decode.
Result<void> check_options(const RunnerOptions& options, const std::vector<GraphShape>& graphs,
                           uint32_t lanes);
// A request against the model (`vocab`) and its lane. The sampling parameters are the sampler's.
Result<void> check_start(const Start& start, uint32_t vocab, const kv::LaneTable& lanes);

}  // namespace calrt::engine
