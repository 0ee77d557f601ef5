// SPDX-License-Identifier: Apache-2.0
#include "calrt/device.h"

#include <algorithm>
#include <charconv>

#include "base/utf8.h"
#include "calrt/driver_host.h"

namespace calrt {
namespace {

constexpr uint32_t kMaxListed = 4096;  // caps or counters; more is a driver's mistake

std::string text_of(const char* text) {
  return text != nullptr ? clean_utf8(text, 1024) : std::string();
}

// What follows the driver in a spec: all digits are a device's index, anything else its config.
struct Spec {
  std::string driver, config;
  uint32_t index = 0;
};

Result<Spec> parse_spec(const std::string& text) {
  Spec spec;
  const size_t from = text.empty() || text[0] != '/' ? 0 : text.rfind('/');
  const size_t colon = text.find(':', from);
  spec.driver = text.substr(0, colon);
  if (colon != std::string::npos) spec.config = text.substr(colon + 1);
  if (spec.driver.empty())
    return fail(Status::INVALID_ARGUMENT,
                "device '%s': expected a driver's name (\"cpu\", \"mock:bare\") or "
                "\"/path/libcald_vendor.so:0\"",
                text.c_str());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!spec.config.empty() && std::all_of(spec.config.begin(), spec.config.end(), is_digit)) {
    const char* end = spec.config.data() + spec.config.size();
    if (std::from_chars(spec.config.data(), end, spec.index).ec != std::errc())
      return fail(Status::OUT_OF_RANGE, "device '%s': index %s is too large", text.c_str(),
                  spec.config.c_str());
    spec.config.clear();
  }
  return spec;
}

// The two-step protocol of the driver's lists: ask for the number, then for the entries.
template <class T, class Ask>
Result<std::vector<T>> list_of(const char* where, const T& blank, Ask&& ask) {
  uint32_t count = 0;
  CALRT_TRY(ask(nullptr, &count));
  for (int attempt = 0; attempt < 4; ++attempt) {
    if (count > kMaxListed)
      return Error{Status::INTERNAL, 0, "the driver lists " + std::to_string(count) + " entries",
                   where};
    std::vector<T> list(count, blank);
    const uint32_t room = count;
    CALRT_TRY(ask(list.data(), &count));
    if (count <= room) {
      list.resize(count);
      return list;
    }
  }
  return Error{Status::INTERNAL, 0, "the driver's list grows each time it is asked for", where};
}

}  // namespace

Session::~Session() {
  handle_.reset();
  slot_->vacate();
}

Result<std::shared_ptr<Device>> Device::open(const std::string& text, const Options& options) {
  CALRT_TRY_ASSIGN(const Spec spec, parse_spec(text));
  std::shared_ptr<Device> device(new Device);
  device->spec_ = text;
  CALRT_TRY_ASSIGN(device->library_, DriverLibrary::load(spec.driver));
  const cald_driver_table& table = device->table();

  uint32_t count = 0;
  CALRT_TRY(call_driver("device_count", [&](cald_error* detail) {
    return table.device_count(device->library_->handle(), &count, detail);
  }));
  if (spec.index >= count)
    return fail(Status::OUT_OF_RANGE, "device '%s': index %u, but driver %s has %u device(s)",
                text.c_str(), spec.index, table.name, count);

  std::vector<cald_option> pairs;
  for (const auto& [key, value] : options) pairs.push_back({key.c_str(), value.c_str()});
  cald_device_options asked{};
  asked.struct_size = sizeof asked;
  asked.index = spec.index;
  asked.config = spec.config.c_str();
  asked.n_options = static_cast<uint32_t>(pairs.size());
  asked.options = pairs.data();
  CALRT_TRY_ASSIGN(
      cald_device * handle,
      call_driver_for<cald_device>("device_open", [&](cald_device** out, cald_error* detail) {
        return table.device_open(device->library_->handle(), &asked, out, detail);
      }));
  device->handle_ = DeviceHandle({handle, &table});

  CALRT_TRY_ASSIGN(const DeviceInfo info, device->info());
  device->depth_ = info.depth;
  for (uint32_t i = 0; i < std::min(info.sessions, 256u); ++i)
    device->sessions_.push_back(std::make_unique<Slot<Session>>());
  return device;
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

void Device::close() { closed_.store(true); }

Result<DeviceInfo> Device::info() {
  CALRT_TRY(check_open());
  cald_device_info raw{};
  raw.struct_size = sizeof raw;
  CALRT_TRY(call_alone("device_info", [&](cald_error* detail) {
    return table().device_info(handle(), &raw, detail);
  }));
  DeviceInfo info;
  info.driver = text_of(table().name);
  info.driver_version = text_of(table().version);
  info.driver_path = library_->path();
  info.name = text_of(raw.name);
  info.device_class = text_of(raw.device_class);
  info.runtime = text_of(raw.runtime);
  info.chips = std::max(raw.chips, 1u);
  info.sessions = std::max(raw.sessions, 1u);
  info.depth = std::max(raw.depth, 1u);
  info.queue = raw.queue;
  info.exclusive = raw.exclusive != 0;
  info.memory_bytes = raw.memory_bytes;
  info.memory_free = raw.memory_free;
  return info;
}

Result<cald_health> Device::health() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), device_health);
  if (entry == nullptr)
    return fail(Status::UNSUPPORTED, "health: driver %s cannot tell", table().name);
  cald_health health{};
  health.struct_size = sizeof health;
  CALRT_TRY(call_alone("device_health",
                       [&](cald_error* detail) { return entry(handle(), &health, detail); }));
  return health;
}

Result<std::vector<Capability>> Device::caps() {
  CALRT_TRY(check_open());
  cald_cap blank{};
  blank.struct_size = sizeof blank;
  CALRT_TRY_ASSIGN(const std::vector<cald_cap> raw,
                   list_of("device_caps", blank, [&](cald_cap* out, uint32_t* count) {
                     return call_alone("device_caps", [&](cald_error* detail) {
                       return table().device_caps(handle(), out, count, detail);
                     });
                   }));
  std::vector<Capability> caps;
  for (const cald_cap& cap : raw)
    caps.push_back({text_of(cap.name), text_of(cap.source), cap.level, cap.value});
  return caps;
}

Result<std::vector<std::pair<std::string, uint64_t>>> Device::counters() {
  CALRT_TRY(check_open());
  const auto entry = CALRT_DRIVER_ENTRY(table(), device_counters);
  std::vector<std::pair<std::string, uint64_t>> counters;
  if (entry == nullptr) return counters;
  CALRT_TRY_ASSIGN(
      const std::vector<cald_counter> raw,
      list_of("device_counters", cald_counter{}, [&](cald_counter* out, uint32_t* count) {
        return call_alone("device_counters",
                          [&](cald_error* detail) { return entry(handle(), out, count, detail); });
      }));
  for (const cald_counter& counter : raw)
    counters.emplace_back(text_of(counter.name), counter.value);
  return counters;
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
  std::shared_ptr<Session> session(new Session);
  session->slot_ = &slot;
  session->device_ = shared_from_this();
  session->depth_ = depth_;
  cald_session* handle_out = nullptr;
  auto opened = call_alone("session_open", [&](cald_error* detail) {
    return table().session_open(handle(), index, &handle_out, detail);
  });
  CALRT_TRY(std::move(opened));  // ~Session vacates the slot
  if (handle_out == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "session_open"};
  session->handle_ = SessionHandle({handle_out, &table()});
  slot.set(session);
  return session;
}

}  // namespace calrt
