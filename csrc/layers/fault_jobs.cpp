// SPDX-License-Identifier: Apache-2.0
#include "layers/fault_jobs.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "layers/completion_tap.h"

namespace calrt::layers {
namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC, as every deadline
using Table = cald_driver_table;

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kPatienceNs = 10'000 * kMs;      // no wait of the layer's own is longer
constexpr int32_t kFirstOutput = CALD_ROLE_LOGITS;  // roles below are inputs

uint64_t real_now() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
          .count());
}

Clock::time_point at(uint64_t t_ns) {
  constexpr uint64_t kMost = INT64_MAX;
  return Clock::time_point(std::chrono::nanoseconds(static_cast<int64_t>(std::min(t_ns, kMost))));
}

}  // namespace

struct FaultJobs::Job : CompletionTap {
  void complete(const cald_completion& told_now) override;

  std::weak_ptr<FaultJobs> jobs;
  cald_session* session = nullptr;
  cald_job* handle = nullptr;  // null until submit has returned
  uint64_t job_seq = 0;
  void (*on_complete)(void*, const cald_completion*) = nullptr;
  void* user = nullptr;
  uint64_t bytes_in = 0, bytes_out = 0;                // as bound
  std::vector<std::pair<uint8_t*, uint64_t>> outputs;  // host addresses, if they are to be changed
  Effect effect;
  cald_completion completion{};  // as it will be told
  bool arrived = false;          // the driver has told it
  bool released = false;         // nothing holds it any more
  bool closing = false;          // its session is: told on the spot
  bool told = false;             // the caller has been told
  bool changed = false;          // it ended otherwise than the driver knows
  bool gone = false;             // never told any more
  int telling = 0;               // threads that tell it now

  bool waits_for_next() const {
    return effect.swap && arrived && !told && !gone && telling == 0 && !released;
  }
};

void FaultJobs::Job::complete(const cald_completion& told_now) {
  if (const auto owner = jobs.lock())
    owner->arrive(std::static_pointer_cast<Job>(shared_from_this()), &told_now);
}

FaultJobs::~FaultJobs() { stop(); }

bool FaultJobs::wanted() const {
  return rules_->about(FaultRules::kCompletion) || rules_->shape().completion.has_value();
}

// ---- submit ------------------------------------------------------------------------------------

void FaultJobs::submit(Call& call) {
  const auto job = std::make_shared<Job>();
  job->effect = rules_->meet(FaultRules::kCompletion);
  const cald_job_desc& desc = *std::get<1>(call.of<&Table::submit>());
  for (uint32_t i = 0; i < desc.n_bindings; ++i) {
    const cald_binding& binding = desc.bindings[i];
    const bool output = binding.role >= kFirstOutput;
    (output ? job->bytes_out : job->bytes_in) += binding.bytes;
    if (!output || !(job->effect.nan || job->effect.flip)) continue;
    void* address = nullptr;
    const auto map = call.lower<&Table::buffer_map>();
    if (map == nullptr || map(binding.buffer, &address, nullptr) != CALD_OK || address == nullptr) {
      job->effect.message = "fault: nan and flip need outputs that the host can address";
      job->effect.status = CALD_UNSUPPORTED;
      return answer(call, job->effect);
    }
    job->outputs.emplace_back(static_cast<uint8_t*>(address) + binding.offset, binding.bytes);
  }
  submit_caught<&Table::submit>(call, job);
}

void FaultJobs::kv_submit(Call& call) {
  const auto job = std::make_shared<Job>();
  job->effect = rules_->meet(FaultRules::kCompletion);
  const cald_kv_desc& desc = *std::get<1>(call.of<&Table::kv_submit>());
  if (desc.op == CALD_KV_READ) job->bytes_out = desc.bytes;
  if (desc.op == CALD_KV_WRITE) job->bytes_in = desc.bytes;
  submit_caught<&Table::kv_submit>(call, job);
}

template <auto Member>
void FaultJobs::submit_caught(Call& call, const JobPtr& job) {
  auto& [session, desc, out, error] = call.of<Member>();
  job->session = session;
  job->job_seq = desc->job_seq;
  job->on_complete = desc->on_complete;
  job->user = desc->user;
  job->jobs = weak_from_this();
  {
    const Lock lock(mutex_);
    jobs_.push_back(job);
  }
  try {
    job->forward<Member>(call);
  } catch (...) {
    Lock lock(mutex_);
    remove(job, lock);
    throw;
  }
  Lock lock(mutex_);
  if (call.status != CALD_OK) return remove(job, lock);
  job->handle = *out;
  if (!job->effect.early || completes_by(CALD_COMPLETION_POLL)) return;
  const uint64_t until = std::min(desc->deadline_ns, real_now() + kPatienceNs);
  changed_.wait_until(lock, at(until), [&] { return job->told || job->gone; });
}

// ---- the driver tells ---------------------------------------------------------------------------

void FaultJobs::arrive(const JobPtr& job, const cald_completion* completion) {
  Lock lock(mutex_);
  if (job->gone) return;
  if (job->arrived) {  // the driver tells twice by itself: so be it
    if (job->told && !completes_by(CALD_COMPLETION_WAIT) && job->on_complete != nullptr) {
      lock.unlock();
      job->on_complete(job->user, completion);
    }
    return;
  }
  job->completion.bytes_in = job->completion.bytes_out = CALD_BYTES_UNKNOWN;
  std::memcpy(&job->completion, completion,
              std::min<size_t>(completion->struct_size, sizeof job->completion));
  job->completion.struct_size = sizeof job->completion;
  job->arrived = true;
  change(*job);
  const Effect& effect = job->effect;
  const uint64_t t_ns = now(job->session) + (job->released ? 0 : effect.delay_ms * kMs);
  if (effect.drop) return;
  if (!job->released && effect.hold) return;
  if (!job->released && effect.swap) {
    bool pair = false;
    for (const JobPtr& other : of(job->session))
      pair = pair || (other != job && other->waits_for_next());
    if (!pair) return;
  }
  const bool later = effect.delay_ms > 0 || effect.thread || completes_by(CALD_COMPLETION_POLL);
  if (later && !job->closing)
    tell_at(job, t_ns, lock);
  else
    tell(job, lock);
}

void FaultJobs::change(Job& job) {
  const Effect& effect = job.effect;
  cald_completion& told = job.completion;
  if (effect.status) {
    told.status = *effect.status;
    told.state = told.status == CALD_OK          ? CALD_JOB_DONE
                 : told.status == CALD_CANCELLED ? CALD_JOB_CANCELLED
                                                 : CALD_JOB_FAILED;
    told.native_code = effect.native;
    told.flags = effect.unmapped ? CALD_ERROR_UNMAPPED : 0;
    job.changed = true;
  }
  if (effect.state) {
    told.state = *effect.state;
    job.changed = true;
  }
  told.job_seq += static_cast<uint64_t>(effect.seq);
  if (effect.short_in > 0) told.bytes_in = job.bytes_in - std::min(job.bytes_in, effect.short_in);
  if (effect.short_out > 0)
    told.bytes_out = job.bytes_out - std::min(job.bytes_out, effect.short_out);
  for (const auto& [bytes, count] : job.outputs)
    for (uint64_t i = 0; i < count; ++i)  // all ones is NaN in every floating-point dtype
      bytes[i] = effect.nan ? 0xff : bytes[i] ^ 0x55;
}

// ---- the caller is told
// --------------------------------------------------------------------------

void FaultJobs::tell(const JobPtr& job, Lock& lock) {
  if (job->told || job->gone || job->telling > 0) return;
  ++job->telling;
  lock.unlock();
  const int times = job->effect.twice ? 2 : 1;
  for (int i = 0; i < times && !completes_by(CALD_COMPLETION_WAIT); ++i)
    if (job->on_complete != nullptr) job->on_complete(job->user, &job->completion);
  lock.lock();
  --job->telling;
  job->told = true;
  changed_.notify_all();
  for (const JobPtr& other : of(job->session))
    if (other->waits_for_next()) tell(other, lock);
}

void FaultJobs::tell_at(const JobPtr& job, uint64_t t_ns, Lock& lock) {
  if (!completes_by(CALD_COMPLETION_POLL) && !thread_.joinable()) {
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {
      return tell(job, lock);  // at once is better than never
    }
  }
  later_.emplace(t_ns, job);
  due_.notify_one();
}

void FaultJobs::run() {
  Lock lock(mutex_);
  while (!stopping_) {
    if (later_.empty()) {
      due_.wait(lock);
    } else if (const auto first = later_.begin(); real_now() < first->first) {
      due_.wait_until(lock, at(first->first));
    } else {
      const JobPtr job = first->second;
      later_.erase(first);
      tell(job, lock);
    }
  }
}

void FaultJobs::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    due_.notify_all();
  }
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();
  else
    thread_.join();
}

void FaultJobs::remove(const JobPtr& job, Lock& lock) {
  job->gone = true;
  jobs_.remove(job);
  std::erase_if(later_, [&](const auto& entry) { return entry.second == job; });
  job->untap();
  changed_.wait_until(lock, at(real_now() + kPatienceNs), [&] { return job->telling == 0; });
}

FaultJobs::JobPtr FaultJobs::find(const cald_job* handle) const {
  for (const JobPtr& job : jobs_)
    if (handle != nullptr && job->handle == handle) return job;
  return nullptr;
}

std::vector<FaultJobs::JobPtr> FaultJobs::of(const cald_session* session) const {
  std::vector<JobPtr> found;
  for (const JobPtr& job : jobs_)
    if (job->session == session) found.push_back(job);
  return found;
}

uint64_t FaultJobs::now(const cald_session* session) const {
  if (rules_->shape().clock != CALD_CLOCK_VIRTUAL) return real_now();
  const auto polled = polled_.find(session);
  return polled != polled_.end() ? polled->second : 0;
}

// ---- the other entries
// ---------------------------------------------------------------------------

void FaultJobs::job_query(Call& call) {
  auto& [handle, state, error] = call.of<&Table::job_query>();
  {
    const Lock lock(mutex_);
    const JobPtr job = find(handle);
    if (job != nullptr && !job->told) {
      *state = CALD_JOB_RUNNING;
      return;
    }
    if (job != nullptr && job->changed) {
      *state = job->completion.state;
      if (job->completion.status != CALD_OK) {
        Effect why = job->effect;
        why.status = job->completion.status;
        answer(call, why);
        call.status = CALD_OK;
      }
      return;
    }
  }
  call.forward();
}

void FaultJobs::job_wait(Call& call) {
  auto& [handle, deadline_ns, error] = call.of<&Table::job_wait>();
  {
    Lock lock(mutex_);
    const JobPtr job = find(handle);
    const auto over = [&] { return job == nullptr || job->told || job->gone; };
    if (rules_->shape().clock != CALD_CLOCK_VIRTUAL)
      changed_.wait_until(lock, at(deadline_ns), over);
    if (!over()) {
      Effect held;
      held.status = CALD_WAIT_TIMEOUT;
      held.message = "job " + std::to_string(job->job_seq) + " is held by a fault rule";
      return answer(call, held);
    }
  }
  call.forward();
}

void FaultJobs::job_cancel(Call& call) {
  {
    Lock lock(mutex_);
    const JobPtr job = find(std::get<0>(call.of<&Table::job_cancel>()));
    if (job != nullptr && !job->told) {
      job->released = true;
      if (job->effect.drop && job->arrived) return;
      if (job->arrived) {
        if (job->effect.on_cancel == OnCancel::CANCELLED) {
          job->completion.state = CALD_JOB_CANCELLED;
          job->completion.status = CALD_CANCELLED;
          job->changed = true;
        }
        return tell_at(job, now(job->session), lock);
      }
    }
  }
  call.forward();
}

void FaultJobs::job_destroy(Call& call) {
  forget(std::get<0>(call.of<&Table::job_destroy>()));
  call.forward();
}

void FaultJobs::forget(const cald_job* handle) {
  Lock lock(mutex_);
  if (const JobPtr job = find(handle)) remove(job, lock);
}

void FaultJobs::poll(Call& call) {
  auto& [session, now_ns, next_ns, error] = call.of<&Table::poll>();
  {
    const Lock lock(mutex_);
    polled_[session] = now_ns;
  }
  call.forward();
  if (call.status != CALD_OK || !completes_by(CALD_COMPLETION_POLL)) return;
  Lock lock(mutex_);
  std::vector<JobPtr> due;
  // By name: clang before 16 captures no structured binding by itself.
  std::erase_if(later_, [&due, session = session, now_ns = now_ns](const auto& entry) {
    if (entry.second->session != session || entry.first > now_ns) return false;
    due.push_back(entry.second);
    return true;
  });
  for (const JobPtr& job : due) tell(job, lock);
  for (const auto& [t_ns, job] : later_)
    if (job->session == session) *next_ns = std::min(*next_ns, t_ns);
}

void FaultJobs::session_close(Call& call) {
  cald_session* const session = std::get<0>(call.of<&Table::session_close>());
  Lock lock(mutex_);
  for (const JobPtr& job : of(session)) {
    job->released = job->closing = true;  // what the driver tells while it closes is told at once
    if (job->arrived && !job->effect.drop) tell(job, lock);
  }
  lock.unlock();
  call.forward();
  lock.lock();
  for (const JobPtr& job : of(session)) remove(job, lock);
  polled_.erase(session);
}

void FaultJobs::driver_close(Call& call) {
  stop();
  call.forward();
}

}  // namespace calrt::layers
