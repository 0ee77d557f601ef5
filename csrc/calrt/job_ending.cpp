// SPDX-License-Identifier: Apache-2.0
#include "calrt/job_ending.h"

#include <cstddef>

namespace calrt {
namespace {

JobEnding failed(Status status, std::string why) {
  return {JobState::FAILED, Error{status, 0, std::move(why), "job", false, nullptr}};
}

// "96 of 128 bytes"; empty when nothing is missing, or the driver does not count.
std::string shortfall(uint64_t moved, uint64_t bound) {
  if (moved == CALD_BYTES_UNKNOWN || moved >= bound) return {};
  return std::to_string(moved) + " of " + std::to_string(bound) + " bytes";
}

}  // namespace

JobEnding read_completion(const cald_completion* completion, const BoundBytes& bound,
                          const char* entry) {
  if (completion == nullptr)
    return failed(Status::INTERNAL, "the driver completed it with nothing");
  const int32_t told = completion->state;
  if (told == CALD_JOB_CANCELLED)
    return {JobState::CANCELLED, Error{Status::CANCELLED, 0, {}, "job", false, nullptr}};
  if (told != CALD_JOB_DONE && told != CALD_JOB_FAILED)
    return failed(Status::INTERNAL,
                  "the driver completed it in state " + std::to_string(told) + ", which is no end");
  if (completion->status != CALD_OK) {
    Error error = completion_error(*completion, entry);
    error.where = "job";
    return {JobState::FAILED, std::move(error)};
  }
  if (told == CALD_JOB_FAILED)
    return failed(Status::INTERNAL, "the driver reported a failure without a status");

  const bool counts = completion->struct_size >=
                      offsetof(cald_completion, bytes_out) + sizeof completion->bytes_out;
  if (!counts) return {};
  const std::string in = shortfall(completion->bytes_in, bound.in);
  const std::string out = shortfall(completion->bytes_out, bound.out);
  if (in.empty() && out.empty()) return {};
  std::string why = in.empty() ? "" : in + " of its inputs reached the device";
  if (!out.empty()) why += (why.empty() ? "" : ", ") + out + " of its outputs came back";
  return failed(Status::TRANSFER_FAULT, why + ": the outputs are not to be used");
}

}  // namespace calrt
