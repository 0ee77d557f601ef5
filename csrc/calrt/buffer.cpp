// SPDX-License-Identifier: Apache-2.0
#include "calrt/buffer.h"

#include "calrt/device.h"

namespace calrt {
namespace {

constexpr uint64_t kMaxBufferBytes = uint64_t{1} << 48;
constexpr uint32_t kHostDomains = CALD_DOMAIN_HOST | CALD_DOMAIN_HOST_PINNED | CALD_DOMAIN_SHARED;

}  // namespace

Result<std::shared_ptr<Buffer>> Device::alloc(uint64_t bytes, uint32_t domain, uint64_t align) {
  CALRT_TRY(check_open());
  if (bytes == 0 || bytes > kMaxBufferBytes)
    return fail(Status::OUT_OF_RANGE, "alloc: %llu bytes is outside 1 to 2^48",
                (unsigned long long)bytes);
  if (domain == 0 || (domain & (domain - 1)) != 0)
    return fail(Status::INVALID_ARGUMENT, "alloc: domain %#x is not exactly one domain", domain);
  if (align == 0 || (align & (align - 1)) != 0)
    return fail(Status::INVALID_ARGUMENT, "alloc: align %llu is not a power of two",
                (unsigned long long)align);
  std::shared_ptr<Buffer> buffer(new Buffer);
  buffer->device_ = shared_from_this();
  buffer->bytes_ = bytes;
  buffer->domain_ = domain;
  cald_buffer* handle_out = nullptr;
  CALRT_TRY(call_alone("buffer_alloc", [&](cald_error* detail) {
    return table().buffer_alloc(handle(), domain, bytes, align, &handle_out, detail);
  }));
  if (handle_out == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "buffer_alloc"};
  buffer->handle_ = BufferHandle({handle_out, &table()});
  const auto map = CALRT_DRIVER_ENTRY(table(), buffer_map);
  if (map != nullptr && (domain & kHostDomains) != 0) {
    CALRT_TRY(call_driver(
        "buffer_map", [&](cald_error* detail) { return map(handle_out, &buffer->data_, detail); }));
  }
  return buffer;
}

Result<void> Buffer::write(uint64_t offset, const void* src, uint64_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset)
    return fail(Status::OUT_OF_RANGE, "buffer write of %llu bytes at %llu: the buffer has %llu",
                (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)bytes_);
  if (bytes == 0) return {};
  const std::scoped_lock lock(mutex_);
  return call_driver("buffer_h2d", [&](cald_error* detail) {
    return device_->table().buffer_h2d(handle(), offset, src, bytes, detail);
  });
}

Result<void> Buffer::read(uint64_t offset, void* dst, uint64_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset)
    return fail(Status::OUT_OF_RANGE, "buffer read of %llu bytes at %llu: the buffer has %llu",
                (unsigned long long)bytes, (unsigned long long)offset, (unsigned long long)bytes_);
  if (bytes == 0) return {};
  const std::scoped_lock lock(mutex_);
  return call_driver("buffer_d2h", [&](cald_error* detail) {
    return device_->table().buffer_d2h(handle(), offset, dst, bytes, detail);
  });
}

}  // namespace calrt
