// SPDX-License-Identifier: Apache-2.0
// A driver library: found, loaded, its table checked, layers put around it. Loaded once per real
// path, never unloaded; the driver itself is opened with the first DriverLibrary of the same path
// and layers and closed with the last holder.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "calrt/driver.h"
#include "calrt/driver_error.h"
#include "calrt/driver_handle.h"
#include "calrt/slot.h"
#include "layers/layer.h"

namespace calrt {

class DriverLibrary {
 public:
  // `name` is an absolute path, or a short name ("cpu") sought as libcald_<name>.so in
  // CALRT_DRIVER_PATH (colon-separated) and then in drivers/ beside libcalrt.so. Refuses another
  // ABI major and a table without a required entry, naming it. `layers` as layers::make_layers
  // takes it, for this load alone; without any, table() is the driver's own and the instance is
  // shared. `isolated`: in a process of its own, for this load alone (layers/isolate). Thread-safe.
  static Result<std::shared_ptr<DriverLibrary>> load(const std::string& name,
                                                     const std::string& layers = "",
                                                     bool isolated = false);
  // Real path of the library that load() would take for `name`.
  static Result<std::string> find(const std::string& name);
  // Short names that load() would find, sorted.
  static std::vector<std::string> available();

  ~DriverLibrary();
  DriverLibrary(const DriverLibrary&) = delete;
  DriverLibrary& operator=(const DriverLibrary&) = delete;

  const cald_driver_table& table() const { return layered_->table(); }
  const std::vector<std::shared_ptr<layers::Layer>>& layers() const { return layered_->layers(); }
  cald_driver* handle() const { return driver_.get().pointer; }
  const std::string& path() const { return path_; }
  // Runs `call(&error)` alone on the driver's handle, as the ABI promises drivers.
  template <class Call>
  Result<void> call_alone(const char* where, Call&& call);

 private:
  friend struct DriverRegistry;
  explicit DriverLibrary(Slot<DriverLibrary>* slot) : slot_(slot) {}
  Slot<DriverLibrary>* slot_;  // where it is shared; null with layers
  std::string path_;           // real path
  std::unique_ptr<layers::LayeredTable> layered_;
  DriverHandle driver_;
  RankedMutex mutex_{LockRank::DRIVERS, "driver"};
};

// The entry that the library at `path` exports; loads it, for good, here or in another process.
Result<cald_driver_entry_fn> load_entry(const std::string& path, bool isolated = false);

// The entry a caller wants, or null when the driver's table is too old to have it.
#define CALRT_DRIVER_ENTRY(table, entry)                                               \
  ((offsetof(cald_driver_table, entry) + sizeof((table).entry) <= (table).struct_size) \
       ? (table).entry                                                                 \
       : nullptr)

// Runs a driver entry with a cald_error and turns its answer into a Result. A number outside 0-29
// becomes INTERNAL with the number kept as native_code; a C++ exception becomes INTERNAL.
template <class Call>
Result<void> call_driver(const char* where, Call&& call);

template <class Call>
Result<void> call_driver(const char* where, Call&& call) {
  cald_error detail{};
  detail.struct_size = sizeof detail;
  cald_status status = CALD_OK;
  try {
    status = call(&detail);
  } catch (...) {
    return Error{Status::INTERNAL, 0, "the driver threw a C++ exception across the ABI", where};
  }
  if (status == CALD_OK) return {};
  return driver_error(status, detail, where);
}

template <class Call>
Result<void> DriverLibrary::call_alone(const char* where, Call&& call) {
  const std::scoped_lock lock(mutex_);
  return call_driver(where, std::forward<Call>(call));
}

// The same for an entry that makes a handle: call(&handle, &error). OK without a handle is
// INTERNAL.
template <class T, class Call>
Result<T*> call_driver_for(const char* where, Call&& call) {
  T* handle = nullptr;
  CALRT_TRY(call_driver(where, [&](cald_error* detail) { return call(&handle, detail); }));
  if (handle == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", where};
  return handle;
}

}  // namespace calrt
