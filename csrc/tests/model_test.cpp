// SPDX-License-Identifier: Apache-2.0
// Loading: what is refused before the device is asked, what the driver answers, binding sets, life.
#include "calrt/model.h"

#include <stdexcept>

#include "tests/check.h"
#include "tests/package_for_test.h"
#include "tests/scripted_access.h"

using namespace calrt;

namespace {

std::shared_ptr<Device> open_scripted() { return *Device::open("scripted", {}); }

scripted::Script& script() {
  static scripted::Script* found = scripted_access((*open_scripted()->info()).driver_path);
  return *found;
}

Result<std::shared_ptr<Model>> load(const std::shared_ptr<Package>& package,
                                    const LoadRequest& request = {}) {
  return Model::load(open_scripted(), package, request);
}

std::shared_ptr<Package> good() { return PackageForTest::make("scripted", "test-class"); }

bool refused(const Result<std::shared_ptr<Model>>& loaded, Status code, const char* words) {
  if (loaded.ok()) return false;
  const Error& error = loaded.error();
  const bool right = error.code == code && error.message.find(words) != std::string::npos;
  if (!right) std::fprintf(stderr, "got: %s\n", error_text(error).c_str());
  return right && script().called("model_load") == 0;
}

}  // namespace

TEST(a_model_shows_its_graphs_by_rising_size) {
  auto model = load(good());
  CHECK(model.ok());
  CHECK((*model)->info().lanes == 1 && (*model)->info().cells == 64);
  const auto& decode = (*model)->decode_graphs();
  CHECK(decode.size() == 2 && (*model)->graph(decode[0]).batch == 1);
  CHECK((*model)->graph(decode[1]).batch == 4);
  CHECK((*model)->prefill_graphs().size() == 1);
  CHECK(*(*model)->graph_index("decode_b4") == 0);
  auto unknown = (*model)->graph_index("decode_b8");
  CHECK(!unknown.ok() && unknown.error().message.find("prefill_t16") != std::string::npos);
  auto again = load(good());
  CHECK((*again)->generation() > (*model)->generation());
}

TEST(another_driver_or_device_class_is_refused_before_any_load) {
  script().reset();
  CHECK(refused(load(PackageForTest::make("cpu", "")), Status::VERSION_MISMATCH,
                "made for driver 'cpu', this device has driver 'scripted'"));
  CHECK(refused(load(PackageForTest::make("scripted", "other")), Status::VERSION_MISMATCH,
                "made for 'other', this device is 'test-class'"));
  CHECK(load(PackageForTest::make("scripted", "")).ok());  // unknown: not refused
  script().device_class = "";
  CHECK(load(good()).ok());
  script().reset();
}

TEST(a_stand_in_is_refused_on_a_driver_that_is_not_ours) {
  script().reset();
  const auto package = good();
  PackageForTest::manifest(*package).provenance_kind = "standin";
  CHECK(refused(load(package), Status::PACKAGE_REJECTED,
                "D25: package 'test' is a stand-in (provenance.kind), and scripted is not one"));
  CHECK(
      refused(load(package), Status::PACKAGE_REJECTED, "calrt-server, calrt: --allow-unverified"));
  LoadRequest allowed;
  allowed.allow_standin = true;
  CHECK(load(package, allowed).ok());
  for (const char* kind : {"converted", "vendor", ""}) {  // "": the package does not say
    PackageForTest::manifest(*package).provenance_kind = kind;
    CHECK(load(package).ok());
  }
}

TEST(versions) {
  script().reset();
  const auto with = [](const char* what, ManifestVersionRange range) {
    auto package = good();
    PackageForTest::manifest(*package).versions = {{what, std::move(range)}};
    return load(package);
  };
  CHECK(refused(with("runtime", {"1.2.4", {}, {}}), Status::VERSION_MISMATCH,
                "needs 1.2.4, this device has 1.2.3"));
  CHECK(refused(with("runtime", {"", {1, 3}, {2}}), Status::VERSION_MISMATCH, "at least 1.3"));
  CHECK(refused(with("runtime", {"", {1}, {1, 2, 3}}), Status::VERSION_MISMATCH, "below 1.2.3"));
  CHECK(with("runtime", {"", {1, 2, 3}, {1, 2, 4}}).ok());
  CHECK(with("runtime", {"1.2.3", {}, {}}).ok());
  CHECK(with("runtime", {"", {}, {}}).ok());    // the package does not know
  CHECK(with("compiler", {"9", {}, {}}).ok());  // no device can tell
  script().reset();
  CHECK(refused(with("driver_abi", {"", {7}, {8}}), Status::VERSION_MISMATCH, "driver_abi"));
  script().runtime = "";
  CHECK(refused(with("runtime", {"1.2.3", {}, {}}), Status::VERSION_MISMATCH, "an unknown one"));
  script().reset();
}

TEST(a_rejected_package_is_not_loaded) {
  script().reset();
  auto package = good();
  PackageForTest::verdict(*package).verdict = "rejected";
  auto loaded = load(package);
  CHECK(!loaded.ok() && script().called("model_load") == 0);
}

TEST(what_does_not_fit_is_refused_with_both_numbers) {
  script().reset();
  script().memory_free = uint64_t{1} << 30;
  script().footprint_device = uint64_t{3} << 29;
  CHECK(refused(load(good()), Status::OUT_OF_DEVICE_MEMORY, "1.500 GiB of device memory, 1.000"));
  script().reset();
  script().footprint_host = uint64_t{1} << 60;
  CHECK(refused(load(good()), Status::OUT_OF_HOST_MEMORY, "of host memory"));
  script().reset();
}

TEST(progress_is_told_and_can_cancel) {
  script().reset();
  uint64_t seen = 0;
  LoadRequest request;
  request.progress = [&](uint64_t done, uint64_t total) {
    seen = done * 10 + total;
    return true;
  };
  CHECK(load(good(), request).ok() && seen == 12 && script().progress_answer == 0);
  request.progress = [](uint64_t, uint64_t) { return false; };
  CHECK(load(good(), request).error().code == Status::CANCELLED);
  request.progress = [](uint64_t, uint64_t) -> bool { throw std::runtime_error("no"); };
  CHECK(load(good(), request).error().code == Status::CANCELLED);
  request.progress = [](uint64_t, uint64_t) -> bool { throw 1; };
  CHECK(load(good(), request).error().code == Status::CANCELLED);
  CHECK(script().living() == 0);
}

TEST(a_progress_callback_cannot_wait_for_its_own_load) {
  script().reset();
  auto device = open_scripted();
  Status inside = Status::OK;
  LoadRequest request;
  request.progress = [&](uint64_t, uint64_t) {
    inside = device->info().error().code;
    return true;
  };
  CHECK(Model::load(device, good(), request).ok());
  CHECK(inside == Status::INVALID_STATE);
  CHECK(device->info().ok());
}

TEST(errors_and_throws_of_the_driver_come_through) {
  for (const char* entry : {"model_footprint", "model_load", "model_info"}) {
    for (const int32_t code : {5, 14, 27, 30, -1, INT32_MIN}) {
      script().reset();
      script().answers[entry] = code;
      script().messages[entry] = "the reason";
      auto loaded = load(good());
      CHECK(!loaded.ok());
      const bool known = code > 0 && code < 30;
      CHECK(loaded.error().code == (known ? static_cast<Status>(code) : Status::INTERNAL));
      CHECK(loaded.error().message == "the reason");
      CHECK(known || loaded.error().native_code == code);
    }
    for (const int kind : {1, 2}) {
      script().reset();
      script().throws[entry] = kind;
      CHECK(load(good()).error().code == Status::INTERNAL);
    }
    script().reset();
    CHECK(script().living() == 0);
  }
}

TEST(two_models_close_in_either_order) {
  for (const bool first_first : {true, false}) {
    script().reset();
    auto device = open_scripted();
    auto first = *Model::load(device, good(), {});
    auto second = *Model::load(device, good(), {});
    device.reset();
    (first_first ? first : second)->close();
    (first_first ? first : second).reset();
    auto& survivor = first_first ? second : first;
    CHECK(survivor->make_bindings(0).ok());
    CHECK(script().living("device") == 1 && script().living("model") == 1);
    survivor.reset();
    CHECK(script().order.back() == "driver_close" && script().living() == 0);
    CHECK(load(good()).ok());  // and the device opens again
  }
}

TEST(a_closed_model_says_so) {
  auto model = *load(good());
  model->close();
  model->close();
  CHECK(model->make_bindings(0).error().code == Status::MODEL_UNLOADED);
}

TEST(binding_sets_have_what_the_graph_has) {
  auto model = *load(good());
  CHECK(model->make_bindings(3).error().code == Status::OUT_OF_RANGE);
  auto set = *model->make_bindings(*model->graph_index("prefill_t16"));
  CHECK(set->ints(CALD_ROLE_TOKENS) != nullptr && set->ints(CALD_ROLE_MASK) == nullptr);
  CHECK(set->buffer(CALD_ROLE_LOGITS)->bytes() == 16 * 10 * 4);
  CHECK(set->max_rows() == 16);
  const auto bytes_of = [&](int32_t role) -> uint64_t {
    for (const cald_binding& binding : set->bindings())
      if (binding.role == role) return binding.bytes;
    return 0;
  };
  CHECK(set->bindings().size() == 5 && bytes_of(CALD_ROLE_LOGIT_ROWS) == 0);  // unbound
  CHECK(bytes_of(CALD_ROLE_LOGITS) == 10 * 4);                                // the last valid row
  set->bind_rows(3);
  CHECK(bytes_of(CALD_ROLE_LOGIT_ROWS) == 3 * 4 && bytes_of(CALD_ROLE_LOGITS) == 3 * 10 * 4);
  set->bind_rows(16);
  CHECK(bytes_of(CALD_ROLE_LOGITS) == 16 * 10 * 4);
  set->bind_rows(0);
  CHECK(set->bindings().size() == 5);
  auto decode = *model->make_bindings(*model->graph_index("decode_b4"));
  CHECK(decode->max_rows() == 0 && decode->bindings().size() == 4);
  CHECK(decode->bindings().back().bytes == 4 * 10 * 4);
}

TEST(the_null_driver_loads_any_package) {
  auto device = *Device::open("null", {});
  LoadRequest request;
  request.lanes = 2;
  auto model = Model::load(device, PackageForTest::make("null", "null"), request);
  CHECK(model.ok());
  CHECK((*model)->info().lanes == 2 && (*model)->info().n_graphs == 3);
  request.profiles = {4};
  auto small = Model::load(device, PackageForTest::make("null", "null"), request);
  CHECK(small.ok() && (*small)->decode_graphs().size() == 1);
  CHECK((*small)->graph((*small)->decode_graphs()[0]).batch == 4);
  CHECK(std::string((*small)->graph((*small)->decode_graphs()[0]).share_group) == "main");
  CHECK((*small)->make_bindings(0).ok());
}
