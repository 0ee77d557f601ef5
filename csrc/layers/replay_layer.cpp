// SPDX-License-Identifier: Apache-2.0
#include "layers/replay_layer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "base/log.h"
#include "layers/answer.h"
#include "layers/completion_tap.h"
#include "layers/layer_file.h"
#include "layers/record_job.h"
#include "layers/replay_file.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;
constexpr uint64_t kSliceNs = 50'000'000;  // of a wait for a job that never ends

class ReplayLayer;

struct ReplayedJob final : CompletionTap {
  void complete(const cald_completion& completion) override;

  std::weak_ptr<ReplayLayer> layer;
  RecordedRef want;  // null: the driver's own end stands
  JobView view;
  uint64_t job_seq = 0;
  void (*on_complete)(void*, const cald_completion*) = nullptr;
  void* user = nullptr;
  std::once_flag given;  // outputs written or compared
};
using ReplayedRef = std::shared_ptr<ReplayedJob>;

// What follows from a job's end, or comes at times of its own: not counted by order.
bool by_order(Entry entry) {
  switch (entry) {
    case Entry::submit:
    case Entry::kv_submit:
    case Entry::job_query:
    case Entry::job_wait:
    case Entry::job_cancel:
    case Entry::job_timing:
    case Entry::job_destroy:
    case Entry::poll:
      return false;
    default:
      return true;
  }
}

class ReplayLayer final : public Layer, public std::enable_shared_from_this<ReplayLayer> {
 public:
  ReplayLayer(std::unique_ptr<ReplayFile> file, bool check)
      : file_(std::move(file)), check_(check) {}
  const char* name() const override { return "replay"; }
  bool replace(Call& call) override;
  std::vector<std::pair<std::string, uint64_t>> counters() override {
    const std::scoped_lock lock(mutex_);
    return {{"jobs", jobs_given_.load()},
            {"calls", calls_given_.load()},
            {"diverged", diverged_.load()},
            {"left", file_->left()}};
  }
  void completed(ReplayedJob& job, const cald_completion& completion);

 private:
  [[gnu::format(printf, 3, 4)]] void diverge(uint64_t line, const char* format, ...);
  void give(Call& call, const RecordedAnswer& answer);
  void in_order(Call& call);
  template <auto Member>
  void submit(Call& call);
  void job_query(Call& call);
  void job_wait(Call& call);
  void give_outputs(ReplayedJob& job, int32_t state, cald_status status);
  void compare(ReplayedJob& job, const RecordedEnd& end, int32_t state, cald_status status);
  ReplayedRef find(const cald_job* handle);

  const std::unique_ptr<ReplayFile> file_;
  const bool check_;
  std::atomic<uint64_t> jobs_given_{0}, calls_given_{0}, diverged_{0};
  std::array<std::atomic<uint64_t>, kEntryCount> seen_{};
  std::mutex mutex_;
  std::map<const cald_job*, ReplayedRef> jobs_;
};

void ReplayLayer::diverge(uint64_t line, const char* format, ...) {
  ++diverged_;
  char text[300];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_line(LOG_WARNING, "replay", "diverged from line %llu: %s",
           static_cast<unsigned long long>(line), text);
}

bool ReplayLayer::replace(Call& call) {
  switch (call.entry) {
    case Entry::submit:
      submit<&Table::submit>(call);
      break;
    case Entry::kv_submit:
      submit<&Table::kv_submit>(call);
      break;
    case Entry::job_query:
      job_query(call);
      break;
    case Entry::job_wait:
      job_wait(call);
      break;
    case Entry::job_destroy: {
      ReplayedRef gone;
      {
        const std::scoped_lock lock(mutex_);
        const auto found = jobs_.find(std::get<0>(call.of<&Table::job_destroy>()));
        if (found != jobs_.end()) {
          gone = std::move(found->second);
          jobs_.erase(found);
        }
      }
      if (gone != nullptr) gone->untap();
      call.forward();
      break;
    }
    default:
      by_order(call.entry) ? in_order(call) : call.forward();
  }
  return true;
}

// ---- calls -------------------------------------------------------------------------------------

void ReplayLayer::give(Call& call, const RecordedAnswer& recorded) {
  if (recorded.threw) {
    if (!call.has_status) call.forward();  // what returns nothing had done its work
    throw std::runtime_error("thrown as in the record");
  }
  answer(call, Answer{recorded.status, recorded.native, recorded.unmapped, recorded.text.c_str()});
}

void ReplayLayer::in_order(Call& call) {
  const uint64_t nth = ++seen_[static_cast<size_t>(call.entry)];
  const RecordedAnswer* const then = file_->failure(call.entry, nth);
  const char* name = entry_name(call.entry);
  if (then != nullptr && !check_) {
    ++calls_given_;
    return give(call, *then);
  }
  call.forward();
  if (!call.has_status) return;
  const cald_status expected = then != nullptr ? then->status : static_cast<cald_status>(CALD_OK);
  if (call.status != expected && nth <= file_->calls(call.entry))
    diverge(then != nullptr ? then->line : 0, "call %llu of %s answers %d, recorded was %d",
            static_cast<unsigned long long>(nth), name, call.status, expected);
}

// ---- jobs --------------------------------------------------------------------------------------

ReplayedRef ReplayLayer::find(const cald_job* handle) {
  const std::scoped_lock lock(mutex_);
  const auto found = jobs_.find(handle);
  return found != jobs_.end() ? found->second : nullptr;
}

template <auto Member>
void ReplayLayer::submit(Call& call) {
  const auto& [session, desc, out, error] = call.of<Member>();
  const auto job = std::make_shared<ReplayedJob>();
  job->layer = weak_from_this();
  job->view = JobView::of(call);
  job->job_seq = desc->job_seq;
  job->on_complete = desc->on_complete;
  job->user = desc->user;
  const std::string key = job->view.key();
  {
    const std::scoped_lock lock(mutex_);
    job->want = file_->take(key);
  }
  const auto seq = static_cast<unsigned long long>(desc->job_seq);
  if (job->want == nullptr) {
    diverge(0, "job %llu (%s) has inputs that no further recorded job had", seq,
            job->view.what.c_str());
  } else {
    ++jobs_given_;
    const RecordedAnswer& then = job->want->submit;
    if (!check_ && (then.threw || then.status != CALD_OK)) return give(call, then);
  }
  if (desc->on_complete != nullptr)
    job->template forward<Member>(call);
  else
    call.forward();
  if (job->want != nullptr && call.status != job->want->submit.status)
    diverge(job->want->submit.line, "job %llu is answered %d, recorded was %d", seq, call.status,
            job->want->submit.status);
  if (call.status != CALD_OK || *out == nullptr) return;
  const std::scoped_lock lock(mutex_);
  jobs_[*out] = job;
}

void ReplayLayer::compare(ReplayedJob& job, const RecordedEnd& end, int32_t state,
                          cald_status status) {
  const auto seq = static_cast<unsigned long long>(job.job_seq);
  if (state != end.completion.state || status != end.completion.status)
    diverge(end.line, "job %llu ends in state %d with status %d, recorded were %d and %d", seq,
            state, status, end.completion.state, end.completion.status);
}

// Before the caller learns that the job has ended; once.
void ReplayLayer::give_outputs(ReplayedJob& job, int32_t state, cald_status status) {
  std::call_once(job.given, [&] {
    const RecordedEnd& end = job.want->ends.front();
    if (check_) compare(job, end, state, status);
    // What a failed job leaves in its outputs is nobody's business.
    if (check_ && (end.completion.state != CALD_JOB_DONE || state != CALD_JOB_DONE)) return;
    const JsonValue recorded = file_->outputs(end);
    for (size_t i = 0; i < job.view.outputs.size() && i < recorded.items().size(); ++i) {
      const BoundBytes& output = job.view.outputs[i];
      const JsonValue& then = recorded.items()[i];
      if (!check_ && then["hex"].is_text() && write_hex(output, then["hex"].text())) continue;
      if (then["sha256"].text() != digest_of(output))
        diverge(end.line, "job %llu: the output of role %d is another",
                static_cast<unsigned long long>(job.job_seq), output.role);
    }
  });
}

void ReplayLayer::completed(ReplayedJob& job, const cald_completion& completion) {
  if (job.want == nullptr || check_) {
    if (job.want != nullptr) {
      if (job.want->ends.empty())
        diverge(job.want->submit.line, "job %llu ends, recorded was that it never did",
                static_cast<unsigned long long>(job.job_seq));
      else
        give_outputs(job, completion.state, completion.status);
    }
    return job.on_complete(job.user, &completion);
  }
  if (job.want->ends.empty()) return;
  give_outputs(job, completion.state, completion.status);
  for (const RecordedEnd& end : job.want->ends) {
    cald_completion told = end.completion;
    told.job_seq += job.job_seq;
    job.on_complete(job.user, &told);
  }
}

void ReplayLayer::job_query(Call& call) {
  const auto& [handle, state, error] = call.of<&Table::job_query>();
  const ReplayedRef job = find(handle);
  call.forward();
  if (call.status != CALD_OK || job == nullptr || job->want == nullptr || *state < CALD_JOB_DONE)
    return;
  if (job->want->ends.empty()) {
    if (!check_) *state = CALD_JOB_RUNNING;
    return;
  }
  if (job->on_complete == nullptr)
    give_outputs(*job, *state,
                 error != nullptr && *state != CALD_JOB_DONE ? error->code
                                                             : static_cast<cald_status>(CALD_OK));
  if (check_) return;
  const cald_completion& end = job->want->ends.front().completion;
  *state = end.state;
  if (end.status == CALD_OK) return;
  const auto& why = job->want->why;
  answer(call, Answer{end.status, why ? why->native : end.native_code,
                      ((why ? why->unmapped : false) || (end.flags & CALD_ERROR_UNMAPPED) != 0),
                      why ? why->text.c_str() : "as in the record"});
  call.status = CALD_OK;
}

void ReplayLayer::job_wait(Call& call) {
  const auto& [handle, deadline_ns, error] = call.of<&Table::job_wait>();
  const ReplayedRef job = find(handle);
  call.forward();
  if (check_ || call.status != CALD_OK || job == nullptr || job->want == nullptr) return;
  if (!job->want->ends.empty()) {
    if (job->on_complete == nullptr) give_outputs(*job, CALD_JOB_DONE, CALD_OK);
    return;
  }
  if (const uint64_t now = steady_ns(); deadline_ns > now)
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(deadline_ns - now, kSliceNs)));
  answer(call, Answer{CALD_WAIT_TIMEOUT, 0, false, "the recorded job never ended"});
}

void ReplayedJob::complete(const cald_completion& completion) {
  if (const auto owner = layer.lock()) owner->completed(*this, completion);
}

}  // namespace

Result<std::shared_ptr<Layer>> make_replay_layer(const std::string& config) {
  CALRT_TRY_ASSIGN(FileConfig read, FileConfig::parse("replay", config, {{"check", 0, 0, 1}}));
  CALRT_TRY_ASSIGN(auto file, ReplayFile::open(read.path));
  return std::shared_ptr<Layer>(
      std::make_shared<ReplayLayer>(std::move(file), read.values.at("check") != 0));
}

}  // namespace calrt::layers
