/* SPDX-License-Identifier: Apache-2.0
 * An ABI of the future, minor 10: today's structs with fields and entries appended, as the rule of
 * driver.h allows. A struct that begins with today's is laid out like one with more fields. */
#pragma once

#include "calrt/driver.h"

#define NEWER_ABI_VERSION (((uint32_t)CALD_ABI_MAJOR << 16) | 10)

typedef struct newer_host {
  cald_host host;
  void (*newer)(void* user);
} newer_host;

typedef struct newer_device_info {
  cald_device_info info;
  uint64_t newer;
} newer_device_info;

typedef struct newer_completion {
  cald_completion completion;
  uint64_t newer[4];
} newer_completion;

typedef struct newer_driver_table {
  cald_driver_table table;
  cald_status (*newer)(cald_device* device, cald_error* err);
} newer_driver_table;
