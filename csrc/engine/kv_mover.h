// SPDX-License-Identifier: Apache-2.0
// Runs the plans of csrc/kv as jobs on a model's session: the one place where cells move.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "calrt/buffer_pool.h"
#include "calrt/job.h"
#include "engine/host_rotate.h"
#include "engine/reserve.h"
#include "kv/lanes.h"
#include "kv/moves.h"

namespace calrt::engine {

// How long an operation may take, and who may break it off.
struct MoveCall {
  uint64_t deadline_ns = 0;  // absolute, of each job; a job that misses it is lost
  Interrupt interrupt{};
};

// An operation under way: its lanes are busy under one job_seq. It ends in the table when its last
// holder lets go: the caller, or a job that the driver has not answered yet. Thread-safe.
class MoveBooking {
 public:
  explicit MoveBooking(std::shared_ptr<ReserveQueue> queue)
      : queue_(std::move(queue)), job_seq_(Job::next_job_seq()) {}
  ~MoveBooking();
  MoveBooking(const MoveBooking&) = delete;
  MoveBooking& operator=(const MoveBooking&) = delete;

  uint64_t job_seq() const { return job_seq_; }
  // The table has begun the operation on this lane: before the first job.
  void begun(const kv::LaneRef& lane) {
    lane_ = lane;
    begun_ = true;
  }
  // From now on a failure leaves cells unknown.
  void wrote() { wrote_.store(true, std::memory_order_release); }
  void done() { done_.store(true, std::memory_order_release); }

 private:
  const std::shared_ptr<ReserveQueue> queue_;
  const uint64_t job_seq_;
  kv::LaneRef lane_;
  bool begun_ = false;
  std::atomic<bool> wrote_{false}, done_{false};
};

// Thread-safe. Methods wait for their jobs: without the GIL. An operation is done whole, or fails
// with the lanes as the table says: unchanged if nothing was written, else POISONED.
class KvMover {
 public:
  static constexpr uint64_t kSlabBytes = 2u << 20;  // moves well

  // What the model's driver can do with cells, less what the load withholds.
  static kv::MoveCaps caps_of(Model& model);

  // `slab_bytes`: about as much as one READ or WRITE moves.
  static Result<std::shared_ptr<KvMover>> make(std::shared_ptr<Model> model,
                                               std::shared_ptr<Session> session,
                                               std::shared_ptr<ReserveQueue> queue,
                                               uint64_t slab_bytes = kSlabBytes);
  const kv::MoveCaps& caps() const { return caps_; }
  const cald_kv_info& info() const { return info_; }
  uint64_t bytes_per_cell() const { return info_.bytes_per_cell; }
  const std::shared_ptr<Model>& model() const { return model_; }
  const std::shared_ptr<ReserveQueue>& queue() const { return queue_; }

  // seq_cp: `to` becomes a copy of positions [p0, p1) of `from`.
  Result<void> copy(const kv::LaneRef& from, const kv::LaneRef& to, int64_t p0, int64_t p1,
                    const MoveCall& call);
  // Makes the data of a lane follow its bookkeeping. Does nothing on a canonical lane.
  Result<void> apply(const kv::LaneRef& lane, const MoveCall& call);

  // The copy of a parked lane that the lane's reservation found.
  Result<void> reuse(const kv::LaneRef& lane, const MoveCall& call);

  // Whose cells read() takes: the lane's own, or those of the prefix that it evicted.
  enum class Cells : uint8_t { OWN, EVICTED };
  // All `cells` cells of a lane leave in slabs (INVALID_STATE if it holds more or fewer by now);
  // `visit` gets each in order, and its bytes are valid during the call. The next slab is read
  // meanwhile.
  Result<void> read(const kv::LaneRef& lane, Cells whose, uint32_t cells, uint32_t slab_cells,
                    const std::function<Result<void>(std::span<const unsigned char>)>& visit,
                    const MoveCall& call);
  // The reverse: the lane holds positions [0, cells) afterwards, whatever it held before.
  Result<void> write(const kv::LaneRef& lane, uint32_t cells, uint32_t slab_cells,
                     const std::function<Result<void>(std::span<unsigned char>)>& fill,
                     const MoveCall& call);
  // Cells that a slab may have.
  uint32_t slab_cells() const;

 private:
  class Sink;
  KvMover() = default;
  Result<std::shared_ptr<Job>> submit(const KvMove& move, KvSpan span,
                                      const std::shared_ptr<MoveBooking>& booking,
                                      const MoveCall& call);
  Result<void> wait(const std::shared_ptr<Job>& job, const MoveCall& call) const;
  // A job beside one that failed: once it has ended too, nothing keeps the lane busy.
  void settle(const std::shared_ptr<Job>& job, const MoveCall& call) const;
  Result<void> run(const kv::Move& move, const std::shared_ptr<MoveBooking>& booking,
                   const MoveCall& call);
  Result<void> run(const kv::Plan& plan, const kv::LaneRef& lane,
                   const std::shared_ptr<MoveBooking>& booking, const MoveCall& call);
  // READ, change, WRITE: what the device cannot do by itself.
  Result<void> by_host(const kv::Move& move, const std::shared_ptr<MoveBooking>& booking,
                       const MoveCall& call);
  Result<std::shared_ptr<Buffer>> staging(uint64_t bytes, const MoveCall& call);

  std::shared_ptr<Model> model_;
  std::shared_ptr<Session> session_;
  std::shared_ptr<ReserveQueue> queue_;
  kv::MoveCaps caps_;
  cald_kv_info info_{};
  uint64_t slab_bytes_ = kSlabBytes;
  std::optional<HostRotation> rotation_;
  std::shared_ptr<BufferPool> staging_;  // of slab_cells(); null without READ and WRITE
};

}  // namespace calrt::engine
