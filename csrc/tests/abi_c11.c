/* SPDX-License-Identifier: Apache-2.0
 * driver.h as a C compiler sees it: the sizes must be those that C++ sees. */
#include "calrt/driver.h"
#include "tests/abi_sizes.h"

const size_t abi_sizes_in_c[] = {ABI_STRUCTS(ABI_SIZE)};
const size_t abi_count_in_c = sizeof abi_sizes_in_c / sizeof abi_sizes_in_c[0];

/* Frozen by name and number: C and C++ agree on the constants, too. */
const int abi_last_status_in_c = CALD_INTERNAL;
