// SPDX-License-Identifier: Apache-2.0
// Finding, loading and refusing driver libraries; what a driver answers, as a Result.
#include "calrt/driver_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "base/log.h"
#include "calrt/device.h"
#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "calrt/model.h"
#include "tests/check.h"
#include "tests/package_for_test.h"
#include "tests/scripted_access.h"

using namespace calrt;

namespace {

Error refused(const std::string& name) {
  auto loaded = DriverLibrary::load(name);
  CHECK(!loaded.ok());
  return loaded.ok() ? Error{Status::OK, 0, "", ""} : loaded.error();
}

bool says(const Error& error, Status code, const char* words) {
  const bool good = error.code == code && error.message.find(words) != std::string::npos;
  if (!good) std::fprintf(stderr, "got: %s\n", error_text(error).c_str());
  return good;
}

std::string file_of(const char* name) {
  const std::string folders = std::getenv("CALRT_DRIVER_PATH");
  return folders.substr(0, folders.find(':')) + "/libcald_" + name + ".so";
}

}  // namespace

TEST(missing_drivers_are_named_with_what_there_is) {
  const Error error = refused("no_such_driver");
  CHECK(says(error, Status::INVALID_ARGUMENT, "no_such_driver"));
  CHECK(says(error, Status::INVALID_ARGUMENT, "null"));
  CHECK(says(refused("/no/such/file.so"), Status::INVALID_ARGUMENT, "/no/such/file.so"));
}

TEST(names_cannot_be_paths) {
  for (const char* name : {"", "../null", "a/b", "null.so", "a b"})
    CHECK(refused(name).code == Status::INVALID_ARGUMENT);
}

TEST(a_file_that_is_no_library_is_refused) {
  char path[] = "/tmp/calrt_test_XXXXXX";
  const int fd = mkstemp(path);
  CHECK(fd >= 0);
  CHECK(says(refused(path), Status::INVALID_ARGUMENT, "cannot be loaded"));
  std::remove(path);
}

TEST(broken_drivers_are_refused_by_what_is_wrong) {
  CHECK(says(refused("broken_no_symbol"), Status::VERSION_MISMATCH, "cald_driver_entry"));
  CHECK(says(refused("broken_major"), Status::VERSION_MISMATCH, "ABI 2.0"));
  CHECK(says(refused("broken_short"), Status::VERSION_MISMATCH, "'job_wait' lies beyond"));
  CHECK(says(refused("broken_no_version"), Status::VERSION_MISMATCH, "struct_size is 4"));
  CHECK(says(refused("broken_throws"), Status::INTERNAL, "threw"));
  CHECK(says(refused("broken_no_table"), Status::VERSION_MISMATCH, "no table"));
  CHECK(says(refused("broken_code_8"), Status::VERSION_MISMATCH, "refuses"));
  CHECK(
      says(refused("broken_major"), Status::VERSION_MISMATCH, "ABI 2.0"));  // the second time, too
}

TEST(statuses_outside_the_list_are_internal_with_the_number_kept) {
  const std::pair<const char*, int64_t> cases[] = {
      {"broken_code_30", 30}, {"broken_code_minus", -1}, {"broken_code_min", INT_MIN}};
  for (const auto& [name, number] : cases) {
    const Error error = refused(name);
    CHECK(error.code == Status::INTERNAL && error.native_code == number && error.unmapped);
    CHECK(error_text(error).find("native " + std::to_string(number) + " unmapped") !=
          std::string::npos);
  }
}

TEST(each_required_entry_is_required_and_no_other) {
  struct Row {
    const char* name;
    bool required;
  };
  const Row rows[] = {
#define CALD_ENTRY(name, need, minor, cls) {#name, #need[0] == 'R'},
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  };
  const std::string path = file_of("broken_missing");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto lacks = reinterpret_cast<void (*)(int)>(dlsym(library, "broken_lacks"));
  int number = 0, refusals = 0;
  for (const Row& row : rows) {
    lacks(number++);
    if (!row.required) continue;
    const std::string words = "required entry '" + std::string(row.name) + "' is NULL";
    CHECK(says(refused("broken_missing"), Status::VERSION_MISMATCH, words.c_str()));
    ++refusals;
  }
  CHECK(refusals == 21);
}

TEST(without_layers_the_table_is_the_drivers_own) {
  auto library = DriverLibrary::load("null");
  void* raw = dlopen((*library)->path().c_str(), RTLD_NOW | RTLD_LOCAL);
  auto entry = reinterpret_cast<cald_driver_entry_fn>(dlsym(raw, "cald_driver_entry"));
  const cald_driver_table* own = nullptr;
  CHECK(entry(&driver_host(), CALD_ABI_VERSION, &own) == CALD_OK);
  CHECK(&(*library)->table() == own && (*library)->layers().empty());
  auto layered = DriverLibrary::load("null", "fault:submit status=21");
  CHECK(layered.ok() && &(*layered)->table() != own && (*layered)->layers().size() == 1);
}

TEST(a_driver_is_shared_and_layers_are_of_one_load) {
  auto plain = DriverLibrary::load("scripted");
  auto again = DriverLibrary::load("scripted");
  auto one = DriverLibrary::load("scripted", "fault:submit status=21");
  auto other = DriverLibrary::load("scripted", "fault:submit status=21");
  CHECK(plain.ok() && again.ok() && one.ok() && other.ok());
  CHECK(plain->get() == again->get());
  CHECK(one->get() != other->get() && one->get() != plain->get());
  scripted::Script* script = scripted_access((*plain)->path());
  CHECK(script->living("driver") == 3);
  one = other = fail(Status::OK, "dropped");
  CHECK(script->living("driver") == 1);
}

TEST(layers_that_have_no_meaning_open_nothing) {
  auto loaded = DriverLibrary::load("null", "no_such_layer:x");
  CHECK(!loaded.ok() && says(loaded.error(), Status::INVALID_ARGUMENT, "'no_such_layer'"));
  loaded = DriverLibrary::load("null", "fault:submit statsu=3");
  CHECK(!loaded.ok() && says(loaded.error(), Status::INVALID_ARGUMENT, "'statsu'"));
}

TEST(a_driver_of_an_older_minor_works) {
  auto device = *Device::open("older", {});
  CHECK(device->info()->device_class == "older" && device->info()->id.empty());
  auto model = *Model::load(device, PackageForTest::make("older", "older"), {});
  std::shared_ptr<BindingSet> set = *model->make_bindings(1);  // decode_b1
  auto job = *Job::submit(*device->session(), model, set, monotonic_ns() + 20'000'000'000u);
  CHECK(job->wait(monotonic_ns() + 20'000'000'000u).ok() && job->state() == JobState::DONE);
  CHECK(job->timing().ok() && job->timing()->infer_ns == 1);
  uint8_t first = 0;
  CHECK(set->share(CALD_ROLE_LOGITS)->read(0, &first, 1).ok() && first == 40);  // 10 floats
}

TEST(what_an_older_driver_lacks_is_unsupported_in_words) {
  auto device = *Device::open("older", {});
  auto topology = device->topology();
  CHECK(!topology.ok() && says(topology.error(), Status::UNSUPPORTED, "driver older"));
  auto trace = device->trace_start(16);
  CHECK(!trace.ok() && says(trace.error(), Status::UNSUPPORTED, "driver older"));
  auto health = device->health();
  CHECK(!health.ok() && says(health.error(), Status::UNSUPPORTED, "driver older"));
  const auto& table = device->table();
#define CALD_ENTRY(name, need, minor, cls) \
  if (minor > 1) CHECK(CALRT_DRIVER_ENTRY(table, name) == nullptr);
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
}

TEST(a_layer_adds_nothing_that_an_older_driver_lacks) {
  auto device = *Device::open("older", {}, {"fault:submit status=21 nth=999", {}});
  const auto& table = device->table();
  CHECK(table.struct_size < sizeof(cald_driver_table) && table.device_health == nullptr);
  auto topology = device->topology();
  CHECK(!topology.ok() && topology.error().code == Status::UNSUPPORTED);
}

TEST(a_driver_of_a_newer_minor_works) {
  for (const char* layers : {"", "fault:submit status=21 nth=999"}) {
    auto device = *Device::open("newer", {}, {layers, {}});
    CHECK(device->table().abi_version == ((CALD_ABI_MAJOR << 16) | 10));
    CHECK(device->info()->device_class == "null" && device->topology().ok());
    auto model = *Model::load(device, PackageForTest::make("newer", "null"), {});
    std::shared_ptr<BindingSet> set = *model->make_bindings(0);
    auto job = *Job::submit(*device->session(), model, set, monotonic_ns() + 20'000'000'000u);
    CHECK(job->wait(monotonic_ns() + 20'000'000'000u).ok() && job->state() == JobState::DONE);
  }
}

TEST(one_instance_per_real_path) {
  namespace fs = std::filesystem;
  auto first = DriverLibrary::load("scripted");
  CHECK(first.ok());
  const std::string link = "/tmp/calrt_link_" + std::to_string(std::rand()) + ".so";
  fs::create_symlink((*first)->path(), link);
  auto second = DriverLibrary::load(link);
  fs::remove(link);
  CHECK(second.ok() && second->get() == first->get());
  CHECK(scripted_access((*first)->path())->living("driver") == 1);
}

TEST(the_driver_is_closed_with_the_last_holder_and_can_be_opened_again) {
  scripted::Script* script = nullptr;
  for (int round = 0; round < 3; ++round) {
    auto library = DriverLibrary::load("scripted");
    CHECK(library.ok());
    script = scripted_access((*library)->path());
    CHECK(script->living("driver") == 1);
  }
  CHECK(script->living("driver") == 0);
  script->answers["driver_open"] = CALD_DEVICE_LOST;
  script->messages["driver_open"] = "gone";
  CHECK(says(refused("scripted"), Status::DEVICE_LOST, "gone"));
  script->reset();
  CHECK(DriverLibrary::load("scripted").ok());  // a failed open does not block the next
}

TEST(available_lists_short_names_sorted) {
  const auto names = DriverLibrary::available();
  CHECK(std::find(names.begin(), names.end(), "null") != names.end());
  CHECK(std::find(names.begin(), names.end(), "scripted") != names.end());
  CHECK(std::is_sorted(names.begin(), names.end()));
}

TEST(call_driver_catches_and_maps) {
  auto thrown = call_driver("here", [](cald_error*) -> cald_status { throw 42; });
  CHECK(!thrown.ok() && thrown.error().code == Status::INTERNAL && thrown.error().where == "here");
  auto also = call_driver("x", [](cald_error*) -> cald_status { throw std::runtime_error("y"); });
  CHECK(!also.ok() && also.error().code == Status::INTERNAL);
  auto mapped = call_driver("x", [](cald_error* error) -> cald_status {
    error->native_code = 9;
    std::memset(error->message, 'm', sizeof error->message);  // no NUL anywhere
    std::memset(error->where, '\xff', sizeof error->where);
    return CALD_KV_NO_CAPACITY;
  });
  CHECK(!mapped.ok() && mapped.error().code == Status::KV_NO_CAPACITY);
  CHECK(mapped.error().native_code == 9 && mapped.error().message.size() == 256);
  CHECK(mapped.error().where == std::string(64, '?'));
  auto silent = call_driver("stage", [](cald_error*) -> cald_status { return CALD_CCU_FAULT; });
  CHECK(!silent.ok() && silent.error().message.find("stage") != std::string::npos);
  for (const int wild : {30, -1, INT_MIN, INT_MAX}) {
    auto odd = call_driver("x", [&](cald_error*) -> cald_status { return wild; });
    CHECK(!odd.ok() && odd.error().code == Status::INTERNAL && odd.error().native_code == wild);
  }
  CHECK(call_driver("x", [](cald_error*) -> cald_status { return CALD_OK; }).ok());
}

TEST(the_host_table_works) {
  const cald_host& host = driver_host();
  for (const uint64_t align : {uint64_t{0}, uint64_t{1}, uint64_t{64}, uint64_t{4096}}) {
    void* memory = host.alloc(host.user, 100, align);
    CHECK(memory != nullptr);
    CHECK(align == 0 || reinterpret_cast<uintptr_t>(memory) % align == 0);
    std::memset(memory, 1, 100);
    host.free(host.user, memory);
  }
  CHECK(host.alloc(host.user, 100, 48) == nullptr);             // no power of two
  CHECK(host.alloc(host.user, UINT64_MAX - 5, 64) == nullptr);  // would overflow
  const uint64_t first = host.now_ns(host.user);
  CHECK(first != 0 && host.now_ns(host.user) >= first);
  host.trace(host.user, CALD_TRACE_BEGIN, "x", 1, first);
  host.log(host.user, CALD_LOG_DEBUG, nullptr, nullptr);
}
