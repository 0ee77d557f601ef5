// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/isolate.h"

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "layers/isolate/entries.h"
#include "layers/isolate/stub.h"

namespace calrt::isolate {
namespace {

using layers::Entry;

// Entries with a function of their own; the others follow from their signatures.
template <Entry E>
inline constexpr std::nullptr_t kOwn = nullptr;
#define CALRT_OWN(entry) \
  template <>            \
  inline constexpr auto kOwn<Entry::entry> = &own::entry
CALRT_OWN(driver_close);
CALRT_OWN(device_open);
CALRT_OWN(device_caps);
CALRT_OWN(device_counters);
CALRT_OWN(trace_drain);
CALRT_OWN(session_open);
CALRT_OWN(buffer_alloc);
CALRT_OWN(buffer_map);
CALRT_OWN(buffer_h2d);
CALRT_OWN(buffer_d2h);
CALRT_OWN(buffer_transfer);
CALRT_OWN(model_footprint);
CALRT_OWN(model_load);
CALRT_OWN(binding_set_make);
CALRT_OWN(submit);
CALRT_OWN(kv_submit);
CALRT_OWN(job_query);
CALRT_OWN(job_wait);
CALRT_OWN(job_cancel);
CALRT_OWN(job_timing);
CALRT_OWN(job_destroy);
#undef CALRT_OWN

// driver_open has no handle to know its library by, so each library has a set of functions.
struct Library {
  std::string path;
  Facts facts;
  cald_driver_table table{};
};
std::array<std::unique_ptr<Library>, kMostLibraries> libraries;  // grows, and no more
std::mutex libraries_mutex;

template <int Set>
cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* error) {
  return own::open_driver(libraries[Set]->path, libraries[Set]->facts, host, out, error);
}

template <Entry E, class F>
constexpr F function_of(F driver_open) {
  if constexpr (E == Entry::driver_open)
    return driver_open;
  else if constexpr (!std::is_same_v<decltype(kOwn<E>), const std::nullptr_t>)
    return kOwn<E>;
  else
    return &Stub<E, F>::entry;
}

template <int Set>
void fill(Library& library) {
  cald_driver_table& table = library.table;
  const Facts& facts = library.facts;
  table.struct_size = std::min(facts.struct_size, static_cast<uint32_t>(sizeof table));
  table.abi_version = facts.abi_version;
  table.name = facts.name.empty() ? nullptr : facts.name.c_str();
  table.version = facts.version.empty() ? nullptr : facts.version.c_str();
#define CALD_ENTRY(entry, need, minor, cls)                                   \
  if ((facts.has >> static_cast<int>(Entry::entry) & 1) != 0) {               \
    decltype(table.entry) own_open = nullptr;                                 \
    if constexpr (Entry::entry == Entry::driver_open)                         \
      own_open = reinterpret_cast<decltype(table.entry)>(&driver_open<Set>);  \
    table.entry = function_of<Entry::entry, decltype(table.entry)>(own_open); \
  }
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
}

// Whatever version is asked for, the library answers; what it is does not change.
template <int Set>
cald_status entry(const cald_host*, uint32_t abi_requested, const cald_driver_table** out) {
  const Library& library = *libraries[Set];
  if (abi_requested != CALD_ABI_VERSION) {
    auto remote = Remote::start(library.path);
    if (!remote.ok()) return static_cast<cald_status>(remote.error().code);
    cald_status answered = CALD_OK;
    const auto facts = (*remote)->load(abi_requested, &answered);
    if (!facts.ok()) return static_cast<cald_status>(facts.error().code);
    if (answered != CALD_OK) return answered;
  }
  *out = library.facts.struct_size != 0 ? &library.table : nullptr;
  return CALD_OK;
}

struct Functions {
  void (*fill)(Library&);
  cald_driver_entry_fn entry;
};
template <int... Set>
constexpr auto sets(std::integer_sequence<int, Set...>) {
  return std::array{Functions{&fill<Set>, &entry<Set>}...};
}
constexpr auto kSets = sets(std::make_integer_sequence<int, kMostLibraries>());

Result<Facts> look_at(const std::string& path) {
  CALRT_TRY_ASSIGN(const std::shared_ptr<Remote> remote, Remote::start(path));
  cald_status answered = CALD_OK;
  CALRT_TRY_ASSIGN(Facts facts, remote->load(CALD_ABI_VERSION, &answered));
  if (answered == CALD_OK) return facts;
  Error refused =
      fail(static_cast<Status>(answered), "driver %.160s refuses calrt's driver ABI %d.%d",
           path.c_str(), CALD_ABI_MAJOR, CALD_ABI_MINOR);
  refused.where = "driver_entry";
  return refused;
}

}  // namespace

Result<cald_driver_entry_fn> entry_of(const std::string& path) {
  const auto known = [&path] {  // under the mutex: its set, or the first that is free
    size_t set = 0;
    while (set < libraries.size() && libraries[set] != nullptr && libraries[set]->path != path)
      ++set;
    return set;
  };
  std::unique_lock lock(libraries_mutex);
  if (const size_t set = known(); set < libraries.size() && libraries[set] != nullptr)
    return kSets[set].entry;
  lock.unlock();  // a library that hangs while it is loaded holds up nobody else
  auto library = std::make_unique<Library>();
  library->path = path;
  CALRT_TRY_ASSIGN(library->facts, look_at(path));
  lock.lock();
  const size_t set = known();
  if (set == libraries.size())
    return fail(Status::BUFFER_POOL_EXHAUSTED,
                "isolate: a process has room for %d driver libraries: restart it", kMostLibraries);
  if (libraries[set] != nullptr) return kSets[set].entry;  // somebody was faster
  kSets[set].fill(*library);
  libraries[set] = std::move(library);
  return kSets[set].entry;
}

}  // namespace calrt::isolate
