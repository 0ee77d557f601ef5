// SPDX-License-Identifier: Apache-2.0
// Buffers, and copies outside of jobs.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "drivers/mock/device.h"

struct cald_buffer {
  cald_device* device = nullptr;
  unsigned char* data = nullptr;
  uint64_t bytes = 0;
  uint32_t domain = 0;
  // CALD_BUFFER_* in the low bits, above them the job_seq it is about: read in one piece.
  std::atomic<uint64_t> output_state{CALD_BUFFER_IDLE};

  cald_buffer() = default;
  ~cald_buffer();
  cald_buffer(const cald_buffer&) = delete;
  cald_buffer& operator=(const cald_buffer&) = delete;

  void set_output_state(int32_t state, uint64_t job_seq) {
    output_state.store(job_seq << 2 | static_cast<uint64_t>(state), std::memory_order_release);
  }
  bool holds(uint64_t offset, uint64_t n) const { return n <= bytes && offset <= bytes - n; }
};

namespace calrt::mock {

Result<cald_buffer_rules> rules_of(const cald_device& device, uint32_t domain);
Result<std::unique_ptr<cald_buffer>> make_buffer(cald_device* device, uint32_t domain,
                                                 uint64_t bytes, uint64_t align);
// UNSUPPORTED for a buffer in device memory.
Result<void*> map_buffer(cald_buffer& buffer);
// Device memory lies behind the link: on the real clock the call takes its time, on the virtual
// one it takes none, since time moves by polling only.
Result<void> transfer(cald_transfer* what);
cald_buffer_state state_of(const cald_buffer& buffer);

}  // namespace calrt::mock
