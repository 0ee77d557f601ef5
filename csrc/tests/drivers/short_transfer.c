/* SPDX-License-Identifier: Apache-2.0
 * null whose transfers stop half-way and answer OK, as a DMA engine may. */
#include "tests/drivers/short_transfer.h"

cald_status null_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out);

static cald_driver_table table;
static const cald_driver_table* null_table;
static short_transfer state = {UINT64_MAX, 0, 0, 0};

short_transfer* short_transfer_state(void) { return &state; }

static cald_status buffer_transfer(cald_transfer* transfer, cald_error* err) {
  ++state.transfers;
  cald_transfer part = *transfer;
  if (part.bytes > state.most) part.bytes = state.most;
  const cald_status answered = null_table->buffer_transfer(&part, err);
  transfer->moved = part.moved + state.too_many;
  return answered;
}

static cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                              cald_error* err) {
  ++state.old_copies;
  return null_table->buffer_h2d(buffer, offset, src, bytes, err);
}

static cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                              cald_error* err) {
  ++state.old_copies;
  return null_table->buffer_d2h(buffer, offset, dst, bytes, err);
}

cald_status cald_driver_entry(const cald_host* host, uint32_t abi_requested,
                              const cald_driver_table** out) {
  const cald_status answered = null_driver_entry(host, abi_requested, &null_table);
  if (answered != CALD_OK) return answered;
  table = *null_table;
  table.name = "short_transfer";
  table.buffer_transfer = buffer_transfer;
  table.buffer_h2d = buffer_h2d;
  table.buffer_d2h = buffer_d2h;
  *out = &table;
  return CALD_OK;
}
