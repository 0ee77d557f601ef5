/* SPDX-License-Identifier: Apache-2.0
 * A vendor's status numbers in calrt's words, for drivers. The table is made of status-map.toml at
 * build time: calrt_status_map(TARGET FILE) in CMake gives the target a `cald_status_map_rows.h`
 * with one `static const cald_status_map cald_native_map`. docs/abi.md has the format.
 *
 * A number without a row, or with the row UNKNOWN, is not guessed at: it is INTERNAL and marked
 * CALD_ERROR_UNMAPPED, and calrt takes the status class of the entry that answered it. */
#ifndef CALRT_STATUS_MAP_H
#define CALRT_STATUS_MAP_H

#include "calrt/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CALD_STATUS_UNKNOWN (-1) /* the vendor has the number, what it means is not known */

typedef struct cald_status_row {
  int64_t native_code;
  cald_status status; /* canonical, or CALD_STATUS_UNKNOWN */
  int32_t level;      /* evidence: 0 proven, 1 declared, 2 built, 3 needs the vendor, 4 no */
  const char* note;   /* what the row rests on */
} cald_status_row;

typedef struct cald_status_map {
  const cald_status_row* rows; /* by rising native_code, each once */
  uint32_t n_rows;
} cald_status_map;

/* The row of a number, NULL if there is none. */
static inline const cald_status_row* cald_status_find(const cald_status_map* map,
                                                      int64_t native_code) {
  uint32_t low = 0, high = map->n_rows;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (map->rows[middle].native_code < native_code)
      low = middle + 1;
    else
      high = middle;
  }
  return low < map->n_rows && map->rows[low].native_code == native_code ? &map->rows[low] : NULL;
}

/* The canonical status of a number; *flags (may be NULL) gets CALD_ERROR_UNMAPPED or 0. */
static inline cald_status cald_status_of(const cald_status_map* map, int64_t native_code,
                                         uint32_t* flags) {
  const cald_status_row* row = cald_status_find(map, native_code);
  const int known = row != NULL && row->status != CALD_STATUS_UNKNOWN;
  if (flags != NULL) *flags = known ? 0u : (uint32_t)CALD_ERROR_UNMAPPED;
  return known ? row->status : (cald_status)CALD_INTERNAL;
}

static inline void cald_status_text(char* out, size_t room, const char* text) {
  size_t i = 0;
  for (; text != NULL && text[i] != '\0' && i + 1 < room; ++i) out[i] = text[i];
  out[i] = '\0';
}

/* Ends an entry whose vendor call answered `native_code`: fills the caller's `err` (may be NULL)
 * and gives what the entry returns, CALD_OK for a number that is mapped to it. `message` may be
 * NULL: then the row's note stands for it. */
static inline cald_status cald_status_fail(const cald_status_map* map, int64_t native_code,
                                           const char* where, const char* message,
                                           cald_error* err) {
  uint32_t flags = 0;
  const cald_status status = cald_status_of(map, native_code, &flags);
  if (err == NULL || status == CALD_OK) return status;
  if (message == NULL) {
    const cald_status_row* row = cald_status_find(map, native_code);
    if (row != NULL) message = row->note;
  }
  err->code = status;
  err->native_code = native_code;
  cald_status_text(err->message, sizeof err->message, message);
  cald_status_text(err->where, sizeof err->where, where);
  if (err->struct_size >= offsetof(cald_error, flags) + sizeof err->flags) err->flags = flags;
  return status;
}

/* The same for a job: status, native_code and flags of a completion the driver made. */
static inline void cald_status_complete(const cald_status_map* map, int64_t native_code,
                                        cald_completion* completion) {
  completion->status = cald_status_of(map, native_code, &completion->flags);
  completion->native_code = native_code;
}

#ifdef __cplusplus
}
#endif
#endif /* CALRT_STATUS_MAP_H */
