// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/buffer.h"

namespace calrt::calrt076 {
namespace {

using ull = unsigned long long;
constexpr uint64_t kLargestAlign = uint64_t{1} << 21, kLargestBuffer = uint64_t{1} << 40;

}  // namespace

Result<void> check_domain(uint32_t domain) {
  if (domain == CALD_DOMAIN_HOST) return {};
  return fail(Status::UNSUPPORTED, "memory domain %u: calrt076 has host memory (%d) only", domain,
              CALD_DOMAIN_HOST);
}

Result<void> check_extent(const cald_buffer* buffer, uint64_t offset, uint64_t bytes) {
  CALRT_TRY(check_handle(buffer, "buffer"));
  if (bytes > buffer->bytes || offset > buffer->bytes - bytes)
    return fail(Status::OUT_OF_RANGE, "%llu bytes at %llu: the buffer has %llu",
                static_cast<ull>(bytes), static_cast<ull>(offset), static_cast<ull>(buffer->bytes));
  return {};
}

Result<cald_buffer*> alloc_buffer(cald_device* device, uint64_t bytes, uint64_t align) {
  if (align == 0 || (align & (align - 1)) != 0 || align > kLargestAlign)
    return fail(Status::INVALID_ARGUMENT, "align=%llu: a power of two up to %llu expected",
                static_cast<ull>(align), static_cast<ull>(kLargestAlign));
  if (bytes == 0 || bytes > kLargestBuffer)
    return fail(Status::OUT_OF_RANGE, "bytes=%llu: 1 to %llu expected", static_cast<ull>(bytes),
                static_cast<ull>(kLargestBuffer));
  const cald_host* host = device->driver->host;
  auto buffer = std::make_unique<cald_buffer>();
  buffer->data =
      static_cast<unsigned char*>(host->alloc(host->user, bytes, std::max(align, kLeastAlign)));
  if (buffer->data == nullptr)
    return fail(Status::OUT_OF_HOST_MEMORY, "%llu bytes for a buffer: the host has no memory left",
                static_cast<ull>(bytes));
  std::memset(buffer->data, 0, bytes);  // another tenant's data must never show
  buffer->device = device;
  buffer->bytes = bytes;
  return buffer.release();
}

void free_buffer(cald_buffer* buffer) {
  if (buffer == nullptr) return;
  const cald_host* host = buffer->device->driver->host;
  host->free(host->user, buffer->data);
  delete buffer;
}

void describe_rules(cald_buffer_rules* out) {
  cald_buffer_rules rules{};
  rules.domain = CALD_DOMAIN_HOST;
  rules.align = kLeastAlign;
  rules.padding = 1;
  rules.max_bytes = kLargestBuffer;
  answer(out, rules);
}

Result<void> transfer(cald_transfer* transfer) {
  CALRT_TRY(check_struct(transfer, "transfer"));
  transfer->moved = 0;
  CALRT_TRY(check_extent(transfer->buffer, transfer->offset, transfer->bytes));
  if (transfer->direction != CALD_TO_DEVICE && transfer->direction != CALD_TO_HOST)
    return fail(Status::INVALID_ARGUMENT, "direction=%d: %d or %d expected", transfer->direction,
                CALD_TO_DEVICE, CALD_TO_HOST);
  if (transfer->host == nullptr && transfer->bytes != 0)
    return fail(Status::INVALID_ARGUMENT, "host is null for %llu bytes",
                static_cast<ull>(transfer->bytes));
  unsigned char* at = transfer->buffer->data + transfer->offset;
  if (transfer->bytes != 0) {
    if (transfer->direction == CALD_TO_DEVICE)
      std::memcpy(at, transfer->host, transfer->bytes);
    else
      std::memcpy(transfer->host, at, transfer->bytes);
  }
  transfer->moved = transfer->bytes;
  return {};
}

void describe_state(cald_buffer* buffer, cald_buffer_state* out) {
  cald_buffer_state state{};
  {
    std::lock_guard lock(buffer->mutex);
    state.state = buffer->state;
    state.job_seq = buffer->job_seq;
  }
  answer(out, state);
}

}  // namespace calrt::calrt076

void cald_buffer::stand(int32_t now, uint64_t seq) {
  std::lock_guard lock(mutex);
  state = now;
  job_seq = seq;
}
