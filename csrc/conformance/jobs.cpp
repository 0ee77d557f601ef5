// SPDX-License-Identifier: Apache-2.0
#include "conformance/jobs.h"

#include <algorithm>
#include <atomic>
#include <deque>

#include "calrt/driver_host.h"

namespace calrt::conformance {
namespace {

constexpr uint64_t kPatienceNs = 10'000'000'000;

using ull = unsigned long long;

}  // namespace

Told* Told::make() {
  static std::deque<Told>& all = *new std::deque<Told>;  // outlives every thread of a driver
  return &all.emplace_back();
}

void Told::on_complete(void* user, const cald_completion* completion) {
  auto* told = static_cast<Told*>(user);
  static std::atomic<uint64_t> count{0};
  Word word{{}, std::this_thread::get_id(), ++count};
  std::memcpy(&word.completion, completion,
              std::min<size_t>(completion->struct_size, sizeof word.completion));
  const std::scoped_lock lock(told->mutex_);
  told->words_.push_back(word);
}

size_t Told::count() const {
  const std::scoped_lock lock(mutex_);
  return words_.size();
}

cald_completion Told::last() const {
  const std::scoped_lock lock(mutex_);
  return words_.empty() ? cald_completion{} : words_.back().completion;
}

std::thread::id Told::thread() const {
  const std::scoped_lock lock(mutex_);
  return words_.empty() ? std::thread::id() : words_.back().thread;
}

uint64_t Told::order() const {
  const std::scoped_lock lock(mutex_);
  return words_.empty() ? 0 : words_.back().order;
}

int32_t Job::state() {
  int32_t state = 0;
  cald_error error{};
  error.struct_size = sizeof error;
  const cald_status status = kit_->table().job_query(handle_, &state, &error);
  if (status != CALD_OK) broken_rule("JOB-16", "job_query answered %d: %s", status, error.message);
  if (state < CALD_JOB_QUEUED || state > CALD_JOB_CANCELLED)
    broken_rule("JOB-16", "job_query gave state %d", state);
  if (state == CALD_JOB_FAILED) {
    failure_ = error.code;
    error.message[sizeof error.message - 1] = '\0';
    failure_text_ = error.message;
  }
  return state;
}

void Job::wait() {
  const uint64_t give_up = monotonic_ns() + kPatienceNs;
  const auto patience = [&] {
    if (monotonic_ns() < give_up) return;
    // Without a handle it will not be waited for again.
    handle_ = nullptr;
    broken("job %llu did not end in %llu s", static_cast<ull>(job_seq_),
           static_cast<ull>(kPatienceNs / 1'000'000'000));
  };
  if (kit_->polled()) {
    while (!ended()) {
      kit_->turn();
      patience();
    }
    return;
  }
  for (;;) {
    const cald_status status = kit_->call(
        "job_wait", [&](cald_error* err) { return kit_->table().job_wait(handle_, give_up, err); });
    if (status == CALD_OK) break;
    if (status != CALD_WAIT_TIMEOUT)
      broken_rule("TIME-05", "job_wait answered %d: %s", status, kit_->message().c_str());
    patience();
  }
}

void Job::expect(int32_t wanted, const char* what) {
  wait();
  const int32_t is = state();
  REQUIRE(is == wanted, "%s ended in state %d, not %d%s%s", what, is, wanted,
          failure_text_.empty() ? "" : ": ", failure_text_.c_str());
}

void Job::forget() {
  if (handle_ != nullptr) kit_->table().job_destroy(handle_);
  handle_ = nullptr;
}

Job::~Job() {
  if (handle_ == nullptr) return;
  try {
    if (!ended()) wait();
  } catch (const Broken&) {
    return;  // it still runs: to destroy it is not allowed
  }
  forget();
}

}  // namespace calrt::conformance
