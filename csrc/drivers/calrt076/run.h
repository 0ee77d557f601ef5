// SPDX-License-Identifier: Apache-2.0
// A job's work, checked and copied: from here on nothing of the caller is read again, and only the
// output is written, at the end.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <vector>

#include "drivers/calrt076/buffer.h"
#include "drivers/calrt076/model.h"

namespace calrt::calrt076 {

struct AlignedDelete {
  std::align_val_t align{};
  void operator()(std::byte* block) const { ::operator delete[](block, align); }
};

// One run of a graph. The SDK is lent the copies of the inputs: a run that ends late, or never,
// reads nothing that is the caller's.
struct Run {
  cald_model* model = nullptr;
  const ModelGraph* graph = nullptr;
  std::unique_ptr<std::byte[], AlignedDelete> copies;
  std::vector<const void*> inputs;  // in the SDK's order
  uint32_t lane = 0, first = 0, rows = 0;
  bool padding = false;  // there is nothing to run
  bool again = false;    // it ran, and its output was lost
  cald_buffer* output = nullptr;
  unsigned char* logits = nullptr;
  uint64_t bytes_in = 0, bytes_out = 0;  // as bound
};

// Checks everything that the SDK would have to refuse, and more: wrong arguments may end the
// process there.
Result<Run> read_run(const cald_device& device, const cald_job_desc& desc);

}  // namespace calrt::calrt076
