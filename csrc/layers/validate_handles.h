// SPDX-License-Identifier: Apache-2.0
// Which handles of a driver live, whose children they are, and who holds them. Not thread-safe: the
// validate layer locks.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "layers/validate.h"
#include "layers/visit.h"

namespace calrt::layers {

struct ValidatedJob;
struct Handle;
using HandleRef = std::shared_ptr<Handle>;

struct Handle {
  Kind kind;
  const void* pointer;
  uint64_t call;                     // the number of the call that made it
  HandleRef parent;                  // null for a driver
  std::string what;                  // for the leak table: "64 bytes", "graph 3"
  std::vector<HandleRef> holds;      // a job that has not ended, a binding set: what they use
  int holders = 0;                   // how many such use this one
  size_t children = 0;               // that live
  size_t untold = 0, unsettled = 0;  // of a session: jobs that have not ended, surely or perhaps
  // Of a device, as device_info said; 0 depth = not asked yet.
  uint32_t depth = 0, queue = 0;
  std::shared_ptr<ValidatedJob> job;
};

// Why a handle cannot be used.
struct Refusal {
  Rule rule;
  std::string text;
};

class HandleTable {
 public:
  HandleRef find(Kind kind, const void* pointer) const;
  std::optional<Refusal> check(Kind kind, const void* pointer, bool closes) const;
  // The handle that lived there already, if any: it goes to the lost ones.
  HandleRef add(HandleRef handle);
  void hold(const HandleRef& holder, const HandleRef& held);
  static void let_go(Handle& holder);
  HandleRef a_child(const HandleRef& of) const;
  // It is closed: dead from now on. Descendants that live are lost: dead, too, and told as leaks.
  // Returns them.
  std::vector<HandleRef> close(const HandleRef& handle);
  // All that lives or was lost below `driver`, in order of making.
  std::vector<HandleRef> leaks(const HandleRef& driver) const;
  static std::string describe(const Handle& handle);  // "buffer 0x7f.. (64 bytes, call 12)"

 private:
  struct Dead {
    Kind kind;
    uint64_t serial;
  };
  void bury(const HandleRef& handle);

  std::map<std::pair<Kind, const void*>, HandleRef> living_;
  std::deque<HandleRef> lost_;
  std::unordered_map<const void*, Dead> dead_;  // the last ones, to tell stale from unknown
  std::deque<std::pair<const void*, uint64_t>> order_;
  uint64_t serial_ = 0;
};

}  // namespace calrt::layers
