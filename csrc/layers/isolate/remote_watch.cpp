// SPDX-License-Identifier: Apache-2.0
// The thread that watches over a child: it starts it, takes what it tells, and sees its end.
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "layers/isolate/call.h"
#include "layers/isolate/remote.h"

namespace calrt::isolate {

// It starts the child, too: the child dies with the thread that has started it.
void Remote::watch(const std::string& program) {
  Result<void> started =
      child_.start({program, std::to_string(getpid()), library_}, child_socket_.get());
  child_socket_.reset();
  {
    const std::scoped_lock lock(mutex_);
    gone_ = !started.ok();
    started_ = true;
    start_failed_ = std::move(started);
    changed_.notify_all();
    if (gone_) return;
  }
  bool told_lost = false;
  for (;;) {
    pollfd news[] = {{child_.pidfd(), POLLIN, 0},
                     {ring_event_.get(), POLLIN, 0},
                     {watch_event_.get(), POLLIN, 0},
                     {child_.output(), POLLIN, 0}};
    if (child_.output() < 0) news[3].fd = -1;
    if (poll(news, std::size(news), until_look_ms()) < 0) continue;
    if (news[1].revents != 0) clear_eventfd(ring_event_.get());
    if (news[2].revents != 0) clear_eventfd(watch_event_.get());
    take_records();
    if (news[3].revents != 0) take_output();
    look();
    const bool ended = news[0].revents != 0;
    if (ended) {
      take_records();  // what it said last
      take_output();
      const std::string how = child_.reap();
      bool expected = false;
      {
        const std::scoped_lock lock(mutex_);
        expected = finishing_;
      }
      if (!expected) lose(how);
    }
    if ((ended || lost()) && !std::exchange(told_lost, true)) {
      take_records();
      {
        const std::scoped_lock lock(mutex_);
        lost_.store(true);  // also after an end that was wanted: nothing can be called
        if (why_.empty()) why_ = "the driver is closed";
        changed_.notify_all();
      }
      for (Channel& channel : channels_) channel.wake_parent();
      jobs_.lose_all();
    }
    if (!ended) continue;
    const std::scoped_lock lock(mutex_);
    gone_ = true;
    changed_.notify_all();
    return;
  }
}

// It rests once a look has seen no job, and none came since the look before: not between two.
int Remote::until_look_ms() {
  const uint64_t now = now_ns();
  if (rests_.load() || lost()) return -1;
  if (next_look_ns_ == 0) next_look_ns_ = now + Vigil::interval_ns(patience());
  const uint64_t left = next_look_ns_ - std::min(next_look_ns_, now);
  return static_cast<int>((left + 999'999) / 1'000'000);
}

void Remote::look() {
  const uint64_t now = now_ns();
  if (lost() || next_look_ns_ == 0 || now < next_look_ns_) return;
  next_look_ns_ = now + Vigil::interval_ns(patience());
  const Jobs::Count jobs = jobs_.count();
  PulseState& pulse = memory_.control().pulse;
  const bool answered = pulse.answered.load() == asked_;
  const auto verdict = vigil_.look(
      {now, jobs.running, jobs.timed, jobs.ended + progress_.load(), answered}, patience());
  char text[128];
  if (verdict == Vigil::Verdict::SILENT)
    std::snprintf(text, sizeof text,
                  "gave no sign of life for %.1f s with %llu job(s) running and was killed",
                  static_cast<double>(vigil_.silent_ns()) / 1e9,
                  static_cast<unsigned long long>(jobs.running));
  if (verdict == Vigil::Verdict::STUCK)
    std::snprintf(text, sizeof text, "ended none of its %llu job(s) for %.1f s and was killed",
                  static_cast<unsigned long long>(jobs.timed),
                  static_cast<double>(vigil_.stuck_ns()) / 1e9);
  if (verdict != Vigil::Verdict::WELL) return lose(text);
  if (jobs.running != 0 && answered) {
    pulse.asked.store(++asked_);
    signal_eventfd(pulse_event_.get());
  }
  const bool none_came = jobs.accepted == std::exchange(last_accepted_, jobs.accepted);
  if (!none_came || jobs.running != 0) return;
  next_look_ns_ = 0;
  rests_.store(true);  // before the count: who submits after it sees it
  if (jobs_.count().accepted != jobs.accepted) rests_.store(false);
}

void Remote::take_records() {
  const bool sane =
      ring_.read([this](Record kind, std::string_view record) { return take(kind, record); });
  if (!sane && !lost()) lose("wrote what makes no sense into its ring, and was killed");
  const std::scoped_lock lock(mutex_);
  changed_.notify_all();
}

bool Remote::take(Record kind, std::string_view record) {
  Pool pool(kind == Record::TRACE ? &strings_ : nullptr);
  Reader in(record, pool);
  if (kind == Record::COMPLETION) {
    const auto token = in.get<uint64_t>();
    cald_completion completion{};
    carry(in, completion);
    if (!in.good()) return false;
    if (!jobs_.end(token, completion) && !lost())
      log(CALD_LOG_ERROR, completion.job_seq, driver_name_.c_str(),
          "told of the end of a job that does not run: dropped");
    return true;
  }
  if (kind == Record::LOG) {
    const auto level = in.get<int32_t>();
    const auto job_seq = in.get<uint64_t>();
    const char *component = nullptr, *text = nullptr;
    in.text(component);
    in.text(text);
    if (!in.good()) return false;
    log(level, job_seq, component != nullptr ? component : "driver", text != nullptr ? text : "");
    return true;
  }
  if (kind != Record::TRACE) return false;
  const auto phase = in.get<int32_t>();
  const auto id = in.get<uint64_t>(), t_ns = in.get<uint64_t>();
  const char* name = nullptr;
  in.text(name);
  if (!in.good()) return false;
  if (const cald_host* host = host_.load())
    host->trace(host->user, phase, name != nullptr ? name : "?", id, t_ns);
  return true;
}

// What it printed goes to the log, line by line, up to an amount that nobody reads any more.
void Remote::take_output() {
  constexpr size_t kMost = 64 << 10, kLine = 400;
  char piece[4096];
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = read(child_.output(), piece, sizeof piece);
    if (got == 0) child_.close_output();
    if (got <= 0) break;
    for (const char c : std::string_view(piece, static_cast<size_t>(got))) {
      if (c != '\n') output_line_ += c;
      if (c != '\n' && output_line_.size() < kLine) continue;
      if (output_bytes_ < kMost && !output_line_.empty())
        log(CALD_LOG_WARNING, 0, driver_name_.c_str(), ("it printed: " + output_line_).c_str());
      output_bytes_ += output_line_.size() + 1;
      if (output_bytes_ >= kMost && output_bytes_ - output_line_.size() - 1 < kMost)
        log(CALD_LOG_WARNING, 0, driver_name_.c_str(), "what else it prints is left out");
      output_line_.clear();
    }
  }
}

}  // namespace calrt::isolate
