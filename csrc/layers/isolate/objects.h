// SPDX-License-Identifier: Apache-2.0
// What the handles of an isolated driver are in the parent: the child, and the number by which it
// knows its own. Also the numbers of kinds, which both sides use.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "layers/isolate/remote.h"

namespace calrt::isolate {

template <class T>
inline constexpr bool kHandle =
    std::is_same_v<T, cald_driver> || std::is_same_v<T, cald_device> ||
    std::is_same_v<T, cald_session> || std::is_same_v<T, cald_model> ||
    std::is_same_v<T, cald_buffer> || std::is_same_v<T, cald_binding_set>;

// Lists that were handed out and live as long as the handle they belong to.
struct Lists {
  std::string message;  // what they were made of: the same again is given again
  Pool pool;
  const void* made = nullptr;  // the struct
};

struct Object {
  Remote* remote = nullptr;
  uint64_t token = 0;
  std::shared_ptr<Remote> owner{};  // of a driver
  uint64_t bytes = 0;               // of a buffer
  bool virtual_clock = false;       // of a session
  std::mutex mutex{};               // of what follows
  std::vector<std::unique_ptr<Lists>> lists{};
};

template <class T>
  requires kHandle<T>
Object* object_of(T* handle) {
  return reinterpret_cast<Object*>(handle);
}
template <class T>
T* handle_of(Object* object) {
  return reinterpret_cast<T*>(object);
}
inline Job* job_of(cald_job* handle) { return reinterpret_cast<Job*>(handle); }

// The number that goes to the child; 0 = NULL.
template <class T>
uint64_t token_of(T* handle) {
  return handle != nullptr ? object_of(handle)->token : 0;
}

}  // namespace calrt::isolate
