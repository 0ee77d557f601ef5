/* SPDX-License-Identifier: Apache-2.0
 * null whose transfers stop half-way: tests reach what it does through its exported symbol. */
#ifndef CALRT_TESTS_SHORT_TRANSFER_H
#define CALRT_TESTS_SHORT_TRANSFER_H

#include "calrt/driver.h"

#ifdef __cplusplus
extern "C" {
#endif
typedef struct short_transfer {
  uint64_t most;       /* bytes that one transfer moves */
  uint64_t too_many;   /* added to what it says it moved */
  uint64_t transfers;  /* seen */
  uint64_t old_copies; /* buffer_h2d and buffer_d2h, which nobody should call */
} short_transfer;
CALD_EXPORT short_transfer* short_transfer_state(void);
#ifdef __cplusplus
}
#endif
#endif
