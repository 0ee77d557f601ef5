// SPDX-License-Identifier: Apache-2.0
#include "drivers/calrt076/waiter.h"

#include <chrono>
#include <system_error>

namespace calrt::calrt076 {

Result<void> Waiter::start() {
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    return fail(Status::OUT_OF_HOST_MEMORY, "could not start the thread that waits: %s",
                error.what());
  }
  return {};
}

Waiter::~Waiter() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Waiter::await(calrt_model* model, uint64_t run) {
  {
    std::lock_guard lock(mutex_);
    model_ = model;
    run_ = run;
  }
  wake_.notify_all();
}

void Waiter::loop() {
  for (;;) {
    calrt_model* model = nullptr;
    uint64_t run = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stop_ || run_ != 0; });
      if (run_ == 0) return;
      model = model_;
      run = std::exchange(run_, 0);
    }
    const Result<void> end = outcome(model, run);
    ended_(end.ok() ? nullptr : &end.error());
  }
}

// A Wait that answers an error, or tells of another run, has said nothing of this one: then the SDK
// is asked where it stands. Until it has ended, what it reads and writes must stay.
Result<void> Waiter::outcome(calrt_model* model, uint64_t run) {
  for (;;) {
    uint64_t told_run = 0;
    sdk::Number error = 0;
    const bool waited = sdk::wait(model, &told_run, &error) == 0;
    if (waited && told_run == run) return error == 0 ? Result<void>() : meaning(error, "the run");
    (waited ? device_->stray_ends : device_->wait_errors) += 1;
    sdk::RunState state = sdk::RunState::LIVE;
    const bool known = sdk::query(model, run, &state) == 0;
    if (known && state == sdk::RunState::DONE) return {};
    if (known && state == sdk::RunState::FAILED)
      return fail(Status::EXECUTION_FAILED, "run %llu failed, and the SDK has not told why",
                  static_cast<unsigned long long>(run));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // not to spin on an SDK gone wrong
  }
}

}  // namespace calrt::calrt076
