// SPDX-License-Identifier: Apache-2.0
// Stands between a driver and one job's on_complete. The driver gets a tag, never an address: what
// it tells of a job that is gone finds nothing. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>

#include "layers/layer.h"

namespace calrt::layers {

class CompletionTap : public std::enable_shared_from_this<CompletionTap> {
 public:
  virtual ~CompletionTap();
  // The driver tells, on whatever thread, perhaps inside submit. Valid during the call.
  virtual void complete(const cald_completion& completion) = 0;

  // Forwards a submit or kv_submit with this tap in place of the caller's on_complete; afterwards
  // the argument is the caller's own again. `job` is owned by a shared_ptr.
  template <auto Member>
  void forward(Call& call) {
    auto& desc = std::get<1>(call.of<Member>());
    const auto* const given = desc;
    auto copy = std::remove_cvref_t<decltype(*desc)>{};
    std::memcpy(&copy, given, std::min<size_t>(given->struct_size, sizeof copy));
    copy.struct_size = std::min(given->struct_size, static_cast<uint32_t>(sizeof copy));
    copy.on_complete = told;
    copy.user = reinterpret_cast<void*>(static_cast<uintptr_t>(tap()));
    desc = &copy;
    call.forward();
    desc = given;
  }
  // From now on what is told finds nothing.
  void untap();

 private:
  uint64_t tap();
  static void told(void* tag, const cald_completion* completion);
  uint64_t tag_ = 0;
};

}  // namespace calrt::layers
