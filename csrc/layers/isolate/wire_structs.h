// SPDX-License-Identifier: Apache-2.0
// One carry() per struct of the ABI, for a Writer and for a Reader alike. After sized() every
// pointer of the struct must be named: what is not would arrive as another process's address.
#pragma once

#include "layers/isolate/wire.h"

namespace calrt::isolate {

// Structs without pointers.
template <class T>
inline constexpr bool kFlat = false;
template <>
inline constexpr bool kFlat<cald_health> = true;
template <>
inline constexpr bool kFlat<cald_footprint> = true;
template <>
inline constexpr bool kFlat<cald_kv_info> = true;
template <>
inline constexpr bool kFlat<cald_buffer_rules> = true;
template <>
inline constexpr bool kFlat<cald_buffer_state> = true;
template <>
inline constexpr bool kFlat<cald_timing> = true;
template <>
inline constexpr bool kFlat<cald_trace_info> = true;
template <>
inline constexpr bool kFlat<cald_completion> = true;

template <class C, class T>
  requires kFlat<T>
void carry(C& c, T& s) {
  c.sized(s);
}

template <class C>
void carry(C& c, cald_device_info& s) {
  c.sized(s);
  c.text(s.name);
  c.text(s.device_class);
  c.text(s.runtime);
  c.text(s.id);
}

template <class C>
void carry(C& c, cald_chip& s) {
  c.sized(s);
  c.text(s.name);
}

template <class C>
void carry(C& c, cald_topology& s) {
  c.sized(s);
  c.pointers(s.n_chips, s.chips);
  c.array(s.n_links, s.links);
  c.array(s.n_sessions, s.session_chips);
  c.texts(s.n_modes, s.modes);
  c.texts(s.n_placements, s.placements);
}

template <class C>
void carry(C& c, cald_cap& s) {
  c.sized(s);
  c.text(s.name);
  c.text(s.source);
}

template <class C>
void carry(C& c, cald_counter& s) {
  c.text(s.name);
  c.pod(s.value);
}

template <class C>
void carry(C& c, cald_trace_event& s) {
  c.pod(s.t_ns);
  c.pod(s.id);
  c.text(s.name);
  c.pod(s.phase);
  c.pod(s.track);
  c.pod(s.value);
}

template <class C>
void carry(C& c, cald_device_options& s) {
  c.sized(s);
  c.text(s.config);
  uint32_t count = s.n_options;
  const char* const* words = nullptr;  // key, value, key, value, ...
  std::vector<const char*> flat;
  if constexpr (!C::kReads) {
    for (uint32_t i = 0; i < count; ++i)
      flat.insert(flat.end(), {s.options[i].key, s.options[i].value});
    words = flat.data();
    count *= 2;
  }
  c.texts(count, words);
  if constexpr (C::kReads) {
    c.check(count % 2 == 0);
    s.n_options = count / 2;
    auto* options = static_cast<cald_option*>(c.pool().take(count * sizeof(cald_option)));
    for (uint32_t i = 0; i < s.n_options; ++i) options[i] = {words[2 * i], words[2 * i + 1]};
    s.options = options;
  }
}

// ---- packages and models ------------------------------------------------------------------------

template <class C>
void carry(C& c, cald_io& s) {
  c.sized(s);
  c.check(s.rank <= CALD_MAX_RANK && s.layout.n_axes <= CALD_MAX_AXES);
}

template <class C>
void carry(C& c, cald_graph& s) {
  c.sized(s);
  c.text(s.name);
  c.pointers(s.n_inputs, s.inputs);
  c.pointers(s.n_outputs, s.outputs);
  c.text(s.share_group);
}

// The descriptor is a number of the sender's: it goes by another way.
template <class C>
void carry(C& c, cald_artifact& s) {
  c.sized(s);
  c.text(s.id);
  c.text(s.role);
}

template <class C>
void carry(C& c, cald_tensor& s) {
  c.sized(s);
  c.text(s.name);
  c.check(s.rank <= CALD_MAX_RANK);
}

template <class C>
void carry(C& c, cald_arch& s) {
  c.sized(s);
  c.text(s.name);
}

template <class C>
void carry(C& c, cald_package& s) {
  c.sized(s);
  c.text(s.name);
  c.text(s.id);
  c.pointer(s.arch);
  c.pointers(s.n_artifacts, s.artifacts);
  c.pointers(s.n_tensors, s.tensors);
  c.pointers(s.n_graphs, s.graphs);
}

// user and progress are the receiver's own.
template <class C>
void carry(C& c, cald_load_options& s) {
  c.sized(s);
  c.text(s.parallel);
  c.text(s.placement);
  c.array(s.n_profiles, s.profiles);
  c.array(s.n_chunks, s.chunks);
  if constexpr (C::kReads) {
    s.user = nullptr;
    s.progress = nullptr;
  }
}

template <class C>
void carry(C& c, cald_model_info& s) {
  c.sized(s);
  c.pointers(s.n_graphs, s.graphs);
}

// ---- errors -------------------------------------------------------------------------------------

// What a driver put into an error, if anything.
template <class C>
void carry(C& c, cald_error& s) {
  char message[sizeof s.message], where[sizeof s.where];
  const char *message_text = message, *where_text = where;
  if constexpr (!C::kReads) {  // a driver's text may lack its end
    std::memcpy(message, s.message, sizeof message);
    std::memcpy(where, s.where, sizeof where);
    message[sizeof message - 1] = where[sizeof where - 1] = '\0';
  }
  c.pod(s.code);
  c.pod(s.native_code);
  c.pod(s.flags);
  c.text(message_text);
  c.text(where_text);
  if constexpr (C::kReads) {
    s.struct_size = sizeof s;
    const auto put = [](char* to, size_t room, const char* from) {
      const size_t bytes = from != nullptr ? strnlen(from, room - 1) : 0;
      if (bytes != 0) std::memcpy(to, from, bytes);
      to[bytes] = '\0';
    };
    put(s.message, sizeof s.message, message_text);
    put(s.where, sizeof s.where, where_text);
  }
}

}  // namespace calrt::isolate
