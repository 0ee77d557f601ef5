// SPDX-License-Identifier: Apache-2.0
// What a call's arguments can get wrong by themselves: NULL, too short, or a handle that is none.
#pragma once

#include <optional>

#include "layers/validate_handles.h"

namespace calrt::layers {

// The first thing that is wrong, or none. `handles` is read only.
std::optional<Refusal> check_arguments(const Call& call, const HandleTable& handles);

// The buffers that a job, a KV operation or a binding set is to use, as the call names them. The
// arguments have been checked.
std::vector<const cald_buffer*> buffers_of(const cald_binding* bindings, uint32_t n);

}  // namespace calrt::layers
