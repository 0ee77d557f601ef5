// SPDX-License-Identifier: Apache-2.0
// Binding sets of one graph, reused: a set comes back when its job and every view of it are gone.
#pragma once

#include <cstdint>
#include <memory>

#include "calrt/bounded_pool.h"
#include "calrt/model.h"

namespace calrt::engine {

using BindingPool = BoundedPool<BindingSet>;

inline constexpr uint32_t kMostBindings = 256;  // of a graph, in use at once
inline constexpr uint32_t kIdleBindings = 4;    // kept for reuse

// MODEL_UNLOADED once it is closed.
std::shared_ptr<BindingPool> make_binding_pool(std::shared_ptr<Model> model, uint32_t graph);

}  // namespace calrt::engine
