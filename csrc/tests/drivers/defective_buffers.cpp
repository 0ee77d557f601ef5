// SPDX-License-Identifier: Apache-2.0
// Defects of buffers and copies.
#include <algorithm>
#include <map>

#include "drivers/mock/buffer.h"
#include "tests/drivers/defective.h"

namespace calrt::defective {
namespace {

cald_buffer* made_last = nullptr;
std::map<const cald_buffer*, std::vector<unsigned char>> mapped;
std::map<const cald_buffer*, int> looks;  // of late_write

cald_status buffer_rules(cald_device* device, uint32_t domain, cald_buffer_rules* out,
                         cald_error* err) {
  const cald_status status = mock().buffer_rules(device, domain, out, err);
  if (is("understates_max_bytes") && status == CALD_OK) out->max_bytes = 4096;
  return status;
}

cald_status buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                         cald_buffer** out, cald_error* err) {
  if (is("ignores_align")) align = 64;
  if (is("takes_any_domain")) domain = CALD_DOMAIN_HOST;
  if (is("size_wraps")) bytes &= 0xFFFF;
  const cald_status status = mock().buffer_alloc(device, domain, bytes, align, out, err);
  if (status != CALD_OK) return status;
  if (is("dirty_buffer")) (*out)->data[bytes - 1] = 0xAA;
  made_last = *out;
  return status;
}

void buffer_free(cald_buffer* buffer) {
  if (made_last == buffer) made_last = nullptr;
  mapped.erase(buffer);
  looks.erase(buffer);
  mock().buffer_free(buffer);
}

cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  const cald_status status = mock().buffer_map(buffer, out, err);
  if (status != CALD_OK || !is("map_is_a_copy")) return status;
  auto& copy = mapped[buffer];
  if (copy.empty()) copy.assign(buffer->data, buffer->data + buffer->bytes);
  *out = copy.data();
  return status;
}

cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* err) {
  if (is("offset_wraps") && !buffer->holds(offset, bytes) && offset + bytes <= buffer->bytes)
    return CALD_OK;
  if (is("copies_what_fits") && offset < buffer->bytes && !buffer->holds(offset, bytes))
    (void)mock().buffer_h2d(buffer, offset, src, buffer->bytes - offset, err);
  if (is("loses_last_byte") && bytes > 1) --bytes;
  looks[buffer] = 0;
  const cald_status status = mock().buffer_h2d(buffer, offset, src, bytes, err);
  if (is("buffers_overlap") && status == CALD_OK && made_last != nullptr && made_last != buffer)
    std::memcpy(made_last->data, src, std::min({bytes, made_last->bytes, uint64_t{1}}));
  return status;
}

cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* err) {
  // A write that comes late shows when somebody looks a second time.
  if (is("late_write") && ++looks[buffer] == 3 && buffer->bytes > 700) buffer->data[600] ^= 1;
  if (is("copies_from_0") && buffer->holds(offset, bytes)) offset = 0;
  return mock().buffer_d2h(buffer, offset, dst, bytes, err);
}

cald_status buffer_transfer(cald_transfer* transfer, cald_error* err) {
  if (is("any_direction") && transfer->direction != CALD_TO_DEVICE)
    transfer->direction = CALD_TO_HOST;
  const cald_status status = mock().buffer_transfer(transfer, err);
  if (is("moved_is_0")) transfer->moved = 0;
  if (is("refused_moved") && status != CALD_OK) transfer->moved = transfer->bytes;
  return status;
}

cald_status buffer_state(cald_buffer* buffer, cald_buffer_state* out, cald_error* err) {
  const cald_status status = mock().buffer_state(buffer, out, err);
  if (status != CALD_OK) return status;
  if (is("new_buffer_ready") && out->job_seq == 0) out->state = CALD_BUFFER_READY;
  if (is("buffer_stays_busy") && out->state == CALD_BUFFER_READY) out->state = CALD_BUFFER_BUSY;
  if (is("failed_buffer_ready") && out->state == CALD_BUFFER_IDLE && out->job_seq != 0)
    out->state = CALD_BUFFER_READY;
  return status;
}

}  // namespace

void wrap_buffers(cald_driver_table* table) {
  table->buffer_rules = buffer_rules;
  table->buffer_alloc = buffer_alloc;
  table->buffer_free = buffer_free;
  table->buffer_map = buffer_map;
  table->buffer_h2d = buffer_h2d;
  table->buffer_d2h = buffer_d2h;
  table->buffer_transfer = buffer_transfer;
  table->buffer_state = buffer_state;
}

}  // namespace calrt::defective
