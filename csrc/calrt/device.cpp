// SPDX-License-Identifier: Apache-2.0
#include "calrt/device.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "calrt/device_spec.h"
#include "calrt/driver_host.h"
#include "layers/isolate/patience.h"

namespace calrt {
namespace {

// Drivers that run in a process of their own unless that is turned off: what they wrap may hang, or
// end the process.
constexpr const char* kIsolatedByDefault[] = {"calrt076"};

// How long a device that was closed may take to be let go of.
constexpr std::chrono::milliseconds kLettingGo{1000};

bool isolated_by_default(const std::string& driver) {
  const size_t slash = driver.rfind('/');
  const std::string file = driver.substr(slash == std::string::npos ? 0 : slash + 1);
  return std::any_of(
      std::begin(kIsolatedByDefault), std::end(kIsolatedByDefault),
      [&](const std::string& name) { return driver == name || file == "libcald_" + name + ".so"; });
}

Result<bool> isolation(const DeviceSpec& spec, const std::string& text,
                       const std::optional<bool>& wanted) {
  if (spec.isolated && wanted == false)
    return fail(Status::INVALID_ARGUMENT,
                "device '%s': \"isolate:\" and isolate=False contradict each other: leave out one",
                text.c_str());
  return spec.isolated || wanted.value_or(isolated_by_default(spec.driver));
}

}  // namespace

Result<std::shared_ptr<Device>> Device::open(const std::string& text, const Options& options,
                                             const OpenSettings& settings) {
  CALRT_TRY_ASSIGN(const DeviceSpec spec, DeviceSpec::parse(text));
  CALRT_TRY_ASSIGN(const bool isolated, isolation(spec, text, settings.isolate));
  // What the options say of another process holds from its first call on.
  std::optional<isolate::PatienceScope> patience_scope;
  if (isolated) {
    CALRT_TRY_ASSIGN(isolate::Patience patience, isolate::Patience::usual());
    for (const auto& [key, value] : options) CALRT_TRY(patience.take(key.c_str(), value.c_str()));
    patience_scope.emplace(patience);
  }
  std::shared_ptr<Device> device(new Device);
  device->spec_ = text;
  const char* usual_layers = std::getenv("CALRT_LAYERS");
  CALRT_TRY_ASSIGN(
      device->library_,
      DriverLibrary::load(spec.driver, settings.layers.value_or(usual_layers ? usual_layers : ""),
                          isolated));
  DriverLibrary& library = *device->library_;
  const cald_driver_table& table = library.table();

  uint32_t count = 0;
  CALRT_TRY(library.call_alone("device_count", [&](cald_error* detail) {
    return table.device_count(library.handle(), &count, detail);
  }));
  if (spec.index >= count)
    return fail(Status::OUT_OF_RANGE, "device '%s': index %u, but driver %s has %u device(s)",
                text.c_str(), spec.index, table.name, count);
  // The lock before the device: a driver need not stand two processes on it.
  cald_device_info seen{};
  seen.struct_size = sizeof seen;
  CALRT_TRY(library.call_alone("device_enumerate", [&](cald_error* detail) {
    return table.device_enumerate(library.handle(), spec.index, &seen, detail);
  }));
  const std::string lock_id =
      seen.id != nullptr && *seen.id != '\0' ? seen.id : std::to_string(spec.index);
  if (settings.exclusive.value_or(seen.exclusive != 0)) {
    CALRT_TRY_ASSIGN(device->lock_, DeviceLock::take(table.name, lock_id));
  }

  std::vector<cald_option> pairs;
  for (const auto& [key, value] : options) pairs.push_back({key.c_str(), value.c_str()});
  cald_device_options asked{};
  asked.struct_size = sizeof asked;
  asked.index = spec.index;
  asked.config = spec.config.c_str();
  asked.n_options = static_cast<uint32_t>(pairs.size());
  asked.options = pairs.data();
  cald_device* handle = nullptr;
  const auto open = [&] {
    return library.call_alone("device_open", [&](cald_error* detail) {
      return table.device_open(library.handle(), &asked, &handle, detail);
    });
  };
  Result<void> opened = open();
  if (!opened.ok() && opened.error().code == Status::DEVICE_UNHEALTHY) {
    const auto closed = DevicePresence::await(table.name, lock_id, kLettingGo);
    if (closed == DevicePresence::Closed::WENT) opened = open();
    if (closed == DevicePresence::Closed::STAYS) {
      Error held = std::move(opened).error();
      held.message +=
          "; this process has closed it, but something made from it still holds it (a model, lane, "
          "job, tensor or view, or the closed device itself): drop that, then open it again";
      return held;
    }
  }
  if (!opened.ok()) return std::move(opened).error();
  if (handle == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "device_open"};
  device->presence_.enter(table.name, lock_id);
  device->handle_ = DeviceHandle({handle, &table});

  CALRT_TRY_ASSIGN(const DeviceInfo info, device->info());
  if (!device->lock_.held() && settings.exclusive.value_or(info.exclusive)) {  // by its options
    CALRT_TRY_ASSIGN(device->lock_, DeviceLock::take(table.name, lock_id));
  }
  device->depth_ = info.depth;
  for (uint32_t i = 0; i < std::min(info.sessions, 256u); ++i)
    device->sessions_.push_back(std::make_unique<Slot<Session>>());
  return device;
}

uint64_t Device::next_serial() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

uint64_t Device::now_ns() const { return monotonic_ns(); }

Result<void> Device::check_open() const {
  if (inherited())
    return fail(Status::INVALID_STATE,
                "device '%s' was opened before this process was forked: open it in the child",
                spec_.c_str());
  if (!closed()) return {};
  return fail(Status::INVALID_STATE, "device '%s' is closed: open it again", spec_.c_str());
}

Result<std::shared_ptr<Session>> Device::session(uint32_t index) {
  CALRT_TRY(check_open());
  if (index >= sessions_.size())
    return fail(Status::OUT_OF_RANGE, "session %u: device '%s' has %zu", index, spec_.c_str(),
                sessions_.size());
  Slot<Session>& slot = *sessions_[index];
  bool timed_out = false;
  if (auto living = slot.take(std::chrono::seconds(10), &timed_out)) return living;
  if (timed_out)
    return fail(Status::INVALID_STATE, "session %u of '%s' is still closing after 10 s", index,
                spec_.c_str());
  return Session::open(shared_from_this(), index, &slot);
}

}  // namespace calrt
