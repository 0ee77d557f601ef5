// SPDX-License-Identifier: Apache-2.0
#include "calrt/buffer_pool.h"

#include <utility>
#include <vector>

#include "calrt/device.h"

namespace calrt {
namespace {

constexpr uint32_t kMostBuffers = 65536;

}  // namespace

Result<std::shared_ptr<BufferPool>> Device::make_pool(uint64_t bytes, uint32_t count,
                                                      uint32_t domain, uint64_t align) {
  CALRT_TRY(check_open());
  if (count == 0 || count > kMostBuffers)
    return fail(Status::OUT_OF_RANGE, "count=%u is outside 1..%u", count, kMostBuffers);
  CALRT_TRY_ASSIGN(const BufferPlan plan, plan_buffer(bytes, domain, align));
  std::shared_ptr<BufferPool> pool(new BufferPool);
  pool->plan_ = plan;
  pool->device_ = shared_from_this();
  BoundedPool<Buffer>::Settings settings;
  settings.capacity = settings.keep = count;
  settings.things = "buffers of " + std::to_string(bytes) + " bytes";
  settings.advice = "close those you are done with and drop the views of them, or wait longer";
  settings.closed = fail(Status::INVALID_STATE, "the buffer pool is closed");
  pool->pool_ = BoundedPool<Buffer>::make(std::move(settings), [device = pool->device_, plan] {
    return device->make_buffer(plan, {"pool buffer", 0});
  });
  const std::scoped_lock lock(buffers_mutex_);
  CALRT_TRY(check_open());  // close() sees the pool from here on
  std::erase_if(pools_, [](const auto& weak) { return weak.expired(); });
  pools_.push_back(pool->pool_);
  return pool;
}

void Device::close() {
  closed_.store(true);
  presence_.close();
  std::vector<std::weak_ptr<BoundedPool<Buffer>>> pools;
  {
    const std::scoped_lock lock(buffers_mutex_);
    pools.swap(pools_);
  }
  const Result<void> why = check_open();
  for (const auto& weak : pools)
    if (const auto pool = weak.lock()) pool->close(&why.error());
}

ExportCensus BufferPool::exports() const {
  ExportCensus census;
  pool_->each_lent([&](const Buffer& buffer) { census.add(buffer); });
  return census;
}

}  // namespace calrt
