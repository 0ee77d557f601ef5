// SPDX-License-Identifier: Apache-2.0
// Memory of a device, and the views of it that live.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "calrt/bounded_pool.h"
#include "calrt/driver_handle.h"

namespace calrt {

class Device;

// What a buffer is for: people are told, and a model's views are told from its device's.
struct BufferPurpose {
  std::string name = "buffer";  // or the role it is bound to
  uint64_t generation = 0;      // of the model, 0 = none
};

// An allocation, checked against the driver's rules.
struct BufferPlan {
  uint64_t bytes = 0, allocated_bytes = 0;
  uint32_t domain = 0;
  uint64_t align = 1;
};

// job_seq of the job that holds the buffers of a binding set, 0 = none; kLost is added once that
// job is lost.
using BindingUse = std::atomic<uint64_t>;
inline constexpr uint64_t kLostUse = uint64_t{1} << 63;
LoanState loan_state_of(const BindingUse& use);

// "host", "host_pinned", "device", "shared"; "unknown" for what a newer driver may say.
const char* domain_name(uint32_t domain);
// Of each bit: "host or device".
std::string domains_text(uint32_t domains);

// One allocation in one memory domain. Freed with the last owner (a view counts as an owner).
class Buffer {
 public:
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  uint64_t bytes() const { return bytes_; }  // as asked for
  // With the driver's padding; the rest is the driver's and undefined.
  uint64_t allocated_bytes() const { return allocated_bytes_; }
  uint64_t align() const { return align_; }  // what was asked for or what the driver wants, if more
  uint32_t domain() const { return domain_; }
  // Address for the host, null when the domain is not addressable. Valid as long as the Buffer.
  void* data() const { return data_; }
  cald_buffer* handle() const { return handle_.get().pointer; }
  const std::shared_ptr<Device>& device() const { return device_; }
  const BufferPurpose& purpose() const { return purpose_; }

  // OUT_OF_RANGE, with the numbers, when [offset, offset + bytes) is not inside. TRANSFER_FAULT
  // when the driver moved fewer bytes: then what was to be written is unknown. Thread-safe.
  Result<void> write(uint64_t offset, const void* src, uint64_t bytes);
  Result<void> read(uint64_t offset, void* dst, uint64_t bytes) const;

  uint32_t exports() const { return exports_.load(std::memory_order_acquire); }
  // Whether a job is bound to it through any of the binding sets it is in.
  LoanState loan_state() const;
  // It is in a binding set from now on. The set says when a job holds it.
  void note_use(std::weak_ptr<const BindingUse> use);

 private:
  friend class Device;
  friend class Export;
  Buffer() = default;
  Result<void> move(int32_t direction, uint64_t offset, void* host, uint64_t bytes) const;

  std::shared_ptr<Device> device_;  // before handle_: the parent goes last
  BufferHandle handle_;
  cald_status (*transfer_)(cald_transfer*, cald_error*) = nullptr;  // null: the driver has none
  mutable RankedMutex mutex_{LockRank::CALL, "buffer"};             // one transfer at a time
  void* data_ = nullptr;
  uint64_t bytes_ = 0, allocated_bytes_ = 0, align_ = 1;
  uint32_t domain_ = 0;
  BufferPurpose purpose_;
  std::atomic<uint32_t> exports_{0};
  mutable RankedMutex uses_mutex_{LockRank::LEAF, "buffer.uses"};
  std::vector<std::weak_ptr<const BindingUse>> uses_;
};

// A live view of a buffer's memory, counted while it lives. It owns the memory, and what keeps the
// buffer from being used again, so nothing that is closed or deleted can hurt the view.
class Export {
 public:
  Export(std::shared_ptr<const void> owner, std::shared_ptr<Buffer> buffer)
      : owner_(std::move(owner)), buffer_(std::move(buffer)) {
    buffer_->exports_.fetch_add(1, std::memory_order_relaxed);
  }
  ~Export() { buffer_->exports_.fetch_sub(1, std::memory_order_release); }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  // Dropping it may free memory, which calls the driver.
  bool is_last_owner() const {
    return buffer_.use_count() == 1 || (owner_ != nullptr && owner_.use_count() == 1);
  }

 private:
  std::shared_ptr<const void> owner_;
  std::shared_ptr<Buffer> buffer_;
};

// The views that live of some buffers, by what the buffers are for.
class ExportCensus {
 public:
  void add(const Buffer& buffer);
  uint32_t views() const { return views_; }
  std::string text() const;  // "3 views (2 of logits, 1 of tokens)"

 private:
  uint32_t views_ = 0;
  std::map<std::string, uint32_t> by_name_;
};

}  // namespace calrt
