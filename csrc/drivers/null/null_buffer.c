/* SPDX-License-Identifier: Apache-2.0
 * null's buffers: host memory, copied to and from by the host. */
#include <string.h>

#include "null_driver.h"

/* Asked before buffers are made; the same must be right for buffer_alloc. A device that maps pages
 * says 4096 here, one that reads whole vectors says so in `padding`. */
cald_status null_buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                              cald_error* err) {
  (void)device;
  if (domain != CALD_DOMAIN_HOST)
    return null_fail(err, CALD_UNSUPPORTED, "buffer_rules", "domain %u: null has host memory (%u)",
                     domain, CALD_DOMAIN_HOST);
  const cald_buffer_rules rules = {
      .struct_size = sizeof rules,
      .domain = domain,
      .align = 64,
      .padding = 1,   /* any size will do */
      .max_bytes = 0, /* no limit but memory */
  };
  null_answer(out, &rules, sizeof rules);
  return CALD_OK;
}

cald_status null_buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                              cald_buffer** out, cald_error* err) {
  if (domain != CALD_DOMAIN_HOST)
    return null_fail(err, CALD_UNSUPPORTED, "buffer_alloc", "domain %u: null has host memory (%u)",
                     domain, CALD_DOMAIN_HOST);
  const cald_host* host = device->driver->host;
  cald_buffer* buffer = null_alloc(device, sizeof *buffer);
  void* data = host->alloc(host->user, bytes, align);
  if (buffer == NULL || data == NULL) {
    host->free(host->user, data);
    host->free(host->user, buffer);
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "buffer_alloc", "no %llu bytes of host memory",
                     (unsigned long long)bytes);
  }
  memset(data, 0, bytes); /* another tenant's data must never show */
  buffer->device = device;
  buffer->data = data;
  buffer->bytes = bytes;
  buffer->domain = domain;
  *out = buffer;
  return CALD_OK;
}

void null_buffer_free(cald_buffer* buffer) {
  if (buffer == NULL) return;
  null_free(buffer->device, buffer->data);
  null_free(buffer->device, buffer);
}

/* Only for memory the host can address; UNSUPPORTED for a device domain. */
cald_status null_buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  (void)err;
  *out = buffer->data;
  return CALD_OK;
}

static int inside(const cald_buffer* buffer, uint64_t offset, uint64_t bytes) {
  return offset <= buffer->bytes && bytes <= buffer->bytes - offset; /* cannot overflow */
}

/* The one way to move bytes. `moved` is what truly arrived: a DMA that stopped half-way answers OK
 * and says how far it came, or its error; calrt makes a TRANSFER_FAULT of a short one. */
cald_status null_buffer_transfer(cald_transfer* transfer, cald_error* err) {
  const cald_buffer* buffer = transfer->buffer;
  transfer->moved = 0;
  if (!inside(buffer, transfer->offset, transfer->bytes))
    return null_fail(err, CALD_OUT_OF_RANGE, "buffer_transfer",
                     "%llu bytes at %llu of a buffer of %llu", (unsigned long long)transfer->bytes,
                     (unsigned long long)transfer->offset, (unsigned long long)buffer->bytes);
  char* at = (char*)buffer->data + transfer->offset;
  if (transfer->direction == CALD_TO_DEVICE)
    memcpy(at, transfer->host, transfer->bytes);
  else if (transfer->direction == CALD_TO_HOST)
    memcpy(transfer->host, at, transfer->bytes);
  else
    return null_fail(err, CALD_INVALID_ARGUMENT, "buffer_transfer",
                     "direction %d: %d (to the device) or %d (to the host) is due",
                     transfer->direction, CALD_TO_DEVICE, CALD_TO_HOST);
  transfer->moved = transfer->bytes;
  return CALD_OK;
}

/* Older than buffer_transfer and still required: what an older calrt calls. */
cald_status null_buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                            cald_error* err) {
  cald_transfer transfer = {.struct_size = sizeof transfer,
                            .direction = CALD_TO_DEVICE,
                            .buffer = buffer,
                            .offset = offset,
                            .host = (void*)src,
                            .bytes = bytes};
  return null_buffer_transfer(&transfer, err);
}

cald_status null_buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                            cald_error* err) {
  cald_transfer transfer = {.struct_size = sizeof transfer,
                            .direction = CALD_TO_HOST,
                            .buffer = buffer,
                            .offset = offset,
                            .host = dst,
                            .bytes = bytes};
  return null_buffer_transfer(&transfer, err);
}

/* Jobs of null end inside submit, so nobody ever sees QUEUED or BUSY. */
cald_status null_buffer_state(cald_buffer* buffer, cald_buffer_state* out, cald_error* err) {
  (void)err;
  const uint64_t job_seq = atomic_load_explicit(&buffer->written_by, memory_order_relaxed);
  const cald_buffer_state state = {
      .struct_size = sizeof state,
      .state = job_seq != 0 ? CALD_BUFFER_READY : CALD_BUFFER_IDLE,
      .job_seq = job_seq,
  };
  null_answer(out, &state, sizeof state);
  return CALD_OK;
}

cald_status null_check_bindings(const cald_device* device, const cald_binding* bindings,
                                uint32_t n_bindings, const char* where, cald_error* err) {
  for (uint32_t i = 0; i < n_bindings; ++i) {
    const cald_binding* binding = &bindings[i];
    if (binding->buffer->device != device)
      return null_fail(err, CALD_INVALID_HANDLE, where, "role %d: the buffer is another device's",
                       binding->role);
    if (!inside(binding->buffer, binding->offset, binding->bytes))
      return null_fail(err, CALD_OUT_OF_RANGE, where,
                       "role %d: %llu bytes at %llu of a buffer of %llu", binding->role,
                       (unsigned long long)binding->bytes, (unsigned long long)binding->offset,
                       (unsigned long long)binding->buffer->bytes);
  }
  return CALD_OK;
}
