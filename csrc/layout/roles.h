// SPDX-License-Identifier: Apache-2.0
// The names of a graph's roles, in one table. Header only, so that drivers need no symbol of
// libcalrt.
#pragma once

#include <cstdint>
#include <string_view>

#include "calrt/driver.h"

namespace calrt {

struct RoleRow {
  const char* name;
  int32_t role;
};
inline constexpr RoleRow kRoles[] = {
    {"tokens", CALD_ROLE_TOKENS}, {"positions", CALD_ROLE_POSITIONS},
    {"lanes", CALD_ROLE_LANES},   {"n_valid", CALD_ROLE_N_VALID},
    {"mask", CALD_ROLE_MASK},     {"logit_rows", CALD_ROLE_LOGIT_ROWS},
    {"logits", CALD_ROLE_LOGITS},
};

// "tokens"; "?" for an unknown role.
inline const char* role_name(int32_t role) {
  for (const RoleRow& row : kRoles) {
    if (role == row.role) return row.name;
  }
  return "?";
}

// 0 for an unknown name.
inline int32_t role_from_name(std::string_view name) {
  for (const RoleRow& row : kRoles) {
    if (name == row.name) return row.role;
  }
  return 0;
}

}  // namespace calrt
