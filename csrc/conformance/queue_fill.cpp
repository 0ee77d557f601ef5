// SPDX-License-Identifier: Apache-2.0
#include "conformance/queue_fill.h"

#include <algorithm>

namespace calrt::conformance {

QueueFill::QueueFill(Kit& kit) : kit_(&kit), player_(kit), graph_(player_.all().back()) {}

// Buffers and inputs first: then nothing keeps the jobs apart.
void QueueFill::prepare(size_t count) {
  while (calls_.size() < count) {
    calls_.push_back(std::make_unique<GraphCall>(*kit_, graph_));
    player_.fill(*calls_.back());
    calls_.back()->buffer(CALD_ROLE_LOGITS).fill(0x5A);
  }
}

cald_status QueueFill::add(const JobAsk& ask) {
  prepare(jobs_.size() + 1);
  Told* told = Told::make();
  const cald_job_desc desc = calls_[jobs_.size()]->desc(ask, told);
  cald_session* session = kit_->session();
  cald_job* made = nullptr;
  const cald_status status = kit_->call(
      "submit", [&](cald_error* err) { return kit_->table().submit(session, &desc, &made, err); });
  if (status == CALD_OK)
    jobs_.emplace_back(*kit_, made, told, ask.job_seq);
  else
    refused_ = told;
  return status;
}

void QueueFill::add_all(uint32_t count) {
  prepare(count + 1);
  jobs_.reserve(count + 1);
  for (uint32_t i = 0; i < count; ++i) {
    const cald_status status = add({i + 1});
    if (status == CALD_QUEUE_FULL) return;
    if (status != CALD_OK) broken("submit answered %d: %s", status, kit_->message().c_str());
  }
}

void QueueFill::wait_all() {
  for (Job& job : jobs_) job.wait();
}

bool QueueFill::any_ended() {
  return std::any_of(jobs_.begin(), jobs_.end(), [](Job& job) { return job.ended(); });
}

}  // namespace calrt::conformance
