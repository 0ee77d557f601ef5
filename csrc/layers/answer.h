// SPDX-License-Identifier: Apache-2.0
// A layer answers a call in the driver's place.
#pragma once

#include "layers/layer.h"

namespace calrt::layers {

struct Answer {
  cald_status status = CALD_OK;
  int64_t native = 0;
  bool unmapped = false;
  const char* text = "";
};

// The call's status, and in the caller's error its number, text and entry. A status outside 0-29
// goes out as it is; the error calls it INTERNAL with that native number.
void answer(Call& call, const Answer& with);

// A question of the layer's own to the driver: one that throws has answered INTERNAL, and the
// caller's call is not its victim.
template <class Question>
cald_status ask(Question&& question) noexcept {
  try {
    return question();
  } catch (...) {
    return CALD_INTERNAL;
  }
}

}  // namespace calrt::layers
