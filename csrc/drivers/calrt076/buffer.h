// SPDX-License-Identifier: Apache-2.0
// Buffers: the host's memory, from the host's own allocator, so that who runs this driver in
// another process can share it. The SDK never sees their addresses: inputs are copied in, outputs
// out.
#pragma once

#include <mutex>

#include "drivers/calrt076/device.h"

struct cald_buffer {
  cald_device* device = nullptr;
  unsigned char* data = nullptr;
  uint64_t bytes = 0;

  void stand(int32_t state, uint64_t job_seq);  // thread-safe
  std::mutex mutex;                             // guards what follows
  int32_t state = CALD_BUFFER_IDLE;
  uint64_t job_seq = 0;
};

namespace calrt::calrt076 {

inline constexpr uint64_t kLeastAlign = 64;

Result<void> check_domain(uint32_t domain);
Result<void> check_extent(const cald_buffer* buffer, uint64_t offset, uint64_t bytes);
Result<cald_buffer*> alloc_buffer(cald_device* device, uint64_t bytes, uint64_t align);
void free_buffer(cald_buffer* buffer);  // may be null
void describe_rules(cald_buffer_rules* out);
Result<void> transfer(cald_transfer* transfer);
void describe_state(cald_buffer* buffer, cald_buffer_state* out);

}  // namespace calrt::calrt076
