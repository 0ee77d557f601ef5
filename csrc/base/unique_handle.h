// SPDX-License-Identifier: Apache-2.0
// unique_handle<Traits>: sole owner of a C handle. Traits give `Handle` (a pointer type) and
// `static void destroy(Handle) noexcept`. Move-only; moving over a live handle destroys it first.
#pragma once

#include <utility>

namespace calrt {

template <class Traits>
class unique_handle {
 public:
  using Handle = typename Traits::Handle;

  unique_handle() = default;
  explicit unique_handle(Handle handle) noexcept : handle_(handle) {}
  unique_handle(unique_handle&& other) noexcept : handle_(other.release()) {}
  unique_handle& operator=(unique_handle&& other) noexcept {
    reset(other.release());  // of itself: empty by then, so it takes back what it gave
    return *this;
  }
  unique_handle(const unique_handle&) = delete;
  unique_handle& operator=(const unique_handle&) = delete;
  ~unique_handle() { reset(); }

  Handle get() const noexcept { return handle_; }
  explicit operator bool() const noexcept { return handle_ != nullptr; }

  [[nodiscard]] Handle release() noexcept { return std::exchange(handle_, nullptr); }
  void reset(Handle handle = nullptr) noexcept {
    if (Handle old = std::exchange(handle_, handle); old != nullptr) Traits::destroy(old);
  }

 private:
  Handle handle_ = nullptr;
};

}  // namespace calrt
