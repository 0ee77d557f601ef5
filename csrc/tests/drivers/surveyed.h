/* SPDX-License-Identifier: Apache-2.0
 * What a test may set and read in the driver "surveyed", found by dlsym("surveyed_state"). */
#ifndef SURVEYED_H
#define SURVEYED_H

#include "calrt/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { /* wrong answers, one at a time */
       SURVEYED_RIGHT = 0,
       SURVEYED_NO_CHIP_LIST,
       SURVEYED_TOO_MANY_CHIPS,
       SURVEYED_SHORT_CHIP,
       SURVEYED_LINK_TO_NOWHERE,
       SURVEYED_ALIGN_3,
       SURVEYED_PADDING_0,
       SURVEYED_DRAINS_TOO_MUCH,
       SURVEYED_NO_SET_HANDLE,
       SURVEYED_SET_REFUSED,
       SURVEYED_LARGE_FOOTPRINT
};

enum { SURVEYED_CLOCK_AHEAD_NS = 1000000000, SURVEYED_RESIDUAL_NS = 250 };

typedef struct surveyed {
  int32_t wrong;
  uint32_t sets_made, sets_alive;
  uint64_t set_bytes; /* bound in the set made last */
  const cald_binding_set* set_of_job;
  uint32_t loads;
} surveyed;
CALD_EXPORT surveyed* surveyed_state(void);

#ifdef __cplusplus
}
#endif
#endif
