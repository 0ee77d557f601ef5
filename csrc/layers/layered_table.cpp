// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <type_traits>

#include "layers/layer.h"

namespace calrt::layers {
namespace {

// One layer around one table: what the functions of a set work on.
struct Around {
  const cald_driver_table* below;
  Layer* layer;
};
std::array<std::atomic<const Around*>, kMostLayers> sets{};
std::mutex sets_mutex;  // of taking and giving back

[[gnu::noinline]] void run(Layer& layer, Call& call) {
  layer.before(call);
  if (!layer.replace(call)) call.forward();
  layer.after(call);
}

template <auto Member, class F>
struct Below;
template <auto Member, class R, class... A>
struct Below<Member, R (*)(A...)> {
  using Tuple = std::tuple<A&...>;
  static void call(Call& call) {
    auto& arguments = *static_cast<Tuple*>(call.arguments);
    if constexpr (std::is_void_v<R>)
      std::apply(call.driver.*Member, arguments);
    else
      call.status = std::apply(call.driver.*Member, arguments);
  }
};

template <class T>
cald_error* error_among(T) {
  return nullptr;
}
template <>
cald_error* error_among(cald_error* error) {
  return error;
}

// What stands in a layered table for one entry.
template <int Set, Entry E, auto Member, class F>
struct Thunk;
template <int Set, Entry E, auto Member, class R, class... A>
struct Thunk<Set, E, Member, R (*)(A...)> {
  static R entry(A... given) {
    const Around& around = *sets[Set].load(std::memory_order_acquire);
    std::tuple<A&...> arguments(given...);
    cald_error* error = nullptr;
    ((error = error_among(given) != nullptr ? error_among(given) : error), ...);
    Call call{E,
              *around.below,
              error,
              CALD_OK,
              !std::is_void_v<R>,
              &arguments,
              &Below<Member, R (*)(A...)>::call};
    run(*around.layer, call);
    if constexpr (!std::is_void_v<R>) return call.status;
  }
};

constexpr bool optional_entry(const char* need) { return need[0] == 'O'; }

template <int Set>
void fill(cald_driver_table& table, const Around& around) {
  const cald_driver_table& below = *around.below;
#define CALD_ENTRY(name, need, minor, cls)                                                   \
  if (offsetof(cald_driver_table, name) + sizeof(below.name) <= below.struct_size &&         \
      below.name != nullptr && !(optional_entry(#need) && around.layer->hides(Entry::name))) \
    table.name = &Thunk<Set, Entry::name, &cald_driver_table::name, decltype(below.name)>::entry;
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
}

template <int... Set>
constexpr auto fills(std::integer_sequence<int, Set...>) {
  return std::array{&fill<Set>...};
}
constexpr auto kFills = fills(std::make_integer_sequence<int, kMostLayers>());

// Holds one set of functions.
class Level {
 public:
  Level(const cald_driver_table& below, Layer& layer) : around_{&below, &layer} {
    const std::scoped_lock lock(sets_mutex);
    while (set_ < kMostLayers && sets[static_cast<size_t>(set_)].load() != nullptr) ++set_;
    if (!taken()) return;
    sets[static_cast<size_t>(set_)].store(&around_, std::memory_order_release);
    table_.struct_size = below.struct_size < sizeof table_ ? below.struct_size
                                                           : static_cast<uint32_t>(sizeof table_);
    table_.abi_version = below.abi_version;
    table_.name = below.name;
    table_.version = below.version;
    kFills[static_cast<size_t>(set_)](table_, around_);
  }
  ~Level() {
    if (!taken()) return;
    const std::scoped_lock lock(sets_mutex);
    sets[static_cast<size_t>(set_)].store(nullptr, std::memory_order_release);
  }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

  bool taken() const { return set_ < kMostLayers; }
  const cald_driver_table& table() const { return table_; }

 private:
  int set_ = 0;
  Around around_;
  cald_driver_table table_{};
};

class Stack final : public LayeredTable {
 public:
  Stack(const cald_driver_table& driver, std::vector<std::shared_ptr<Layer>> layers)
      : driver_(driver), layers_(std::move(layers)) {}
  ~Stack() override {
    while (!levels_.empty()) levels_.pop_back();  // outermost first
  }

  bool build() {
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      levels_.push_back(std::make_unique<Level>(table(), **layer));
      if (!levels_.back()->taken()) return false;
    }
    return true;
  }
  const cald_driver_table& table() const override {
    return levels_.empty() ? driver_ : levels_.back()->table();
  }
  const std::vector<std::shared_ptr<Layer>>& layers() const override { return layers_; }

 private:
  const cald_driver_table& driver_;
  std::vector<std::shared_ptr<Layer>> layers_;
  std::vector<std::unique_ptr<Level>> levels_;  // innermost first
};

}  // namespace

const char* entry_name(Entry entry) {
  static constexpr const char* kNames[] = {
#define CALD_ENTRY(name, need, minor, cls) #name,
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  };
  const auto index = static_cast<size_t>(entry);
  return index < std::size(kNames) ? kNames[index] : "?";
}

Result<std::unique_ptr<LayeredTable>> LayeredTable::make(
    const cald_driver_table& driver, std::vector<std::shared_ptr<Layer>> layers) {
  const size_t wanted = layers.size();
  auto stack = std::make_unique<Stack>(driver, std::move(layers));
  if (!stack->build())
    return fail(Status::BUFFER_POOL_EXHAUSTED,
                "layers: no room for %zu more around driver %s: a process has room for %d layers "
                "over all its open drivers; close devices that have layers (one with a job that "
                "was never told to have ended keeps them: start the process anew)",
                wanted, driver.name != nullptr ? driver.name : "?", kMostLayers);
  return std::unique_ptr<LayeredTable>(std::move(stack));
}

}  // namespace calrt::layers
