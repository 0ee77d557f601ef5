// SPDX-License-Identifier: Apache-2.0
// An entry in the child, made from its signature: the other half of stub.h, whose rules it follows.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

#include "isolate/program.h"
#include "layers/isolate/objects.h"

namespace calrt::isolate {

cald_status refuse(cald_error* error, cald_status status, const char* where, const char* text);
inline cald_status refuse_malformed(cald_error* error) {
  return refuse(error, CALD_INTERNAL, "isolate", "the parent's request makes no sense");
}

// Room for one argument: read from the request, given to the entry, written into the reply.
template <class A>
struct Held {  // a number
  static_assert(std::is_arithmetic_v<A>);
  A value{};
  Held(Request& r, cald_error*) { r.in.pod(value); }
  A argument() { return value; }
  void reply(Request&) {}
};
template <class T>
  requires std::is_arithmetic_v<T>
struct Held<T*> {
  T value{};
  Held(Request& r, cald_error*) { r.in.pod(value); }
  T* argument() { return &value; }
  void reply(Request& r) { r.out.pod(value); }
};
template <class T>
  requires kHandle<T>
struct Held<T*> {
  uint64_t token;
  T* value;
  Held(Request& r, cald_error*)
      : token(r.in.get<uint64_t>()), value(static_cast<T*>(r.program.handles.find(token))) {}
  T* argument() { return value; }
  void reply(Request&) {}
};
template <class T>
  requires kHandle<T>
struct Held<T**> {
  T* value = nullptr;
  Held(Request&, cald_error*) {}
  T** argument() { return &value; }
  void reply(Request& r) { r.out.pod(r.program.handles.add(value)); }
};
template <>
struct Held<cald_error*> {
  cald_error* value;
  Held(Request&, cald_error* error) : value(error) {}
  cald_error* argument() { return value; }
  void reply(Request&) {}
};
template <class T>
  requires(std::is_class_v<T> && !kHandle<T>)
struct Held<const T*> {
  T value{};
  Held(Request& r, cald_error*) { carry(r.in, value); }
  const T* argument() { return &value; }
  void reply(Request&) {}
};
template <class T>
  requires(std::is_class_v<T> && !kHandle<T>)
struct Held<T*> {
  T value{};
  uint32_t size = 0;
  Held(Request& r, cald_error*) {
    if constexpr (kFlat<T>) {
      carry(r.in, value);
      size = value.struct_size;
    } else {  // the caller's version, as far as it is known here
      size = std::min(r.in.get<uint32_t>(), static_cast<uint32_t>(sizeof value));
      value.struct_size = size;
    }
  }
  T* argument() { return &value; }
  void reply(Request& r) {
    value.struct_size = size;
    carry(r.out, value);
  }
};

template <auto Member, class F>
struct Served;
template <auto Member, class R, class... A>
struct Served<Member, R (*)(A...)> {
  static cald_status serve(Request& request, cald_error* error) {
    // Braces: from left to right, as they were written.
    std::tuple<Held<A>...> held{Held<A>(request, error)...};
    if (!request.in.good()) return refuse_malformed(error);
    cald_status status = CALD_OK;
    std::apply(
        [&](auto&... one) {
          if constexpr (std::is_void_v<R>) {  // a closer
            (request.program.table->*Member)(one.argument()...);
            request.program.handles.forget(std::get<0>(held).token);
          } else {
            status = (request.program.table->*Member)(one.argument()...);
          }
          (one.reply(request), ...);
        },
        held);
    return status;
  }
};

}  // namespace calrt::isolate
