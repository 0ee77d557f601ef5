// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_mover.h"

#include <algorithm>
#include <utility>

#include "engine/patient_submit.h"

namespace calrt::engine {

namespace {

constexpr uint64_t kLookNs = 100'000'000;  // between two looks at the interrupt
constexpr uint32_t kStagingBuffers = 8;    // four operations at once, two slabs each
constexpr uint64_t kCancelGraceNs = 1'000'000'000;

uint32_t driver_op(kv::MoveOp op) {
  switch (op) {
    case kv::MoveOp::CLEAR:
      return CALD_KV_CLEAR;
    case kv::MoveOp::LANE_COPY:
      return CALD_KV_LANE_COPY;
    case kv::MoveOp::RANGE_COPY:
      return CALD_KV_RANGE_COPY;
    case kv::MoveOp::ROTATE:
      return CALD_KV_ROTATE;
    case kv::MoveOp::READ:
      return CALD_KV_READ;
    case kv::MoveOp::WRITE:
      return CALD_KV_WRITE;
  }
  return 0;
}

KvMove driver_move(const kv::Move& move) {
  return {driver_op(move.op), move.lane, move.to_lane, move.cell, move.to_cell, move.n, move.delta};
}

Result<HostRotation> rotation_of(const Model& model, const cald_kv_info& info) {
  const cald_arch* arch = model.package().typed().arch;
  if (arch == nullptr) return fail(Status::UNSUPPORTED, "the package does not tell its model");
  return HostRotation::make(*arch, info);
}

}  // namespace

// ---- MoveBooking ------------------------------------------------------------------------------

MoveBooking::~MoveBooking() {
  if (!begun_) return;
  // False if the device was lost meanwhile: the lane is nobody's then.
  (void)queue_->table()->end_job(lane_, job_seq_, done_.load(std::memory_order_acquire),
                                 wrote_.load(std::memory_order_acquire));
  queue_->lane_freed();
}

// Owns itself until the driver can write no more for its job, and the booking with it.
class KvMover::Sink final : public CompletionSink {
 public:
  static Sink* make(std::shared_ptr<MoveBooking> booking) { return new Sink(std::move(booking)); }
  void abandon() { delete this; }  // the submit failed: nobody will call

  void completed(uint64_t, JobState state, int32_t) noexcept override {
    if (state != JobState::LOST) delete this;
  }
  bool awaits_answer() const noexcept override { return true; }
  void answered(uint64_t) noexcept override { delete this; }

 private:
  explicit Sink(std::shared_ptr<MoveBooking> booking) : booking_(std::move(booking)) {}
  ~Sink() = default;
  const std::shared_ptr<MoveBooking> booking_;
};

// ---- KvMover ----------------------------------------------------------------------------------

kv::MoveCaps KvMover::caps_of(Model& model) {
  kv::MoveCaps caps;
  const auto info = model.kv_info();
  if (!info.ok()) return caps;
  const auto can = [&](uint32_t op, const char* capability) {
    return (info->ops & op) != 0 && model.check_granted(capability).ok();
  };
  caps.clear = can(CALD_KV_CLEAR, "kv_clear");
  caps.lane_copy = can(CALD_KV_LANE_COPY, "lane_copy");
  caps.range_copy = can(CALD_KV_RANGE_COPY, "range_copy");
  caps.rotate = can(CALD_KV_ROTATE, "k_rotate");
  caps.read = can(CALD_KV_READ, "kv_read");
  caps.write = can(CALD_KV_WRITE, "kv_write");
  caps.host_rotate = caps.read && caps.write && rotation_of(model, *info).ok();
  return caps;
}

Result<std::shared_ptr<KvMover>> KvMover::make(std::shared_ptr<Model> model,
                                               std::shared_ptr<Session> session,
                                               std::shared_ptr<ReserveQueue> queue,
                                               uint64_t slab_bytes) {
  std::shared_ptr<KvMover> made(new KvMover);
  made->slab_bytes_ = slab_bytes;
  made->caps_ = caps_of(*model);
  if (auto info = model->kv_info(); info.ok()) made->info_ = *info;
  if (auto rotation = rotation_of(*model, made->info_); rotation.ok())
    made->rotation_.emplace(*std::move(rotation));
  made->model_ = std::move(model);
  made->session_ = std::move(session);
  made->queue_ = std::move(queue);
  if (made->caps_.read || made->caps_.write) {
    const uint64_t bytes = made->slab_cells() * made->bytes_per_cell();
    CALRT_TRY_ASSIGN(made->staging_, made->model_->device()->make_pool(bytes, kStagingBuffers,
                                                                       CALD_DOMAIN_HOST, 64));
  }
  return made;
}

uint32_t KvMover::slab_cells() const {
  const uint64_t cell = std::max<uint64_t>(info_.bytes_per_cell, 1);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(slab_bytes_ / cell, 1, std::max<uint32_t>(info_.cells, 1)));
}

Result<std::shared_ptr<Job>> KvMover::submit(const KvMove& move, KvSpan span,
                                             const std::shared_ptr<MoveBooking>& booking,
                                             const MoveCall& call) {
  return submit_patiently(*session_, call.deadline_ns, call.interrupt, [&] {
    Sink* sink = Sink::make(booking);
    auto job = Job::submit_kv(session_, model_, move, span, call.deadline_ns, sink);
    if (!job.ok())
      sink->abandon();
    else if (move.op != CALD_KV_READ)
      booking->wrote();
    return job;
  });
}

Result<void> KvMover::wait(const std::shared_ptr<Job>& job, const MoveCall& call) const {
  uint64_t give_up = UINT64_MAX;
  while (true) {
    const uint64_t now = session_->now_ns();
    Result<void> ended = job->wait(now + kLookNs);
    if (ended.ok() || ended.error().code != Status::WAIT_TIMEOUT) return ended;
    if (now >= give_up)
      return fail(Status::CANCELLED,
                  "interrupted; job %llu has not ended yet, and its lanes are busy until it has",
                  (unsigned long long)job->job_seq());
    if (give_up == UINT64_MAX && call.interrupt.asked != nullptr &&
        call.interrupt.asked(call.interrupt.user)) {
      (void)job->cancel().ok();  // best effort: it ends by its deadline at the latest
      give_up = now + kCancelGraceNs;
    }
  }
}

void KvMover::settle(const std::shared_ptr<Job>& job, const MoveCall& call) const {
  if (job != nullptr) (void)wait(job, call).ok();
}

Result<std::shared_ptr<Buffer>> KvMover::staging(uint64_t bytes, const MoveCall& call) {
  CALRT_TRY_ASSIGN(std::shared_ptr<Buffer> buffer, staging_->acquire(call.deadline_ns));
  if (buffer->data() == nullptr || buffer->bytes() < bytes)
    return fail(Status::UNSUPPORTED, "the host cannot address the device's host memory");
  return buffer;
}

Result<void> KvMover::by_host(const kv::Move& move, const std::shared_ptr<MoveBooking>& booking,
                              const MoveCall& call) {
  const bool turn = move.op == kv::MoveOp::ROTATE;
  const uint32_t to_lane = turn ? move.lane : move.to_lane;
  const uint32_t to_cell = turn ? move.cell : move.to_cell;
  // Inside a lane the side is taken first that will be written last.
  const bool from_end = !turn && move.lane == to_lane && to_cell > move.cell;
  const uint32_t slab = slab_cells();
  for (uint32_t done = 0; done < move.n;) {
    const uint32_t n = std::min(slab, move.n - done);
    const uint32_t at = from_end ? move.n - done - n : done;
    const uint64_t bytes = n * bytes_per_cell();
    CALRT_TRY_ASSIGN(const std::shared_ptr<Buffer> buffer, staging(bytes, call));
    const KvMove out{CALD_KV_READ, move.lane, 0, move.cell + at, 0, n, 0};
    const KvMove in{CALD_KV_WRITE, to_lane, 0, to_cell + at, 0, n, 0};
    CALRT_TRY_ASSIGN(const auto reading, submit(out, {buffer, 0, bytes}, booking, call));
    CALRT_TRY(wait(reading, call));
    if (turn)
      CALRT_TRY(
          rotation_->turn({static_cast<unsigned char*>(buffer->data()), bytes}, n, move.delta));
    CALRT_TRY_ASSIGN(const auto writing, submit(in, {buffer, 0, bytes}, booking, call));
    CALRT_TRY(wait(writing, call));
    done += n;
  }
  return {};
}

Result<void> KvMover::run(const kv::Move& move, const std::shared_ptr<MoveBooking>& booking,
                          const MoveCall& call) {
  const bool native = move.op == kv::MoveOp::ROTATE       ? caps_.rotate
                      : move.op == kv::MoveOp::RANGE_COPY ? caps_.range_copy
                      : move.op == kv::MoveOp::LANE_COPY  ? caps_.lane_copy
                                                          : true;
  if (!native && caps_.read && caps_.write &&
      (move.op != kv::MoveOp::ROTATE || rotation_.has_value()))
    return by_host(move, booking, call);
  CALRT_TRY_ASSIGN(const auto job, submit(driver_move(move), {}, booking, call));
  return wait(job, call);
}

Result<void> KvMover::run(const kv::Plan& plan, const kv::LaneRef& lane,
                          const std::shared_ptr<MoveBooking>& booking, const MoveCall& call) {
  if (plan.empty()) return {};  // done already
  booking->begun(lane);
  for (const kv::Move& move : plan) CALRT_TRY(run(move, booking, call));
  booking->done();
  return {};
}

Result<void> KvMover::copy(const kv::LaneRef& from, const kv::LaneRef& to, int64_t p0, int64_t p1,
                           const MoveCall& call) {
  const auto booking = std::make_shared<MoveBooking>(queue_);
  CALRT_TRY_ASSIGN(const kv::Plan plan,
                   queue_->table()->begin_copy(from, to, p0, p1, booking->job_seq()));
  return run(plan, to, booking, call);
}

Result<void> KvMover::apply(const kv::LaneRef& lane, const MoveCall& call) {
  const auto booking = std::make_shared<MoveBooking>(queue_);
  CALRT_TRY_ASSIGN(const kv::Plan plan, queue_->table()->begin_apply(lane, booking->job_seq()));
  return run(plan, lane, booking, call);
}

Result<void> KvMover::reuse(const kv::LaneRef& lane, const MoveCall& call) {
  const auto booking = std::make_shared<MoveBooking>(queue_);
  CALRT_TRY_ASSIGN(const kv::Plan plan, queue_->table()->begin_reuse(lane, booking->job_seq()));
  return run(plan, lane, booking, call);
}

Result<void> KvMover::read(const kv::LaneRef& lane, Cells whose, uint32_t cells,
                           uint32_t slab_cells,
                           const std::function<Result<void>(std::span<const unsigned char>)>& visit,
                           const MoveCall& call) {
  if (!caps_.read) return fail(Status::UNSUPPORTED, "kv_read: this model's cells cannot be read");
  const auto booking = std::make_shared<MoveBooking>(queue_);
  kv::LaneTable& table = *queue_->table();
  CALRT_TRY_ASSIGN(const kv::Plan plan, whose == Cells::OWN
                                            ? table.begin_read(lane, booking->job_seq())
                                            : table.begin_spill(lane, booking->job_seq()));
  if (!plan.empty()) booking->begun(lane);
  const uint32_t held = plan.empty() ? 0 : plan.front().n;
  if (held != cells)
    return fail(Status::INVALID_STATE, "lane %u holds %u cells now, not %u", lane.lane, held,
                cells);
  struct Slab {
    std::shared_ptr<Buffer> buffer;
    std::shared_ptr<Job> job;
    uint64_t bytes = 0;
  } slabs[2];
  const auto ask = [&](Slab& slab, uint32_t cell) -> Result<void> {
    const uint32_t n = std::min(slab_cells, cells - cell);
    slab.bytes = n * bytes_per_cell();
    if (slab.buffer == nullptr) {
      CALRT_TRY_ASSIGN(slab.buffer, staging(slab.bytes, call));
    }
    CALRT_TRY_ASSIGN(slab.job, submit({CALD_KV_READ, lane.lane, 0, cell, 0, n, 0},
                                      {slab.buffer, 0, slab.bytes}, booking, call));
    return {};
  };
  const auto move = [&]() -> Result<void> {
    if (cells > 0) CALRT_TRY(ask(slabs[0], 0));
    for (uint32_t cell = 0, i = 0; cell < cells; cell += std::min(slab_cells, cells - cell), ++i) {
      Slab& now = slabs[i % 2];
      const uint32_t next = cell + std::min(slab_cells, cells - cell);
      if (next < cells) CALRT_TRY(ask(slabs[(i + 1) % 2], next));
      CALRT_TRY(wait(now.job, call));
      CALRT_TRY(visit({static_cast<const unsigned char*>(now.buffer->data()), now.bytes}));
    }
    return {};
  };
  Result<void> moved = move();
  if (!moved.ok()) {
    for (const Slab& slab : slabs) settle(slab.job, call);
    return moved;
  }
  booking->done();
  return {};
}

Result<void> KvMover::write(const kv::LaneRef& lane, uint32_t cells, uint32_t slab_cells,
                            const std::function<Result<void>(std::span<unsigned char>)>& fill,
                            const MoveCall& call) {
  if (!caps_.write)
    return fail(Status::UNSUPPORTED, "kv_write: this model's cells cannot be written");
  const auto booking = std::make_shared<MoveBooking>(queue_);
  CALRT_TRY_ASSIGN(const kv::Plan plan,
                   queue_->table()->begin_write(lane, booking->job_seq(), cells));
  if (plan.empty()) return {};
  booking->begun(lane);
  std::shared_ptr<Buffer> buffers[2];
  std::shared_ptr<Job> jobs[2];
  const auto move = [&]() -> Result<void> {
    for (uint32_t cell = 0, i = 0; cell < cells; ++i) {
      const uint32_t n = std::min(slab_cells, cells - cell), k = i % 2;
      const uint64_t bytes = n * bytes_per_cell();
      if (jobs[k] != nullptr) CALRT_TRY(wait(jobs[k], call));
      if (buffers[k] == nullptr) {
        CALRT_TRY_ASSIGN(buffers[k], staging(bytes, call));
      }
      CALRT_TRY(fill({static_cast<unsigned char*>(buffers[k]->data()), bytes}));
      CALRT_TRY_ASSIGN(jobs[k], submit({CALD_KV_WRITE, lane.lane, 0, cell, 0, n, 0},
                                       {buffers[k], 0, bytes}, booking, call));
      cell += n;
    }
    for (const auto& job : jobs)
      if (job != nullptr) CALRT_TRY(wait(job, call));
    return {};
  };
  Result<void> moved = move();
  if (!moved.ok()) {
    for (const auto& job : jobs) settle(job, call);
    return moved;
  }
  booking->done();
  return {};
}

}  // namespace calrt::engine
