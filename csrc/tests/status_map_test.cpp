// SPDX-License-Identifier: Apache-2.0
// A vendor's numbers by way of status-map.toml: what is mapped, what is UNKNOWN, what has no row.
#include "calrt/status_map.h"

#include <dlfcn.h>

#include <climits>
#include <string>

#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "tests/check.h"
#include "tests/package_for_test.h"

using namespace calrt;

namespace {

// A variable of the driver "mapped": the vendor's number that an entry "gets", 0 = none.
int64_t& vendor(const Device& device, const char* name) {
  void* library = dlopen((*const_cast<Device&>(device).info()).driver_path.c_str(), RTLD_NOW);
  return *static_cast<int64_t*>(dlsym(library, name));
}

struct World {
  std::shared_ptr<Device> device = *Device::open("mapped", {});
  std::shared_ptr<Package> package = PackageForTest::make("mapped", "null");

  Error load_with(int64_t number) {
    vendor(*device, "mapped_load") = number;
    auto loaded = Model::load(device, package, {});
    vendor(*device, "mapped_load") = 0;
    CHECK(!loaded.ok());
    return loaded.ok() ? Error{} : loaded.error();
  }

  Error job_with(const char* stage, int64_t number) {
    auto model = *Model::load(device, package, {});
    auto session = *device->session();
    std::shared_ptr<BindingSet> bindings = *model->make_bindings(0);
    vendor(*device, stage) = number;
    auto job = Job::submit(session, model, bindings, monotonic_ns() + 60'000'000'000);
    vendor(*device, stage) = 0;
    if (!job.ok()) return job.error();
    auto ended = (*job)->wait(monotonic_ns() + 60'000'000'000);
    CHECK(!ended.ok());
    return ended.ok() ? Error{} : ended.error();
  }
};

bool has(const Error& error, const char* words) {
  const std::string text = error_text(error);
  const bool found = text.find(words) != std::string::npos;
  if (!found) std::fprintf(stderr, "got: %s\n", text.c_str());
  return found;
}

std::string class_of(const Error& error) {
  return error.status_class != nullptr ? error.status_class
                                       : status_row(static_cast<int32_t>(error.code)).status_class;
}

}  // namespace

TEST(a_mapped_number_shows_both) {
  World world;
  const Error load = world.load_with(9);
  CHECK(load.code == Status::KV_NO_CAPACITY && load.native_code == 9 && !load.unmapped);
  CHECK(has(load, "KV_NO_CAPACITY (calrt 17, native 9): the arena is full"));  // the row's note
  CHECK(class_of(load) == "kv");
  const Error submit = world.job_with("mapped_submit", -5);
  CHECK(has(submit, "DEVICE_LOST (calrt 27, native -5): the vendor said no"));
  CHECK(class_of(submit) == "device");
}

TEST(an_unknown_row_is_not_guessed_at) {
  World world;
  const Error load = world.load_with(12);
  CHECK(load.code == Status::INTERNAL && load.native_code == 12 && load.unmapped);
  CHECK(has(load, "INTERNAL (calrt 29, native 12 unmapped): in the vendor's list"));
  CHECK(class_of(load) == "package");
}

TEST(a_number_without_a_row_has_the_class_of_the_entry) {
  World world;
  const Error load = world.load_with(13);
  CHECK(has(load, "(calrt 29, native 13 unmapped)") && class_of(load) == "package");
  const Error submit = world.job_with("mapped_submit", 13);
  CHECK(has(submit, "(calrt 29, native 13 unmapped)") && class_of(submit) == "submit");
  const Error wide = world.load_with(INT64_MIN);
  CHECK(has(wide, "native -9223372036854775808 unmapped"));
}

// The header alone, on a table of its own.
TEST(lookup_and_fill) {
  static const cald_status_row rows[] = {{INT64_MIN, CALD_TRANSFER_FAULT, 1, "least"},
                                         {0, CALD_OK, 1, "success"},
                                         {7, CALD_STATUS_UNKNOWN, 3, "?"},
                                         {INT64_MAX, CALD_CCU_FAULT, 1, "most"}};
  const cald_status_map map = {rows, 4};
  const cald_status_map empty = {nullptr, 0};
  CHECK(cald_status_find(&map, INT64_MIN) == &rows[0] && cald_status_find(&map, 7) == &rows[2]);
  CHECK(cald_status_find(&map, INT64_MAX) == &rows[3] && cald_status_find(&map, 8) == nullptr);
  CHECK(cald_status_find(&map, -1) == nullptr && cald_status_find(&empty, 0) == nullptr);

  cald_error err{};
  err.struct_size = sizeof err;
  err.code = 77;
  CHECK(cald_status_fail(&map, 0, "submit", "fine", &err) == CALD_OK && err.code == 77);
  CHECK(cald_status_fail(&map, 8, "submit", nullptr, nullptr) == CALD_INTERNAL);
  CHECK(cald_status_fail(&map, 8, "submit", nullptr, &err) == CALD_INTERNAL);
  CHECK(err.flags == CALD_ERROR_UNMAPPED && err.native_code == 8 && err.message[0] == '\0');
  CHECK(cald_status_fail(&map, INT64_MAX, "x", nullptr, &err) == CALD_CCU_FAULT);
  CHECK(err.flags == 0 && std::string(err.message) == "most" && std::string(err.where) == "x");
  const std::string longest(1000, 'x');
  cald_status_fail(&map, 8, longest.c_str(), longest.c_str(), &err);
  CHECK(std::strlen(err.message) == sizeof err.message - 1);
  CHECK(std::strlen(err.where) == sizeof err.where - 1);

  // An older calrt's cald_error ends before `flags`.
  err.struct_size = offsetof(cald_error, flags);
  err.flags = 0x55;
  cald_status_fail(&map, 8, "submit", "", &err);
  CHECK(err.flags == 0x55 && err.native_code == 8);

  cald_completion end{};
  end.struct_size = sizeof end;
  cald_status_complete(&map, 7, &end);
  CHECK(end.status == CALD_INTERNAL && end.native_code == 7 && end.flags == CALD_ERROR_UNMAPPED);
}

TEST(a_completion_is_read_the_same_way) {
  cald_completion end{};
  end.struct_size = sizeof end;
  end.status = CALD_INTERNAL;
  end.native_code = 13;
  end.flags = CALD_ERROR_UNMAPPED;
  const Error graph = completion_error(end, "submit"), kv = completion_error(end, "kv_submit");
  CHECK(graph.unmapped && graph.native_code == 13 && class_of(graph) == "submit");
  CHECK(class_of(kv) == "kv");
  end.flags = 0;
  end.status = CALD_CCU_FAULT;
  CHECK(completion_error(end, "submit").code == Status::CCU_FAULT);
  CHECK(completion_error(end, "submit").native_code == 13);
  end.struct_size = 24;  // ABI 0.1: nothing after `reserved`
  CHECK(completion_error(end, "submit").native_code == 0);
  end.status = 1234;
  const Error outside = completion_error(end, "submit");
  CHECK(outside.unmapped && outside.native_code == 1234 && class_of(outside) == "submit");
}

TEST(every_entry_has_a_class) {
#define CALD_ENTRY(name, need, minor, cls) CHECK(std::strlen(entry_class(#name)) > 0);
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
  CHECK(std::string(entry_class("model_load")) == "package");
  CHECK(std::string(entry_class("no_such_entry")) == "device");
}
