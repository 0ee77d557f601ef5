// SPDX-License-Identifier: Apache-2.0
// A driver library: found, loaded, its table checked. Loaded once per real path, never unloaded;
// the driver itself is opened with the first DriverLibrary and closed with the last holder.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"
#include "calrt/driver_handle.h"

namespace calrt {

class DriverLibrary {
 public:
  // `name` is an absolute path, or a short name ("cpu") sought as libcald_<name>.so in
  // CALRT_DRIVER_PATH (colon-separated) and then in drivers/ beside libcalrt.so. Refuses another
  // ABI major and a table without a required entry, naming it. Thread-safe.
  static Result<std::shared_ptr<DriverLibrary>> load(const std::string& name);
  // Short names that load() would find, sorted.
  static std::vector<std::string> available();

  ~DriverLibrary();
  DriverLibrary(const DriverLibrary&) = delete;
  DriverLibrary& operator=(const DriverLibrary&) = delete;

  const cald_driver_table& table() const { return *table_; }
  cald_driver* handle() const { return driver_.get().pointer; }
  const std::string& path() const { return path_; }

 private:
  friend struct DriverRegistry;
  DriverLibrary() = default;
  std::string path_;  // real path
  const cald_driver_table* table_ = nullptr;
  DriverHandle driver_;
};

// The entry a caller wants, or null when the driver's table is too old to have it.
#define CALRT_DRIVER_ENTRY(table, entry)                                               \
  ((offsetof(cald_driver_table, entry) + sizeof((table).entry) <= (table).struct_size) \
       ? (table).entry                                                                 \
       : nullptr)

// Runs a driver entry with a cald_error and turns its answer into a Result. A number outside 0-29
// becomes INTERNAL with the number kept as native_code; a C++ exception becomes INTERNAL.
template <class Call>
Result<void> call_driver(const char* where, Call&& call);

// The error a driver reported, as ours. `status` is not OK.
Error driver_error(cald_status status, const cald_error& detail, const char* where);

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
