// SPDX-License-Identifier: Apache-2.0
#include "engine/lane_scrub.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "calrt/job.h"
#include "engine/patient_submit.h"
#include "engine/submitter.h"

namespace calrt::engine {

namespace {

// Of no use to anybody who reads it by accident, and different for each lane and cell.
void fill_pattern(unsigned char* bytes, uint64_t n, uint32_t lane, uint32_t cell) {
  uint64_t x = (uint64_t{lane} << 32 | cell) + 0x9e3779b97f4a7c15u;
  for (uint64_t i = 0; i < n; ++i) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    bytes[i] = static_cast<unsigned char>(x >> 56);
  }
}

}  // namespace

// A lane that is being tried, as its jobs see it. It fails when its last holder lets go: the
// caller, or a job that the driver has not answered yet.
class LaneScrubber::Trial final : public CompletionSink,
                                  public std::enable_shared_from_this<Trial> {
 public:
  Trial(std::shared_ptr<kv::LaneTable> table, uint32_t lane)
      : table_(std::move(table)), lane_(lane) {}
  ~Trial() {
    if (!passed_) (void)table_->end_scrub(lane_, false).ok();
  }
  Result<kv::LaneState> pass() {
    passed_ = true;
    return table_->end_scrub(lane_, true);
  }

  void completed(uint64_t, JobState state, int32_t) noexcept override {
    stay(state == JobState::LOST);
  }
  bool awaits_answer() const noexcept override { return true; }
  void answered(uint64_t) noexcept override { stay(false); }
  // Until its job has ended.
  void stay(bool on = true) noexcept {
    std::shared_ptr<Trial> self = on ? shared_from_this() : nullptr;  // destroyed unlocked
    std::lock_guard lock(mutex_);
    self_.swap(self);
  }

 private:
  const std::shared_ptr<kv::LaneTable> table_;
  const uint32_t lane_;
  bool passed_ = false;
  RankedMutex mutex_{LockRank::LEAF, "lane trial"};
  std::shared_ptr<Trial> self_;
};

LaneScrubber::LaneScrubber(std::shared_ptr<Model> model, std::shared_ptr<Session> session,
                           std::shared_ptr<kv::LaneTable> table)
    : model_(std::move(model)), session_(std::move(session)), table_(std::move(table)) {}

std::vector<uint32_t> LaneScrubber::scrub(const std::vector<uint32_t>& lanes) {
  std::vector<uint32_t> works;
  works.reserve(lanes.size());
  for (const uint32_t lane : lanes) {
    if (!model_->check_open().ok()) break;
    if (!table_->begin_scrub(lane).ok()) continue;
    const auto trial = std::make_shared<Trial>(table_, lane);
    const Result<void> checked = or_out_of_memory([&] { return check(lane, *trial); });
    if (!checked.ok() && checked.error().code == Status::WAIT_TIMEOUT) trial->stay();
    if (!checked.ok() && model_->check_open().ok())
      log_line(LOG_WARNING, "kv", "lane %u does not work: %s", lane,
               error_text(checked.error()).c_str());
    else if (checked.ok() && trial->pass().ok())
      works.push_back(lane);
  }
  return works;
}

void LaneScrubber::scrub_unowned() {
  if (table_->poisoned_lanes() > 0) (void)scrub(table_->poisoned(0, true));
}

Result<void> LaneScrubber::check(uint32_t lane, Trial& trial) {
  const uint64_t deadline_ns = session_->now_ns() + kScrubTimeoutNs;
  const kv::MoveCaps& caps = table_->caps();
  if (caps.read && caps.write) return check_cells(lane, deadline_ns, trial);
  return check_token(lane, deadline_ns, trial);
}

Result<void> LaneScrubber::check_cells(uint32_t lane, uint64_t deadline_ns, Trial& trial) {
  CALRT_TRY_ASSIGN(const cald_kv_info info, model_->kv_info());
  const uint64_t n = info.bytes_per_cell;
  CALRT_TRY_ASSIGN(const std::shared_ptr<Buffer> buffer,
                   model_->device()->alloc(n, CALD_DOMAIN_HOST, 64, {"scrub", 0}));
  std::vector<unsigned char> wanted(n), got(n);
  const auto run = [&](uint32_t op, uint32_t cell, uint32_t cells,
                       const KvSpan& span) -> Result<void> {
    CALRT_TRY_ASSIGN(const auto job, submit_patiently(*session_, deadline_ns, {}, [&] {
                       return Job::submit_kv(session_, model_, {op, lane, 0, cell, 0, cells}, span,
                                             deadline_ns, &trial);
                     }));
    return job->wait(deadline_ns);
  };
  for (const uint32_t cell : {0u, info.cells / 2, info.cells - 1}) {
    fill_pattern(wanted.data(), n, lane, cell);
    CALRT_TRY(buffer->write(0, wanted.data(), n));
    CALRT_TRY(run(CALD_KV_WRITE, cell, 1, {buffer, 0, n}));
    std::memset(got.data(), 0, n);
    CALRT_TRY(buffer->write(0, got.data(), n));
    CALRT_TRY(run(CALD_KV_READ, cell, 1, {buffer, 0, n}));
    CALRT_TRY(buffer->read(0, got.data(), n));
    if (got != wanted)
      return fail(Status::KV_POISONED, "cell %u does not keep what is written to it", cell);
  }
  if (table_->caps().clear) return run(CALD_KV_CLEAR, 0, info.cells, {});
  return {};
}

Result<void> LaneScrubber::check_token(uint32_t lane, uint64_t deadline_ns, Trial& trial) {
  CALRT_TRY_ASSIGN(const auto submitter, JobSubmitter::make(model_, &trial));
  std::optional<std::array<uint8_t, 32>> known;
  {
    std::lock_guard lock(mutex_);
    known = known_;
  }
  // What was never seen before must at least be the same twice.
  for (int time = known ? 1 : 0; time < 2; ++time) {
    CALRT_TRY_ASSIGN(const auto sum, submit_patiently(*session_, deadline_ns, {}, [&] {
                       return submitter->probe(lane, deadline_ns);
                     }));
    if (known && *known != sum)
      return fail(Status::KV_POISONED, "a known token gives other logits than before");
    known = sum;
  }
  std::lock_guard lock(mutex_);
  known_ = known;
  return {};
}

}  // namespace calrt::engine
