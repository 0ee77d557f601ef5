// SPDX-License-Identifier: Apache-2.0
// Each entry of the ABI in turn throws or answers a number that means nothing: one typed error
// comes out of that call, everything else of the process goes on.
#include <algorithm>
#include <climits>
#include <cstring>
#include <functional>

#include "calrt/device.h"
#include "calrt/job.h"
#include "calrt/model.h"
#include "tests/entry_tour.h"

using namespace calrt;

namespace {

bool one_error(const Tour& tour, const char* entry, Status code, int64_t native) {
  if (tour.errors.size() != 1) {
    std::fprintf(stderr, "%s: %zu errors\n", entry, tour.errors.size());
    return false;
  }
  const Error& error = tour.errors[0];
  const bool good = error.code == code && error.native_code == native && error.where == entry &&
                    !error.message.empty();
  if (!good) std::fprintf(stderr, "%s: %s\n", entry, error_text(error).c_str());
  return good;
}

}  // namespace

TEST(the_tour_calls_every_entry) {
  const Tour tour("");
  CHECK(tour.errors.empty());
  for (const Error& error : tour.errors) std::fprintf(stderr, "%s\n", error_text(error).c_str());
  for (const auto& [entry, has_status] : kEntries) {
    const auto times = std::count(tour.tried.begin(), tour.tried.end(), entry);
    if (times != (has_status ? 1 : 0)) std::fprintf(stderr, "%s: %td\n", entry, times);
    CHECK(times == (has_status ? 1 : 0));
  }
}

TEST(each_entry_may_throw) {
  TableClient other("null", "");  // somebody else's device, at work meanwhile
  uint64_t seq = 0;
  for (const auto& [entry, has_status] : kEntries) {
    for (const char* how : {" throw nth=1", " throw=other nth=1", " throw after nth=1"}) {
      if (!has_status && std::strstr(how, "after") != nullptr) continue;
      const Tour tour(std::string("fault:") + entry + how);
      if (has_status)
        CHECK(one_error(tour, entry, Status::INTERNAL, 0));
      else
        CHECK(tour.errors.empty());  // it is logged: a destroyer has no answer
      other.submit(++seq);
      CHECK(other.told().size() == seq);
    }
  }
}

TEST(each_entry_may_answer_a_number_that_means_nothing) {
  for (const auto& [entry, has_status] : kEntries) {
    if (!has_status) continue;
    for (const int code : {30, -1, INT_MIN}) {
      const Tour tour(std::string("fault:") + entry + " nth=1 status=" + std::to_string(code));
      CHECK(one_error(tour, entry, Status::INTERNAL, code));
      CHECK(!tour.errors.empty() && tour.errors[0].unmapped);
    }
  }
}

TEST(each_entry_may_answer_each_status) {
  for (const auto& [entry, has_status] : kEntries) {
    if (!has_status) continue;
    for (int code = 1; code < kStatusCount; ++code) {
      const Tour tour(std::string("fault:") + entry +
                      " nth=1 native=5 status=" + std::to_string(code));
      CHECK(one_error(tour, entry, static_cast<Status>(code), 5));
    }
  }
}

// The same through the runtime: open, load, submit, wait, close.
TEST(the_runtime_outlives_a_throw_of_each_entry) {
  int failed = 0;
  for (const auto& [entry, has_status] : kEntries) {
    const auto run = [&](const std::string& layers) -> Result<void> {
      CALRT_TRY_ASSIGN(auto device, Device::open("null", {}, {layers, {}}));
      CALRT_TRY_ASSIGN(auto model, Model::load(device, PackageForTest::make("null", "null"), {}));
      CALRT_TRY_ASSIGN(std::shared_ptr<BindingSet> set, model->make_bindings(0));
      CALRT_TRY_ASSIGN(auto session, device->session());
      CALRT_TRY_ASSIGN(auto job, Job::submit(session, model, set, monotonic_ns() + 20'000'000'000));
      CALRT_TRY(job->wait(monotonic_ns() + 20'000'000'000));
      return {};
    };
    for (const char* how : {" throw times=1", " throw=other times=1"}) {
      const auto answered = run(std::string("fault:") + entry + how);
      if (!answered.ok()) {
        ++failed;
        CHECK(answered.error().code == Status::INTERNAL);
        CHECK(answered.error().message.find("threw") != std::string::npos);
      }
      CHECK(run("").ok());
    }
  }
  CHECK(failed >= 16);  // driver_open, device_open, _info, session_open, ...: some are not needed
}

namespace {

// Answers OK for one entry, and does nothing.
struct Silent : layers::Layer {
  explicit Silent(std::string entry) : entry_(std::move(entry)) {}
  const char* name() const override { return "silent"; }
  bool replace(layers::Call& call) override {
    if (entry_ != layers::entry_name(call.entry)) return false;
    call.status = CALD_OK;
    return true;
  }
  std::string entry_;
};

// What comes of a device, a model and a job where `entry` is silent.
Result<void> run_with_silent(const std::string& entry) {
  OpenSettings settings;
  settings.layers = "silent:" + entry;
  CALRT_TRY_ASSIGN(const auto device, Device::open("null", {}, settings));
  CALRT_TRY_ASSIGN(const auto session, device->session());
  CALRT_TRY(device->alloc(64, CALD_DOMAIN_HOST, 64));
  CALRT_TRY_ASSIGN(const auto model,
                   Model::load(device, PackageForTest::make("null", "null"), LoadRequest{}));
  CALRT_TRY_ASSIGN(std::unique_ptr<BindingSet> made, model->make_bindings(0));
  const uint64_t deadline = device->now_ns() + 20'000'000'000;
  const std::shared_ptr<BindingSet> set = std::move(made);
  CALRT_TRY_ASSIGN(const auto job, Job::submit(session, model, set, deadline));
  CALRT_TRY(job->wait(deadline));
  KvMove clear;
  clear.op = CALD_KV_CLEAR;
  clear.n = 1;
  CALRT_TRY_ASSIGN(const auto moved, Job::submit_kv(session, model, clear, {}, deadline));
  return moved->wait(deadline);
}

}  // namespace

TEST(ok_without_a_handle_is_an_error_of_the_driver) {
  layers::register_layer("silent",
                         [](const std::string& entry) -> Result<std::shared_ptr<layers::Layer>> {
                           return std::shared_ptr<layers::Layer>(std::make_shared<Silent>(entry));
                         });
  CHECK(run_with_silent("").ok());
  for (const char* entry : {"driver_open", "device_open", "session_open", "buffer_alloc",
                            "model_load", "binding_set_make", "submit", "kv_submit"}) {
    const auto ran = run_with_silent(entry);
    CHECK(!ran.ok() && ran.error().code == Status::INTERNAL && ran.error().where == entry);
    CHECK(!ran.ok() && ran.error().message.find("gave no handle") != std::string::npos);
  }
}
