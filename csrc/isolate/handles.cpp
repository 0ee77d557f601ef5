// SPDX-License-Identifier: Apache-2.0
#include "isolate/program.h"

namespace calrt::isolate {

uint64_t Handles::add(void* handle) {
  if (handle == nullptr) return 0;
  const std::scoped_lock lock(mutex_);
  handles_.emplace(++last_, handle);
  return last_;
}

void* Handles::find(uint64_t token) const {
  const std::scoped_lock lock(mutex_);
  const auto known = handles_.find(token);
  return known != handles_.end() ? known->second : nullptr;
}

void Handles::forget(uint64_t token) {
  const std::scoped_lock lock(mutex_);
  handles_.erase(token);
}

void Handles::add_job(uint64_t token, cald_job* job) {
  const std::scoped_lock lock(mutex_);
  jobs_.emplace(token, job);
}

cald_job* Handles::find_job(uint64_t token) const {
  const std::scoped_lock lock(mutex_);
  const auto known = jobs_.find(token);
  return known != jobs_.end() ? known->second : nullptr;
}

void Handles::forget_job(uint64_t token) {
  const std::scoped_lock lock(mutex_);
  jobs_.erase(token);
}

}  // namespace calrt::isolate
