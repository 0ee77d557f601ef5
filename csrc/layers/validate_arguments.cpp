// SPDX-License-Identifier: Apache-2.0
#include "layers/validate_arguments.h"

#include <cstddef>
#include <cstdio>
#include <type_traits>

namespace calrt::layers {
namespace {

// Structs with a struct_size: the least that makes sense is what the ABI that brought them had.
template <class T>
struct Sized;
#define CALRT_SIZED(type, last, null)                                          \
  template <>                                                                  \
  struct Sized<type> {                                                         \
    static constexpr size_t least = offsetof(type, last) + sizeof(type::last); \
    static constexpr const char* name = #type;                                 \
    static constexpr bool may_be_null = null;                                  \
  };
CALRT_SIZED(cald_error, where, true)
CALRT_SIZED(cald_host, now_ns, false)
CALRT_SIZED(cald_device_options, options, false)
CALRT_SIZED(cald_load_options, progress, false)
CALRT_SIZED(cald_package, graphs, false)
CALRT_SIZED(cald_job_desc, user, false)
CALRT_SIZED(cald_device_info, memory_free, false)
CALRT_SIZED(cald_health, clock_mhz, false)
CALRT_SIZED(cald_cap, value, true)
CALRT_SIZED(cald_footprint, device_bytes, false)
CALRT_SIZED(cald_model_info, kv_bytes, false)
CALRT_SIZED(cald_timing, d2h_ns, false)
CALRT_SIZED(cald_topology, placements, false)
CALRT_SIZED(cald_buffer_rules, max_bytes, false)
CALRT_SIZED(cald_transfer, moved, false)
CALRT_SIZED(cald_buffer_state, job_seq, false)
CALRT_SIZED(cald_kv_info, bytes_per_cell, false)
CALRT_SIZED(cald_kv_desc, user, false)
CALRT_SIZED(cald_trace_info, residual_ns, true)
#undef CALRT_SIZED

template <class T>
concept SizedStruct = requires { Sized<T>::least; };

// Pointers to what the driver fills in and cannot do without.
template <class T>
concept OutScalar = std::is_same_v<T, uint32_t> || std::is_same_v<T, int32_t> ||
                    std::is_same_v<T, uint64_t> || std::is_same_v<T, void*>;

class Checker {
 public:
  Checker(const Call& call, const HandleTable& handles) : call_(call), handles_(handles) {}

  template <class T>
  void see(T argument) {
    if constexpr (std::is_pointer_v<T>) {
      using Pointee = std::remove_const_t<std::remove_pointer_t<T>>;
      if constexpr (HandleType<Pointee>) {
        see_handle(argument);
      } else if constexpr (std::is_pointer_v<Pointee> || OutScalar<Pointee>) {
        if (argument == nullptr) null("a pointer for the answer");
      } else if constexpr (SizedStruct<Pointee>) {
        see_struct(argument);
      }
    }
  }
  void see_bindings(const cald_binding* bindings, uint32_t n) {
    if (n != 0 && bindings == nullptr) return null("bindings");
    for (uint32_t i = 0; i < n; ++i) see_handle(bindings[i].buffer);
  }
  std::optional<Refusal> refusal;

 private:
  template <class T>
  void see_handle(const T* handle) {
    if (refusal) return;
    refusal = handles_.check(HandleKind<T>::value, handle, ends_handle(call_.entry));
  }
  template <class T>
  void see_struct(const T* given) {
    using S = Sized<T>;
    if (given == nullptr) {
      if (!S::may_be_null) null(S::name);
      return;
    }
    if (refusal) return;
    if (given->struct_size < S::least) {
      char text[160];
      std::snprintf(text, sizeof text, "%s.struct_size is %u, the shortest that makes sense is %zu",
                    S::name, given->struct_size, S::least);
      refusal = Refusal{Rule::struct_size, text};
      return;
    }
    see_within(*given);
  }
  template <class T>
  void see_within(const T&) {}
  void see_within(const cald_transfer& transfer) { see_handle(transfer.buffer); }
  void see_within(const cald_job_desc& job) {
    see_handle(job.model);
    see_bindings(job.bindings, job.n_bindings);
    if (has_field(job, &cald_job_desc::set) && job.set != nullptr) see_handle(job.set);
  }
  void see_within(const cald_kv_desc& job) {
    see_handle(job.model);
    if (job.op == CALD_KV_READ || job.op == CALD_KV_WRITE) see_handle(job.buffer);
  }
  void null(const char* what) {
    if (!refusal) refusal = Refusal{Rule::null_argument, std::string(what) + " is NULL"};
  }

  const Call& call_;
  const HandleTable& handles_;
};

}  // namespace

std::optional<Refusal> check_arguments(const Call& call, const HandleTable& handles) {
  Checker checker(call, handles);
  visit_arguments(call, [&](auto&... arguments) { (checker.see(arguments), ...); });
  if (call.entry == Entry::binding_set_make) {
    const auto& arguments = call.of<&cald_driver_table::binding_set_make>();
    checker.see_bindings(std::get<2>(arguments), std::get<3>(arguments));
  }
  return checker.refusal;
}

std::vector<const cald_buffer*> buffers_of(const cald_binding* bindings, uint32_t n) {
  std::vector<const cald_buffer*> buffers;
  for (uint32_t i = 0; i < n; ++i) buffers.push_back(bindings[i].buffer);
  return buffers;
}

}  // namespace calrt::layers
