// SPDX-License-Identifier: Apache-2.0
// The arguments of any call, seen by their types: what every entry has in common is written once.
#pragma once

#include <tuple>

#include "layers/layer.h"

namespace calrt::layers {

enum class Kind : uint8_t { DRIVER, DEVICE, SESSION, BUFFER, MODEL, JOB, BINDING_SET };
inline constexpr int kKinds = 7;
inline const char* kind_name(Kind kind) {
  static constexpr const char* kNames[kKinds] = {"driver", "device", "session",    "buffer",
                                                 "model",  "job",    "binding set"};
  return kNames[static_cast<int>(kind)];
}

template <class T>
struct HandleKind;  // of the driver's handle types only
#define CALRT_HANDLE(type, kind)              \
  template <>                                 \
  struct HandleKind<type> {                   \
    static constexpr Kind value = Kind::kind; \
  };
CALRT_HANDLE(cald_driver, DRIVER)
CALRT_HANDLE(cald_device, DEVICE)
CALRT_HANDLE(cald_session, SESSION)
CALRT_HANDLE(cald_buffer, BUFFER)
CALRT_HANDLE(cald_model, MODEL)
CALRT_HANDLE(cald_job, JOB)
CALRT_HANDLE(cald_binding_set, BINDING_SET)
#undef CALRT_HANDLE

template <class T>
concept HandleType = requires { HandleKind<T>::value; };

// f(arguments...) with references to the arguments of the call as they are now.
template <class F>
void visit_arguments(const Call& call, F&& f) {
  switch (call.entry) {
#define CALD_ENTRY(name, need, minor, cls)              \
  case Entry::name:                                     \
    std::apply(f, call.of<&cald_driver_table::name>()); \
    return;
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  }
}

// True for the entries that end a handle: they return nothing and take that handle alone.
inline bool ends_handle(Entry entry) {
  switch (entry) {
    case Entry::driver_close:
    case Entry::device_close:
    case Entry::session_close:
    case Entry::buffer_free:
    case Entry::model_unload:
    case Entry::job_destroy:
    case Entry::binding_set_free:
      return true;
    default:
      return false;
  }
}

// A field that came after ABI 0.1 is there only if the struct reaches so far.
template <class T, class Field>
bool has_field(const T& in, Field T::* field) {
  const auto* end = reinterpret_cast<const char*>(&(in.*field) + 1);
  return end - reinterpret_cast<const char*>(&in) <= static_cast<ptrdiff_t>(in.struct_size);
}

}  // namespace calrt::layers
