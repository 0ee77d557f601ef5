// SPDX-License-Identifier: Apache-2.0
#include "drivers/mock/buffer.h"

#include <chrono>
#include <thread>

cald_buffer::~cald_buffer() {
  if (data == nullptr) return;
  const cald_host& host = *device->driver->host;
  host.free(host.user, data);
  if (domain == CALD_DOMAIN_DEVICE) device->give_back(bytes);
}

namespace calrt::mock {
namespace {

constexpr uint64_t kAlign = 64, kPadding = 64, kMostAlign = uint64_t{1} << 21;
constexpr uint64_t kMostBytes = uint64_t{1} << 48;

}  // namespace

Result<cald_buffer_rules> rules_of(const cald_device& device, uint32_t domain) {
  const uint32_t known = device.preset->domains;
  if (domain == 0 || (domain & (domain - 1)) != 0 || (domain & known) == 0)
    return fail(Status::UNSUPPORTED, "memory domain %u: %s has the domains %#x, one at a time",
                domain, device.preset->device_class, known);
  cald_buffer_rules rules{};
  rules.domain = domain;
  rules.align = kAlign;
  rules.padding = kPadding;
  rules.max_bytes = domain == CALD_DOMAIN_DEVICE ? device.settings.memory_bytes : kMostBytes;
  return rules;
}

Result<std::unique_ptr<cald_buffer>> make_buffer(cald_device* device, uint32_t domain,
                                                 uint64_t bytes, uint64_t align) {
  CALRT_TRY(rules_of(*device, domain));
  if (align == 0 || (align & (align - 1)) != 0 || align > kMostAlign)
    return fail(Status::INVALID_ARGUMENT, "align=%llu: a power of two up to %llu expected",
                static_cast<ull>(align), static_cast<ull>(kMostAlign));
  if (bytes == 0 || bytes > kMostBytes)
    return fail(Status::OUT_OF_RANGE, "bytes=%llu: 1 to 2^48 expected", static_cast<ull>(bytes));
  const uint64_t step = std::max(align, kAlign);
  const uint64_t rounded = (bytes + step - 1) / step * step;
  auto buffer = std::make_unique<cald_buffer>();
  buffer->device = device;
  if (domain == CALD_DOMAIN_DEVICE) CALRT_TRY(device->charge(bytes, "the buffer"));
  // Of the host's memory, which it may share with other processes.
  const cald_host& host = *device->driver->host;
  buffer->data = static_cast<unsigned char*>(host.alloc(host.user, rounded, step));
  if (buffer->data == nullptr) {
    if (domain == CALD_DOMAIN_DEVICE) device->give_back(bytes);
    return fail(Status::OUT_OF_HOST_MEMORY,
                "%llu bytes for a buffer: the system has no memory left", static_cast<ull>(bytes));
  }
  std::memset(buffer->data, 0, rounded);
  buffer->bytes = bytes;
  buffer->domain = domain;
  return buffer;
}

Result<void*> map_buffer(cald_buffer& buffer) {
  if (buffer.domain == CALD_DOMAIN_DEVICE)
    return fail(Status::UNSUPPORTED, "a buffer in device memory has no address on the host");
  return static_cast<void*>(buffer.data);
}

Result<void> transfer(cald_transfer* what) {
  what->moved = 0;
  CALRT_TRY(check_handle(what->buffer, "buffer"));
  cald_buffer& buffer = *what->buffer;
  if (!buffer.holds(what->offset, what->bytes))
    return fail(Status::OUT_OF_RANGE, "%llu bytes at %llu: the buffer has %llu",
                static_cast<ull>(what->bytes), static_cast<ull>(what->offset),
                static_cast<ull>(buffer.bytes));
  const bool in = what->direction == CALD_TO_DEVICE;
  if (!in && what->direction != CALD_TO_HOST)
    return fail(Status::INVALID_ARGUMENT, "direction=%d: %d or %d expected", what->direction,
                CALD_TO_DEVICE, CALD_TO_HOST);
  if (what->bytes != 0 && what->host == nullptr)
    return fail(Status::INVALID_ARGUMENT, "host is null, %llu bytes are to be moved",
                static_cast<ull>(what->bytes));
  if (what->bytes == 0) return {};
  unsigned char* at = buffer.data + what->offset;
  if (in)
    std::memcpy(at, what->host, what->bytes);
  else
    std::memcpy(what->host, at, what->bytes);
  what->moved = what->bytes;

  cald_device& device = *buffer.device;
  (in ? device.counters.h2d_bytes : device.counters.d2h_bytes) += what->bytes;
  if (buffer.domain != CALD_DOMAIN_DEVICE) return {};
  const Timing& timing = device.preset->timing;
  const uint64_t ns = device.scaled((in ? timing.to_device : timing.to_host).ns(what->bytes));
  device.counters.transfer_ns += ns;
  if (!device.settings.virtual_clock && ns != 0)
    std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
  return {};
}

cald_buffer_state state_of(const cald_buffer& buffer) {
  const uint64_t both = buffer.output_state.load(std::memory_order_acquire);
  cald_buffer_state state{};
  state.state = static_cast<int32_t>(both & 3);
  state.job_seq = both >> 2;
  return state;
}

}  // namespace calrt::mock
