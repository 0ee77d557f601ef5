// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_job.h"

#include <mutex>
#include <utility>

#include "base/ranked_mutex.h"

namespace calrt::engine {

// Owns itself from submit until completed(): the driver may answer after the LaneJob is gone. It
// holds nothing of a driver, so it may be destroyed on a driver's thread.
class LaneJob::Sink final : public CompletionSink {
 public:
  Sink(std::shared_ptr<ReserveQueue> queue, std::vector<LaneWrite> writes, uint64_t tag)
      : queue_(std::move(queue)), writes_(std::move(writes)), tag_(tag) {}

  // All lanes or none.
  Result<void> begin(bool prefill) {
    for (size_t i = 0; i < writes_.size(); ++i) {
      Result<void> begun = begin_one(writes_[i], prefill);
      if (begun.ok()) continue;
      for (size_t j = 0; j < i; ++j) table().end_job(writes_[j].lane, tag_, false, false);
      return begun;
    }
    return {};
  }

  void keep(std::shared_ptr<Sink> self) { self_ = std::move(self); }

  // The submit failed: nothing was written and completed() will not be called.
  void abandon() {
    end_lanes(false, false);
    self_.reset();
  }

  void completed(uint64_t, JobState state, int32_t) noexcept override {
    std::shared_ptr<Sink> self;  // alive until this function returns
    // A lost job may still write, so its lanes stay booked. Cells that a cancelled job may have
    // begun lie beyond the lane's length: they do not count.
    if (state != JobState::LOST) {
      self = std::move(self_);
      end_lanes(state == JobState::DONE, state != JobState::CANCELLED);
    }
    std::vector<Watcher> watchers;
    {
      std::lock_guard lock(mutex_);
      ended_ = true;
      watchers.swap(watchers_);
    }
    for (const Watcher& watcher : watchers) watcher.fd->post(watcher.tag);
  }

  bool awaits_answer() const noexcept override { return true; }
  void answered(uint64_t) noexcept override {
    const std::shared_ptr<Sink> self = std::move(self_);
    end_lanes(false, true);
  }

  // False if the job has ended already.
  bool add(const std::shared_ptr<CompletionFd>& fd, uint64_t tag) {
    std::lock_guard lock(mutex_);
    if (ended_) return false;
    watchers_.push_back({fd, tag});
    return true;
  }

 private:
  struct Watcher {
    std::shared_ptr<CompletionFd> fd;
    uint64_t tag;
  };

  kv::LaneTable& table() const { return *queue_->table(); }

  Result<void> begin_one(const LaneWrite& write, bool prefill) {
    CALRT_TRY(table().begin_job(write.lane, tag_, write.cells, prefill));
    // Asked for after the lane is ours alone, so that no other job can move it in between.
    auto now = table().snapshot(write.lane);
    if (now.ok() && now->length == write.position) return {};
    table().end_job(write.lane, tag_, false, false);
    if (!now.ok()) return std::move(now).error();
    return fail(
        Status::INVALID_ARGUMENT,
        "positions: lane %u holds %u cells, so its next position is %u, not %u (truncate the "
        "lane to go back)",
        write.lane.lane, now->length, now->length, write.position);
  }

  void end_lanes(bool ok, bool written) {
    for (const LaneWrite& write : writes_) table().end_job(write.lane, tag_, ok, written);
    queue_->lane_freed();  // a lane released meanwhile is free only now
  }

  const std::shared_ptr<ReserveQueue> queue_;
  const std::vector<LaneWrite> writes_;
  const uint64_t tag_;
  std::shared_ptr<Sink> self_;
  RankedMutex mutex_{LockRank::LEAF, "lane job"};
  bool ended_ = false;
  std::vector<Watcher> watchers_;
};

Result<std::shared_ptr<LaneJob>> LaneJob::submit(const std::shared_ptr<Session>& session,
                                                 std::shared_ptr<Model> model,
                                                 const std::shared_ptr<ReserveQueue>& queue,
                                                 std::shared_ptr<BindingSet> bindings,
                                                 std::vector<LaneWrite> writes, bool prefill,
                                                 uint32_t output_rows, uint64_t deadline_ns) {
  auto made = std::make_shared<LaneJob>(Private());
  made->output_rows_ = output_rows;
  made->deadline_ns_ = deadline_ns;
  const uint64_t job_seq = Job::next_job_seq();
  made->sink_ = std::make_shared<Sink>(queue, std::move(writes), job_seq);
  CALRT_TRY(made->sink_->begin(prefill));
  made->sink_->keep(made->sink_);
  auto job = Job::submit(session, std::move(model), std::move(bindings), deadline_ns,
                         made->sink_.get(), job_seq);
  if (!job.ok()) {
    made->sink_->abandon();
    return std::move(job).error();
  }
  made->job_ = *std::move(job);
  return made;
}

void LaneJob::notify(std::shared_ptr<CompletionFd> fd, uint64_t tag) {
  fd->expect();
  if (!sink_->add(fd, tag)) fd->post(tag);
}

}  // namespace calrt::engine
