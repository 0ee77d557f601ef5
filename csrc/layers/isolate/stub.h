// SPDX-License-Identifier: Apache-2.0
// An entry of the table in the parent, made from its signature: arguments go to the child in order,
// and what it gave comes back in order. The rules, which served.h in the child has the other half
// of:
//
//   handle        its number; NULL is 0
//   handle* out   made here for the child's new one
//   number        as it is
//   number* out   there and back
//   const struct* there, by its carry()
//   struct* out   there and back as far as the caller's struct_size reaches; with pointers in it
//                 only back
//   cald_error*   by Call
#pragma once

#include <cstring>
#include <tuple>

#include "layers/isolate/call.h"
#include "layers/isolate/objects.h"

namespace calrt::isolate {

// Decodes a struct with lists, so that they live as long as `object`. False: it makes no sense, or
// comes differently too often.
template <class T>
bool keep_lists(Object& object, Reader& in, T* out) {
  constexpr size_t kMost = 64;
  const std::string message(in.left());
  const std::scoped_lock lock(object.mutex);
  Lists* lists = nullptr;
  for (const auto& known : object.lists)
    if (known->message == message) lists = known.get();
  if (lists == nullptr) {
    if (object.lists.size() >= kMost) return false;
    object.lists.push_back(
        std::make_unique<Lists>(Lists{message, Pool(&object.remote->strings())}));
    lists = object.lists.back().get();
    Reader from(lists->message, lists->pool);
    auto* made = new (lists->pool.take(sizeof(T))) T;
    carry(from, *made);
    lists->made = made;
    if (!from.good()) {
      object.lists.pop_back();
      return false;
    }
  }
  *out = *static_cast<const T*>(lists->made);
  return true;
}

// Gives a struct to a caller whose version of it may be shorter or longer.
template <class T>
void give(T* out, const T& filled) {
  const uint32_t size = out->struct_size;
  std::memcpy(static_cast<void*>(out), &filled, std::min<size_t>(size, sizeof filled));
  out->struct_size = size;
}

// ---- to the child -------------------------------------------------------------------------------

template <class T>
  requires std::is_arithmetic_v<T>
void put(Writer& out, T value) {
  out.pod(value);
}
template <class T>
  requires std::is_arithmetic_v<T>
void put(Writer& out, T* value) {
  out.pod(*value);
}
template <class T>
  requires kHandle<T>
void put(Writer& out, T* handle) {
  out.pod(token_of(handle));
}
template <class T>
  requires kHandle<T>
void put(Writer&, T**) {}
inline void put(Writer&, cald_error*) {}
template <class T>
  requires(std::is_class_v<T> && !kHandle<T>)
void put(Writer& out, const T* given) {
  T copy = whole(*given);
  carry(out, copy);
}
template <class T>
  requires(std::is_class_v<T> && !kHandle<T>)
void put(Writer& out, T* given) {
  if constexpr (kFlat<T>)
    put(out, const_cast<const T*>(given));
  else
    out.pod(given->struct_size);
}

// ---- and back -----------------------------------------------------------------------------------

// `owner`: the handle that the call is on, of which lists are.
template <class T>
void get(Reader&, Object&, const T&) {}  // what only goes there
template <class T>
  requires std::is_arithmetic_v<T>
void get(Reader& in, Object&, T* const& out) {
  in.pod(*out);
}
inline void get(Reader&, Object&, cald_error* const&) {}
template <class T>
  requires kHandle<T>
void get(Reader&, Object&, T* const&) {}
template <class T>
  requires kHandle<T>
void get(Reader& in, Object& owner, T** const& out) {
  const auto token = in.get<uint64_t>();
  if (!in.good() || token == 0) return;
  auto* made = new Object{owner.remote, token};
  *out = handle_of<T>(made);
}
template <class T>
  requires(std::is_class_v<T> && !kHandle<T> && !std::is_const_v<T>)
void get(Reader& in, Object& owner, T* const& out) {
  T filled{};
  if constexpr (std::is_same_v<T, cald_topology> || std::is_same_v<T, cald_model_info>)
    in.check(keep_lists(owner, in, &filled));
  else
    carry(in, filled);
  if (in.good()) give(out, filled);
}

// ---- a whole entry ------------------------------------------------------------------------------

inline cald_error* error_among(cald_error* error) { return error; }
template <class T>
cald_error* error_among(const T&) {
  return nullptr;
}

template <layers::Entry E, class F>
struct Stub;
template <layers::Entry E, class R, class Handle, class... A>
struct Stub<E, R (*)(Handle*, A...)> {
  static cald_status null_handle(cald_error* error) {
    cald_error why{};
    why.code = CALD_INVALID_HANDLE;
    std::snprintf(why.message, sizeof why.message, "%s: the handle is null", entry_name(E));
    std::snprintf(why.where, sizeof why.where, "%s", entry_name(E));
    give_error(error, why);
    return CALD_INVALID_HANDLE;
  }
  static R entry(Handle* on, A... given) {
    cald_error* error = nullptr;
    ((error = error_among(given) != nullptr ? error_among(given) : error), ...);
    if constexpr (std::is_void_v<R>) {
      close(on);
    } else {
      if (on == nullptr) return null_handle(error);
      Object& object = *object_of(on);
      Call call(*object.remote, E, error);
      put(call.out(), on);
      (put(call.out(), given), ...);
      if (!call.run()) return call.status();
      (get(call.in(), object, given), ...);
      return call.in().good() ? call.status() : call.nonsense();
    }
  }
  // Closers: what was told before the entry returned has been told when this one does.
  static void close(Handle* on) {
    if (on == nullptr) return;
    const std::unique_ptr<Object> object(object_of(on));
    object->remote->flush_released();
    Call call(*object->remote, E, nullptr);
    put(call.out(), on);
    if (call.run()) object->remote->wait_taken(call.ring_position());
  }
};

}  // namespace calrt::isolate
