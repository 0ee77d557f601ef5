// SPDX-License-Identifier: Apache-2.0
// Sole owners of a driver's handles: unique_handle with the table that destroys them.
#pragma once

#include <cstddef>

#include "base/log.h"
#include "base/unique_handle.h"
#include "calrt/driver.h"

namespace calrt {

template <class T, void (*cald_driver_table::*Destroy)(T*)>
struct DriverHandleTraits {
  struct Handle {
    T* pointer = nullptr;
    const cald_driver_table* table = nullptr;
    Handle() = default;
    Handle(std::nullptr_t) {}
    Handle(T* p, const cald_driver_table* t) : pointer(p), table(t) {}
    bool operator==(std::nullptr_t) const { return pointer == nullptr; }
  };
  static void destroy(Handle handle) noexcept {
    try {
      (handle.table->*Destroy)(handle.pointer);
    } catch (...) {
      log_line(LOG_ERROR, handle.table->name, "threw a C++ exception while destroying a handle");
    }
  }
};

using DriverHandle =
    unique_handle<DriverHandleTraits<cald_driver, &cald_driver_table::driver_close>>;
using DeviceHandle =
    unique_handle<DriverHandleTraits<cald_device, &cald_driver_table::device_close>>;
using SessionHandle =
    unique_handle<DriverHandleTraits<cald_session, &cald_driver_table::session_close>>;
using BufferHandle =
    unique_handle<DriverHandleTraits<cald_buffer, &cald_driver_table::buffer_free>>;
using ModelHandle = unique_handle<DriverHandleTraits<cald_model, &cald_driver_table::model_unload>>;
using JobHandle = unique_handle<DriverHandleTraits<cald_job, &cald_driver_table::job_destroy>>;

}  // namespace calrt
