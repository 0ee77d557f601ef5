// SPDX-License-Identifier: Apache-2.0
// A layer stands between calrt and a driver and sees every call of every entry: before it, after
// it, or instead of it. What it is for: fault injection, validation, tracing, recording.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"

namespace calrt::layers {

// One number per entry of cald_driver_table, in order.
enum class Entry : uint16_t {
#define CALD_ENTRY(name, need, minor, cls) name,
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
};
inline constexpr int kEntryCount = 0  // clang-format off
#define CALD_ENTRY(name, need, minor, cls) +1
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
    ;                                 // clang-format on
const char* entry_name(Entry entry);  // "buffer_alloc"

// The arguments of an entry as a tuple of references, for a hook to read or to change.
template <class F>
struct ArgumentsOf;
template <class R, class... A>
struct ArgumentsOf<R (*)(A...)> {
  using Tuple = std::tuple<A&...>;
};

// One call of one entry, as its hooks see it. Valid during the call only.
struct Call {
  Entry entry;
  const cald_driver_table& driver;  // what is below this layer; hooks may call it
  cald_error* error = nullptr;      // the caller's, null if the entry has none or none was given
  cald_status status = CALD_OK;     // the answer: after() may change it, replace() sets it
  bool has_status = false;          // false for entries that return nothing
  void* arguments = nullptr;        // see of()
  void (*below)(Call&) = nullptr;   // see forward()

  // call.of<&cald_driver_table::submit>() is (session&, desc&, out&, err&). Only for that entry.
  template <auto Member>
  auto& of() const {
    using F = std::remove_reference_t<decltype(std::declval<cald_driver_table>().*Member)>;
    return *static_cast<typename ArgumentsOf<F>::Tuple*>(arguments);
  }
  // An entry of what is below, null where that lacks it.
  template <auto Member>
  auto lower() const {
    const auto& entry = driver.*Member;
    const auto end = reinterpret_cast<const char*>(&entry + 1);
    const bool there = end - reinterpret_cast<const char*>(&driver) <= driver.struct_size;
    return there ? entry : nullptr;
  }
  // Calls the entry below with the arguments as they are now and takes its answer: for a
  // replace() that stands around the call.
  void forward() { below(*this); }
};

// Hooks are called on whatever thread calls the entry, several at once, so a layer locks for
// itself. What a hook or the driver throws crosses the border at once: after() is not called.
class Layer {
 public:
  virtual ~Layer() = default;
  virtual const char* name() const = 0;
  virtual void before(Call&) {}
  // True: what is below is not called; call.status is the answer.
  virtual bool replace(Call&) { return false; }
  virtual void after(Call&) {}
  // True: the entry is NULL above this layer. Asked once, for optional entries.
  virtual bool hides(Entry) const { return false; }
  // Shown by device.counters() as "<name()>.<counter>".
  virtual std::vector<std::pair<std::string, uint64_t>> counters() { return {}; }
};

// A driver's table with layers around it, outermost first; without layers it is the driver's own.
// An entry that the driver lacks is lacking here too. The table lives as long as this object; calls
// that are running when it goes must be over.
class LayeredTable {
 public:
  // `driver` must outlive it. BUFFER_POOL_EXHAUSTED when kMostLayers are in use in this process.
  static Result<std::unique_ptr<LayeredTable>> make(const cald_driver_table& driver,
                                                    std::vector<std::shared_ptr<Layer>> layers);
  virtual ~LayeredTable() = default;
  virtual const cald_driver_table& table() const = 0;
  virtual const std::vector<std::shared_ptr<Layer>>& layers() const = 0;
};

// A driver's functions take no context argument, so each layer of each open driver takes one of
// this many sets of functions.
inline constexpr int kMostLayers = 32;

// "fault:RULES" or another known layer; several are separated by ';' (not inside "quotes"),
// outermost first. "" is none. INVALID_ARGUMENT naming the part that has no meaning.
Result<std::vector<std::shared_ptr<Layer>>> make_layers(const std::string& spec);

// C++ callers may add layers of their own to every driver they open under this name:
// register_layer("mine", make) makes "mine:config" known to make_layers. Thread-safe.
using LayerFactory = Result<std::shared_ptr<Layer>> (*)(const std::string& config);
void register_layer(const std::string& name, LayerFactory make);

}  // namespace calrt::layers
