// SPDX-License-Identifier: Apache-2.0
// The host that the kit lends a driver: it counts what is taken and looks whether it stays in what
// it took. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "calrt/driver.h"

namespace calrt::conformance {

class Host {
 public:
  Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  const cald_host& table() const { return table_; }
  // Taken by alloc and not given back.
  uint64_t live_blocks() const;
  // What was done that may not be: a write behind a block, a pointer freed twice. "" = nothing.
  std::string damage() const;
  // Calls of any of its functions so far.
  uint64_t calls() const { return calls_.load(); }

 private:
  struct Block {
    void* base;
    uint64_t bytes;
  };
  static Host* self(void* user) { return static_cast<Host*>(user); }
  void* take(uint64_t bytes, uint64_t align);
  void give(void* pointer);

  cald_host table_{};
  std::atomic<uint64_t> calls_{0};
  mutable std::mutex mutex_;
  std::map<void*, Block> blocks_;
  std::string damage_;
};

}  // namespace calrt::conformance
