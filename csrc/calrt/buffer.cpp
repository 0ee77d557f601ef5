// SPDX-License-Identifier: Apache-2.0
#include "calrt/buffer.h"

#include <algorithm>

#include "base/copied_bytes.h"
#include "calrt/device.h"

namespace calrt {
namespace {

constexpr uint64_t kMaxBufferBytes = uint64_t{1} << 48;
constexpr uint32_t kHostDomains = CALD_DOMAIN_HOST | CALD_DOMAIN_HOST_PINNED | CALD_DOMAIN_SHARED;

using ull = unsigned long long;

bool is_power_of_two(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

}  // namespace

const char* domain_name(uint32_t domain) {
  switch (domain) {
    case CALD_DOMAIN_HOST:
      return "host";
    case CALD_DOMAIN_HOST_PINNED:
      return "host_pinned";
    case CALD_DOMAIN_DEVICE:
      return "device";
    case CALD_DOMAIN_SHARED:
      return "shared";
    default:
      return "unknown";
  }
}

std::string domains_text(uint32_t domains) {
  if (domains == 0) return "none";
  std::string text;
  for (uint32_t bit = 1; bit != 0; bit <<= 1)
    if ((domains & bit) != 0) text += (text.empty() ? "" : " or ") + std::string(domain_name(bit));
  return text;
}

LoanState loan_state_of(const BindingUse& use) {
  const uint64_t now = use.load(std::memory_order_acquire);
  return now == 0                ? LoanState::LEASED
         : (now & kLostUse) != 0 ? LoanState::QUARANTINED
                                 : LoanState::IN_FLIGHT;
}

Result<BufferPlan> Device::plan_buffer(uint64_t bytes, uint32_t domain, uint64_t align) {
  if (bytes == 0 || bytes > kMaxBufferBytes)
    return fail(Status::OUT_OF_RANGE, "nbytes=%llu is outside 1..2^48", (ull)bytes);
  if (!is_power_of_two(domain))
    return fail(Status::INVALID_ARGUMENT, "domain=%s is not exactly one domain",
                domains_text(domain).c_str());
  if (!is_power_of_two(align))
    return fail(Status::INVALID_ARGUMENT, "align=%llu is not a power of two", (ull)align);
  CALRT_TRY_ASSIGN(const BufferRules rules, buffer_rules(domain));
  const uint64_t rest = bytes % rules.padding;
  const uint64_t more = rest == 0 ? 0 : rules.padding - rest;
  const uint64_t most = rules.max_bytes == 0 ? kMaxBufferBytes : rules.max_bytes;
  if (more > most || bytes > most - more)
    return fail(
        Status::OUT_OF_RANGE,
        "nbytes=%llu, padded to a multiple of %llu, are more than the %llu that one buffer of "
        "domain %s may have",
        (ull)bytes, (ull)rules.padding, (ull)most, domains_text(domain).c_str());
  return BufferPlan{bytes, bytes + more, domain, std::max(align, rules.align)};
}

Result<std::unique_ptr<Buffer>> Device::make_buffer(const BufferPlan& plan, BufferPurpose purpose) {
  CALRT_TRY(check_open());
  std::unique_ptr<Buffer> buffer(new Buffer);
  buffer->bytes_ = plan.bytes;
  buffer->allocated_bytes_ = plan.allocated_bytes;
  buffer->align_ = plan.align;
  buffer->domain_ = plan.domain;
  buffer->purpose_ = std::move(purpose);
  buffer->transfer_ = CALRT_DRIVER_ENTRY(table(), buffer_transfer);
  cald_buffer* made = nullptr;
  CALRT_TRY(call_alone("buffer_alloc", [&](cald_error* detail) {
    return table().buffer_alloc(handle(), plan.domain, plan.allocated_bytes, plan.align, &made,
                                detail);
  }));
  if (made == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "buffer_alloc"};
  buffer->device_ = shared_from_this();
  buffer->handle_ = BufferHandle({made, &table()});
  const auto map = CALRT_DRIVER_ENTRY(table(), buffer_map);
  if (map != nullptr && (plan.domain & kHostDomains) != 0) {
    const auto mapped = call_driver(
        "buffer_map", [&](cald_error* detail) { return map(made, &buffer->data_, detail); });
    if (!mapped.ok()) {  // memory without an address is read and written by copies
      if (mapped.error().code != Status::UNSUPPORTED) return mapped.error();
      buffer->data_ = nullptr;
    }
    if (reinterpret_cast<uintptr_t>(buffer->data_) % plan.align != 0)
      return Error{Status::INTERNAL, 0,
                   "the driver maps a buffer at an address that is no multiple of " +
                       std::to_string(plan.align),
                   "buffer_map"};
  }
  const std::scoped_lock lock(buffers_mutex_);
  buffers_.insert(buffer.get());
  return buffer;
}

Result<std::shared_ptr<Buffer>> Device::alloc(uint64_t bytes, uint32_t domain, uint64_t align,
                                              BufferPurpose purpose) {
  CALRT_TRY(check_open());
  CALRT_TRY_ASSIGN(const BufferPlan plan, plan_buffer(bytes, domain, align));
  CALRT_TRY_ASSIGN(std::unique_ptr<Buffer> buffer, make_buffer(plan, std::move(purpose)));
  return std::shared_ptr<Buffer>(std::move(buffer));
}

ExportCensus Device::exports(uint64_t generation) const {
  ExportCensus census;
  const std::scoped_lock lock(buffers_mutex_);
  for (const Buffer* buffer : buffers_)
    if (generation == 0 || buffer->purpose().generation == generation) census.add(*buffer);
  return census;
}

Buffer::~Buffer() {
  if (device_ == nullptr) return;  // it was never made
  const std::scoped_lock lock(device_->buffers_mutex_);
  device_->buffers_.erase(this);
}

Result<void> Buffer::write(uint64_t offset, const void* src, uint64_t bytes) {
  return move(CALD_TO_DEVICE, offset, const_cast<void*>(src), bytes);  // only read, by the ABI
}

Result<void> Buffer::read(uint64_t offset, void* dst, uint64_t bytes) const {
  return move(CALD_TO_HOST, offset, dst, bytes);
}

Result<void> Buffer::move(int32_t direction, uint64_t offset, void* host, uint64_t bytes) const {
  const char* what = direction == CALD_TO_DEVICE ? "write" : "read";
  if (offset > bytes_ || bytes > bytes_ - offset)
    return fail(Status::OUT_OF_RANGE, "buffer %s of %llu bytes at %llu: the buffer has %llu", what,
                (ull)bytes, (ull)offset, (ull)bytes_);
  if (bytes == 0) return {};
  if (handle_.get().inherited()) return device_->check_open();  // it is another process's
  const cald_driver_table& table = device_->table();
  uint64_t moved = bytes;  // without buffer_transfer the driver cannot tell
  {
    const std::scoped_lock lock(mutex_);
    if (transfer_ != nullptr) {
      cald_transfer transfer{};
      transfer.struct_size = sizeof transfer;
      transfer.direction = direction;
      transfer.buffer = handle();
      transfer.offset = offset;
      transfer.host = host;
      transfer.bytes = bytes;
      CALRT_TRY(device_->heeded(call_driver(
          "buffer_transfer", [&](cald_error* detail) { return transfer_(&transfer, detail); })));
      moved = transfer.moved;
    } else if (direction == CALD_TO_DEVICE) {
      CALRT_TRY(device_->heeded(call_driver("buffer_h2d", [&](cald_error* detail) {
        return table.buffer_h2d(handle(), offset, host, bytes, detail);
      })));
    } else {
      CALRT_TRY(device_->heeded(call_driver("buffer_d2h", [&](cald_error* detail) {
        return table.buffer_d2h(handle(), offset, host, bytes, detail);
      })));
    }
  }
  count_copied(moved);
  if (moved != bytes)
    return Error{Status::TRANSFER_FAULT, 0,
                 std::string("buffer ") + what + ": the driver moved " + std::to_string(moved) +
                     " of " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                     (direction == CALD_TO_DEVICE
                          ? "; the buffer's content is unknown: write it again"
                          : "; the content of what was read into is unknown: read it again"),
                 "buffer_transfer"};
  return {};
}

LoanState Buffer::loan_state() const {
  LoanState state = LoanState::LEASED;
  const std::scoped_lock lock(uses_mutex_);
  for (const auto& held : uses_)
    if (const auto use = held.lock()) state = std::max(state, loan_state_of(*use));
  return state;
}

void Buffer::note_use(std::weak_ptr<const BindingUse> use) {
  const std::scoped_lock lock(uses_mutex_);
  std::erase_if(uses_, [](const auto& held) { return held.expired(); });
  uses_.push_back(std::move(use));
}

void ExportCensus::add(const Buffer& buffer) {
  const uint32_t views = buffer.exports();
  if (views == 0) return;
  views_ += views;
  by_name_[buffer.purpose().name] += views;
}

std::string ExportCensus::text() const {
  std::string parts;
  for (const auto& [name, views] : by_name_)
    parts += (parts.empty() ? "" : ", ") + std::to_string(views) + " of " + name;
  return std::to_string(views_) + (views_ == 1 ? " view (" : " views (") + parts + ")";
}

}  // namespace calrt
