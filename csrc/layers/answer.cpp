// SPDX-License-Identifier: Apache-2.0
#include "layers/answer.h"

#include <cstddef>
#include <cstdio>

#include "base/status.h"

namespace calrt::layers {

void answer(Call& call, const Answer& with) {
  call.status = with.status;
  cald_error* const error = call.error;
  constexpr size_t kLeast = offsetof(cald_error, where) + sizeof error->where;
  if (error == nullptr || with.status == CALD_OK || error->struct_size < kLeast) return;
  const bool known = with.status > 0 && with.status < kStatusCount;
  error->code = known ? with.status : static_cast<cald_status>(CALD_INTERNAL);
  error->native_code = known ? with.native : with.status;
  std::snprintf(error->message, sizeof error->message, "%s", with.text);
  std::snprintf(error->where, sizeof error->where, "%s", entry_name(call.entry));
  if (offsetof(cald_error, flags) + sizeof error->flags <= error->struct_size)
    error->flags = !known || with.unmapped ? CALD_ERROR_UNMAPPED : 0;
}

}  // namespace calrt::layers
