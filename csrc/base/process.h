// SPDX-License-Identifier: Apache-2.0
// Which process this is, without asking the kernel each time.
#pragma once

#include <atomic>
#include <cstdint>

namespace calrt {

namespace detail {
extern std::atomic<uint32_t> process_generation;
}

// How many forks lie between this process and the one that loaded calrt: differs between a parent
// and its children, costs a load. A child sees the new number before fork() returns in it.
inline uint32_t process_generation() {
  return detail::process_generation.load(std::memory_order_relaxed);
}

// One T per process, made at the first use and never freed, since drivers may call until the very
// end. A fork's child gets a new one: its parent's locks may be held by threads it does not have.
template <class T>
T& per_process() {
  struct Made {
    T value;
    uint32_t generation;
    Made* parents;  // keeps what was inherited reachable
  };
  static std::atomic<Made*> current{nullptr};
  const uint32_t generation = process_generation();
  Made* known = current.load(std::memory_order_acquire);
  if (known != nullptr && known->generation == generation) return known->value;
  auto* made = new Made{{}, generation, known};
  if (current.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made->value;
  delete made;
  return known->value;
}

}  // namespace calrt
