// SPDX-License-Identifier: Apache-2.0
// Equal buffers, lent one by one: made by Device::make_pool().
#pragma once

#include <cstdint>
#include <memory>

#include "calrt/bounded_pool.h"
#include "calrt/buffer.h"

namespace calrt {

// Thread-safe. A loan is a shared_ptr<Buffer>; the buffer is lent again when its last owner, be it
// a lease, a view or a job, has let go. It is not cleared in between.
class BufferPool {
 public:
  using Turn = BoundedPool<Buffer>::Turn;

  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;

  // BUFFER_POOL_EXHAUSTED, with the numbers, at `deadline_ns`; 0 does not wait. In turn.
  Result<std::shared_ptr<Buffer>> acquire(uint64_t deadline_ns) {
    return pool_->acquire(deadline_ns);
  }
  // For a wait that can be broken off.
  const std::shared_ptr<BoundedPool<Buffer>>& queue() const { return pool_; }
  PoolStats stats() const { return pool_->stats(); }
  ExportCensus exports() const;  // the views that live of what is lent
  // Ends the waits (INVALID_STATE) and frees what nobody holds. Idempotent.
  void close() { pool_->close(); }

  const BufferPlan& plan() const { return plan_; }
  const std::shared_ptr<Device>& device() const { return device_; }

 private:
  friend class Device;
  BufferPool() = default;
  std::shared_ptr<Device> device_;
  std::shared_ptr<BoundedPool<Buffer>> pool_;
  BufferPlan plan_;
};

}  // namespace calrt
