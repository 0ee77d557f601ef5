// SPDX-License-Identifier: Apache-2.0
// Layers stand around every entry of a table, in order; the list of entries is the struct.
#include <cstddef>
#include <stdexcept>
#include <string>

#include "calrt/device.h"
#include "layers/layer.h"
#include "tests/check.h"

using namespace calrt;
using namespace calrt::layers;

namespace {

using Table = cald_driver_table;
std::vector<std::string> seen;  // what hooks and the fake driver saw, in order

// Writes down its calls; may replace one.
struct Recorder : Layer {
  explicit Recorder(std::string named) : named_(std::move(named)) {}
  const char* name() const override { return named_.c_str(); }
  void before(Call& call) override { note("before", call); }
  bool replace(Call& call) override {
    note("replace", call);
    if (!replaces) return false;
    call.status = CALD_CCU_FAULT;
    return true;
  }
  void after(Call& call) override {
    note("after", call);
    if (answer >= 0) call.status = answer;
  }
  bool hides(Entry entry) const override { return entry == hidden; }
  void note(const char* hook, const Call& call) {
    seen.push_back(named_ + "." + hook + "." + entry_name(call.entry));
    has_status = call.has_status;
  }
  std::string named_;
  bool replaces = false, has_status = false;
  int answer = -1;
  Entry hidden = static_cast<Entry>(9999);
};

cald_status count_devices(cald_driver*, uint32_t* out, cald_error*) {
  seen.push_back("driver.device_count");
  *out = 5;
  return CALD_OK;
}
void close_driver(cald_driver*) { seen.push_back("driver.driver_close"); }

Table fake() {
  Table table{};
  table.struct_size = sizeof table;
  table.name = "fake";
  table.version = "1";
  table.device_count = count_devices;
  table.driver_close = close_driver;
  return table;
}

std::string all() {
  std::string text;
  for (const std::string& line : seen) text += line + " ";
  seen.clear();
  return text;
}

}  // namespace

TEST(the_list_of_entries_is_the_struct) {
  size_t offset = offsetof(Table, version) + sizeof(const char*);
  int count = 0;
#define CALD_ENTRY(entry, need, minor, cls)               \
  CHECK(offsetof(Table, entry) == offset);                \
  offset += sizeof(void*);                                \
  CHECK(static_cast<int>(Entry::entry) == count++);       \
  CHECK(std::string(entry_name(Entry::entry)) == #entry); \
  CHECK(std::string(#need) == "REQUIRED" || std::string(#need) == "OPTIONAL");
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  CHECK(offset == sizeof(Table) && count == kEntryCount);
}

TEST(hooks_stand_around_the_call_outermost_first) {
  const Table driver = fake();
  auto outer = std::make_shared<Recorder>("outer"), inner = std::make_shared<Recorder>("inner");
  auto layered = *LayeredTable::make(driver, {outer, inner});
  uint32_t count = 0;
  CHECK(layered->table().device_count(nullptr, &count, nullptr) == CALD_OK && count == 5);
  CHECK(all() ==
        "outer.before.device_count outer.replace.device_count inner.before.device_count "
        "inner.replace.device_count driver.device_count inner.after.device_count "
        "outer.after.device_count ");
  CHECK(outer->has_status);
  layered->table().driver_close(nullptr);
  CHECK(!outer->has_status && all().find("driver.driver_close") != std::string::npos);
}

TEST(replace_keeps_the_call_from_what_is_below) {
  const Table driver = fake();
  auto outer = std::make_shared<Recorder>("outer"), inner = std::make_shared<Recorder>("inner");
  auto layered = *LayeredTable::make(driver, {outer, inner});
  outer->replaces = true;
  uint32_t count = 0;
  CHECK(layered->table().device_count(nullptr, &count, nullptr) == CALD_CCU_FAULT && count == 0);
  CHECK(all() == "outer.before.device_count outer.replace.device_count outer.after.device_count ");
  outer->replaces = false;
  inner->answer = CALD_DEVICE_LOST;
  CHECK(layered->table().device_count(nullptr, &count, nullptr) == CALD_DEVICE_LOST && count == 5);
  outer->answer = CALD_OK;
  CHECK(layered->table().device_count(nullptr, &count, nullptr) == CALD_OK);
  all();
}

TEST(hooks_may_read_and_change_arguments_and_call_below) {
  struct Changer : Layer {
    uint32_t instead = 0;
    cald_error* error = nullptr;
    uint32_t below = 0;
    const char* name() const override { return "changer"; }
    void before(Call& call) override {
      auto& [driver, out, err] = call.of<&Table::device_count>();
      CHECK(driver == nullptr);
      error = call.error;
      CHECK(call.lower<&Table::submit>() == nullptr &&
            call.lower<&Table::device_count>() != nullptr);
      call.driver.device_count(nullptr, &below, nullptr);
      out = &instead;
    }
  };
  const Table driver = fake();
  auto changer = std::make_shared<Changer>();
  auto layered = *LayeredTable::make(driver, {changer});
  cald_error error{};
  uint32_t count = 0;
  CHECK(layered->table().device_count(nullptr, &count, &error) == CALD_OK);
  CHECK(count == 0 && changer->instead == 5 && changer->below == 5 && changer->error == &error);
  all();
}

TEST(what_is_lacking_below_is_lacking_above) {
  Table driver = fake();
  auto recorder = std::make_shared<Recorder>("r");
  recorder->hidden = Entry::device_count;  // required: cannot be hidden
  auto layered = *LayeredTable::make(driver, {recorder});
  CHECK(layered->table().device_count != nullptr && layered->table().submit == nullptr);
  driver.struct_size = offsetof(Table, driver_close);
  auto shorter = *LayeredTable::make(driver, {recorder});
  CHECK(shorter->table().driver_close == nullptr);
  CHECK(shorter->table().struct_size == offsetof(Table, driver_close));
  CHECK(std::string(shorter->table().name) == "fake");
  // A newer driver's table is longer; what stands around it ends where ours does.
  driver.struct_size = sizeof driver + 64;
  auto ours = *LayeredTable::make(driver, {recorder});
  CHECK(ours->table().struct_size == sizeof(Table));
  auto optional = *DriverLibrary::load("null", "fault:job_cancel hide / poll hide");
  CHECK(optional->table().job_cancel == nullptr && optional->table().poll == nullptr);
  CHECK(optional->table().job_query != nullptr);
}

TEST(without_layers_the_table_is_the_drivers) {
  const Table driver = fake();
  auto layered = *LayeredTable::make(driver, {});
  CHECK(&layered->table() == &driver);
}

TEST(there_is_room_for_so_many_and_it_comes_back) {
  const Table driver = fake();
  for (int round = 0; round < 3; ++round) {
    std::vector<std::unique_ptr<LayeredTable>> all;
    for (int i = 0; i < kMostLayers; ++i) {
      auto made = LayeredTable::make(driver, {std::make_shared<Recorder>("r")});
      CHECK(made.ok());
      if (made.ok()) all.push_back(*std::move(made));
    }
    auto more = LayeredTable::make(driver, {std::make_shared<Recorder>("r")});
    CHECK(!more.ok() && more.error().code == Status::BUFFER_POOL_EXHAUSTED);
    CHECK(more.error().message.find(std::to_string(kMostLayers)) != std::string::npos);
  }
  std::vector<std::shared_ptr<Layer>> deep;
  for (int i = 0; i <= kMostLayers; ++i) deep.push_back(std::make_shared<Recorder>("r"));
  CHECK(!LayeredTable::make(driver, deep).ok());
  deep.pop_back();
  CHECK(LayeredTable::make(driver, deep).ok());  // what the failure took came back
}

TEST(each_table_has_functions_of_its_own) {
  const Table driver = fake();
  auto a = std::make_shared<Recorder>("a"), b = std::make_shared<Recorder>("b");
  auto first = *LayeredTable::make(driver, {a}), second = *LayeredTable::make(driver, {b});
  uint32_t count = 0;
  second->table().device_count(nullptr, &count, nullptr);
  CHECK(all().starts_with("b.before"));
  first->table().device_count(nullptr, &count, nullptr);
  CHECK(all().starts_with("a.before"));
}

TEST(layers_are_known_by_name) {
  CHECK(make_layers("").ok() && make_layers("")->empty() && make_layers(" ; ")->empty());
  CHECK(make_layers("fault:submit status=3; fault:")->size() == 2);
  CHECK(make_layers("fault:submit status=3 message=\"a;b\"")->size() == 1);
  auto unknown = make_layers("fault:;trance:x");
  CHECK(!unknown.ok() && unknown.error().code == Status::INVALID_ARGUMENT);
  CHECK(unknown.error().message.find("'trance'") != std::string::npos);
  CHECK(unknown.error().message.find("fault") != std::string::npos);
  register_layer("mine", [](const std::string& config) -> Result<std::shared_ptr<Layer>> {
    if (config != "good") return fail(Status::INVALID_ARGUMENT, "mine: '%s'", config.c_str());
    return std::shared_ptr<Layer>(std::make_shared<Recorder>("mine"));
  });
  CHECK(make_layers("mine:good")->front()->name() == std::string("mine"));
  CHECK(!make_layers("mine:bad").ok());
}

TEST(a_layer_of_the_callers_own_sees_a_device) {
  static std::shared_ptr<Recorder> mine;
  register_layer("recorder", [](const std::string&) -> Result<std::shared_ptr<Layer>> {
    mine = std::make_shared<Recorder>("recorder");
    return std::shared_ptr<Layer>(mine);
  });
  {
    auto device = Device::open("null", {}, {"recorder", {}});
    CHECK(device.ok());
  }
  const std::string text = all();
  for (const char* entry :
       {"driver_open", "device_count", "device_open", "device_close", "driver_close"})
    CHECK(text.find(std::string("recorder.after.") + entry) != std::string::npos);
  mine.reset();
}

TEST(the_environment_names_layers_an_argument_overrules) {
  setenv("CALRT_LAYERS", "fault:device_open status=DEVICE_UNHEALTHY", 1);
  auto refused = Device::open("null", {});
  CHECK(!refused.ok() && refused.error().code == Status::DEVICE_UNHEALTHY);
  CHECK(Device::open("null", {}, {"", {}}).ok());
  setenv("CALRT_LAYERS", "nonsense", 1);
  refused = Device::open("null", {});
  CHECK(!refused.ok() && refused.error().code == Status::INVALID_ARGUMENT);
  unsetenv("CALRT_LAYERS");
  CHECK(Device::open("null", {}).ok());
}
