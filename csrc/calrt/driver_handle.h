// SPDX-License-Identifier: Apache-2.0
// Sole owners of a driver's handles: unique_handle with the table that destroys them.
// A fork leaves the driver's threads behind: in the child a handle is dropped without a call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/log.h"
#include "base/process.h"
#include "base/unique_handle.h"
#include "calrt/driver.h"

namespace calrt {

template <class T, void (*cald_driver_table::*Destroy)(T*)>
struct DriverHandleTraits {
  struct Handle {
    T* pointer = nullptr;
    const cald_driver_table* table = nullptr;
    uint32_t process = 0;  // that got it, as process_generation()
    Handle() = default;
    Handle(std::nullptr_t) {}
    Handle(T* p, const cald_driver_table* t)
        : pointer(p), table(t), process(process_generation()) {}
    bool operator==(std::nullptr_t) const { return pointer == nullptr; }
    bool inherited() const { return pointer != nullptr && process != process_generation(); }
  };
  static void destroy(Handle handle) noexcept {
    if (handle.inherited()) return;
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
using BindingSetHandle =
    unique_handle<DriverHandleTraits<cald_binding_set, &cald_driver_table::binding_set_free>>;
using JobHandle = unique_handle<DriverHandleTraits<cald_job, &cald_driver_table::job_destroy>>;

}  // namespace calrt
