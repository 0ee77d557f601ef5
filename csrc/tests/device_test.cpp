// SPDX-License-Identifier: Apache-2.0
// Devices, sessions, buffers: specs, lists, limits, life, and drivers that throw.
#include "calrt/device.h"

#include <thread>

#include "tests/check.h"
#include "tests/scripted_access.h"

using namespace calrt;

namespace {

std::shared_ptr<Device> open_scripted() {
  auto device = Device::open("scripted", {});
  CHECK(device.ok());
  return *device;
}

scripted::Script& script() {
  static scripted::Script* found = scripted_access((*open_scripted()->info()).driver_path);
  return *found;
}

Status status_of(const std::string& spec, const Device::Options& options = {}) {
  auto opened = Device::open(spec, options);
  return opened.ok() ? Status::OK : opened.error().code;
}

}  // namespace

TEST(specs) {
  const std::string path = (*open_scripted()->info()).driver_path;
  CHECK(status_of("scripted") == Status::OK);
  CHECK(status_of("scripted:1") == Status::OK);
  CHECK(status_of("scripted:some-config") == Status::OK);
  CHECK(status_of(path) == Status::OK);
  CHECK(status_of(path + ":0") == Status::OK);
  CHECK(status_of("scripted:2") == Status::OUT_OF_RANGE);  // it has two devices
  CHECK(status_of("scripted:99999999999999999999") == Status::OUT_OF_RANGE);
  CHECK(status_of("") == Status::INVALID_ARGUMENT);
  CHECK(status_of(":0") == Status::INVALID_ARGUMENT);
  CHECK(status_of("scripted:no-handle") == Status::INTERNAL);
  CHECK(status_of("null:what") == Status::INVALID_ARGUMENT);
  CHECK(status_of("null", {{"threads", "2"}}) == Status::INVALID_ARGUMENT);
}

TEST(info_and_lists_are_copied_and_clean) {
  auto device = open_scripted();
  const DeviceInfo info = *device->info();
  CHECK(info.driver == "scripted" && info.name == "scripted device" && info.runtime == "1.2.3");
  CHECK(info.sessions == 2 && info.queue == 8);
  auto caps = device->caps();
  CHECK(caps.ok() && caps->size() == 3);
  CHECK((*caps)[1].name == "two" && (*caps)[1].level == 1 && (*caps)[1].value == 7);
  CHECK((*caps)[2].name.empty());  // the driver gave a null text
  CHECK((*caps)[0].source == "?\xc3\xa9");
  CHECK(device->counters().ok() && device->counters()->empty());  // the driver has none
  auto health = device->health();
  CHECK(!health.ok() && health.error().code == Status::UNSUPPORTED);
  CHECK(script().wrong.empty());
}

TEST(buffers_check_every_number) {
  auto device = open_scripted();
  CHECK(!device->alloc(0, CALD_DOMAIN_HOST, 64).ok());
  CHECK(!device->alloc((uint64_t{1} << 48) + 1, CALD_DOMAIN_HOST, 64).ok());
  CHECK(!device->alloc(64, 0, 64).ok());
  CHECK(!device->alloc(64, CALD_DOMAIN_HOST | CALD_DOMAIN_SHARED, 64).ok());
  CHECK(!device->alloc(64, CALD_DOMAIN_HOST, 0).ok());
  CHECK(!device->alloc(64, CALD_DOMAIN_HOST, 48).ok());
  auto buffer = device->alloc(100, CALD_DOMAIN_HOST, 256);
  CHECK(buffer.ok() && (*buffer)->bytes() == 100);
  CHECK(reinterpret_cast<uintptr_t>((*buffer)->data()) % 256 == 0);
  char text[8] = "seven77", back[8] = {};
  CHECK((*buffer)->write(92, text, 8).ok());
  CHECK((*buffer)->read(92, back, 8).ok() && std::strcmp(back, text) == 0);
  CHECK((*buffer)->write(93, text, 8).error().code == Status::OUT_OF_RANGE);
  CHECK((*buffer)->read(UINT64_MAX, back, 2).error().code == Status::OUT_OF_RANGE);
  CHECK((*buffer)->write(100, text, 0).ok());
  auto far = device->alloc(64, CALD_DOMAIN_DEVICE, 64);
  CHECK(far.ok() && (*far)->data() == nullptr);  // the host has no business there
}

TEST(a_child_holds_its_parent) {
  std::shared_ptr<Buffer> buffer;
  std::shared_ptr<Session> session;
  {
    auto device = open_scripted();
    buffer = *device->alloc(64, CALD_DOMAIN_HOST, 64);
    session = *device->session(1);
  }
  script().reset();
  CHECK(script().living("device") == 1);
  session.reset();
  CHECK(script().living("device") == 1 && script().living("session") == 0);
  buffer.reset();
  const std::vector<std::string> order = {"session_close", "buffer_free", "device_close",
                                          "driver_close"};
  CHECK(script().order == order);
  CHECK(script().living() == 0);
}

TEST(close_is_idempotent_and_stops_new_work) {
  auto device = open_scripted();
  auto buffer = *device->alloc(64, CALD_DOMAIN_HOST, 64);
  device->close();
  device->close();
  CHECK(device->closed());
  CHECK(device->info().error().code == Status::INVALID_STATE);
  CHECK(device->caps().error().code == Status::INVALID_STATE);
  CHECK(device->session().error().code == Status::INVALID_STATE);
  CHECK(device->alloc(64, CALD_DOMAIN_HOST, 64).error().code == Status::INVALID_STATE);
  CHECK(buffer->write(0, "x", 1).ok());  // what lives still works
}

TEST(a_closed_device_is_opened_again_once_what_was_made_from_it_is_gone) {
  script().reset();
  script().one_device = true;
  auto first = *Device::open("scripted", {});
  CHECK(Device::open("scripted", {}).error().message.find("closed it") == std::string::npos);
  auto buffer = *first->alloc(64, CALD_DOMAIN_HOST, 64);
  first->close();
  first.reset();
  const auto held = Device::open("scripted", {});
  CHECK(!held.ok() && held.error().code == Status::DEVICE_UNHEALTHY);
  CHECK(held.error().message.find("something made from it still holds it") != std::string::npos);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    buffer.reset();
  });
  auto again = Device::open("scripted", {});  // waits for it
  later.join();
  CHECK(again.ok());
  script().reset();
}

TEST(a_session_is_shared_while_held_and_opened_again_after) {
  auto device = open_scripted();
  script().reset();
  auto first = *device->session(0);
  CHECK(*device->session(0) == first && script().called("session_open") == 1);
  CHECK(*device->session(1) != first);
  CHECK(device->session(2).error().code == Status::OUT_OF_RANGE);
  first.reset();
  CHECK(device->session(0).ok() && script().called("session_open") == 3);
  script().answers["session_open"] = CALD_DEVICE_UNHEALTHY;
  CHECK(device->session(0).error().code == Status::DEVICE_UNHEALTHY);
  script().reset();
  CHECK(device->session(0).ok());  // a failed open leaves no trace
}

TEST(a_session_opens_anew_only_after_the_old_one_is_closed) {
  auto device = open_scripted();
  script().reset();
  auto session = *device->session(0);
  std::thread other;
  bool early = false;
  script().set([&](scripted::Script& now) {
    now.on_entry = [&](const char* entry) {
      if (std::string(entry) != "session_close" || other.joinable()) return;
      other = std::thread([&] { CHECK(device->session(0).ok()); });
      for (int i = 0; i < 200 && !early; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        early = script().called("session_open") > 1;
      }
    };
  });
  session.reset();
  other.join();
  CHECK(!early && script().called("session_open") == 2);
  script().reset();
}

TEST(sessions_from_many_threads_are_one_at_a_time) {
  auto device = open_scripted();
  script().reset();
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (!device->session(0).ok()) ++failed;
        if (script().living("session") > 1) ++failed;
      }
    });
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
}

TEST(every_entry_may_throw) {
  for (const int kind : {1, 2}) {
    for (const char* entry : {"driver_open", "device_count", "device_open", "device_info"}) {
      script().throws[entry] = kind;
      CHECK(status_of("scripted") == Status::INTERNAL);
      script().reset();
      CHECK(script().living() == 0);
    }
    auto device = open_scripted();
    auto buffer = *device->alloc(64, CALD_DOMAIN_HOST, 64);
    for (const char* entry :
         {"device_caps", "session_open", "buffer_alloc", "buffer_map", "buffer_h2d", "buffer_d2h"})
      script().throws[entry] = kind;
    CHECK(device->caps().error().code == Status::INTERNAL);
    CHECK(device->session().error().code == Status::INTERNAL);
    CHECK(device->alloc(64, CALD_DOMAIN_HOST, 64).error().code == Status::INTERNAL);
    script().throws.erase("buffer_alloc");
    CHECK(device->alloc(64, CALD_DOMAIN_HOST, 64).error().code == Status::INTERNAL);  // from map
    CHECK(buffer->write(0, "x", 1).error().code == Status::INTERNAL);
    char back = 0;
    CHECK(buffer->read(0, &back, 1).error().code == Status::INTERNAL);
    script().reset();
  }
  CHECK(script().living() == 0);
}
