// SPDX-License-Identifier: Apache-2.0
// A driver in a process of its own behaves like one in this process: calls, buffers, jobs, lists.
#include <sys/resource.h>

#include <cmath>
#include <cstring>

#include "calrt/device.h"
#include "calrt/device_spec.h"
#include "calrt/job.h"
#include "calrt/model.h"
#include "layers/isolate/shared_memory.h"
#include "tests/entry_tour.h"
#include "tests/isolate_rig.h"

using namespace calrt;

namespace {

constexpr uint64_t kLong = 60'000'000'000;

std::shared_ptr<Device> open_device(const std::string& spec, const Device::Options& options = {}) {
  return Device::open(spec, options, {"", {}, {}}).value();
}

}  // namespace

TEST(specs_say_what_is_isolated) {
  const auto at = [](const char* text) { return *DeviceSpec::parse(text); };
  CHECK(!at("mock:bare").isolated && at("isolate:mock:bare").isolated);
  CHECK(at("isolate:mock:bare").driver == "mock" && at("isolate:mock:bare").config == "bare");
  CHECK(at("isolate:/a/libcald_x.so:3").driver == "/a/libcald_x.so");
  CHECK(at("isolate:/a/libcald_x.so:3").index == 3);
  for (const char* wrong : {"isolate:", "isolate:isolate:null", "isolate", ""})
    CHECK(DeviceSpec::parse(wrong).error().code == Status::INVALID_ARGUMENT);
  const auto both = Device::open("isolate:null", {}, {"", {}, false});
  CHECK(!both.ok() && both.error().message.find("isolate=False") != std::string::npos);
  const auto none = Device::open("isolate:there_is_none", {});
  CHECK(!none.ok() && none.error().code == Status::INVALID_ARGUMENT);
}

TEST(the_tour_calls_every_entry) {
  const Tour tour("validate", "null", true);
  for (const Error& error : tour.errors) std::fprintf(stderr, "%s\n", error_text(error).c_str());
  CHECK(tour.errors.empty());
  for (const auto& [entry, has_status] : kEntries) {
    const auto times = std::count(tour.tried.begin(), tour.tried.end(), entry);
    CHECK(times == (has_status ? 1 : 0));
  }
}

TEST(a_device_is_described_as_in_this_process) {
  for (const char* driver : {"null", "mock"}) {
    const auto plain = open_device(driver);
    const auto apart = open_device(std::string("isolate:") + driver);
    const DeviceInfo a = plain->info().value(), b = apart->info().value();
    CHECK(a.driver == b.driver && a.name == b.name && a.device_class == b.device_class);
    CHECK(a.id == b.id && a.sessions == b.sessions && a.depth == b.depth && a.queue == b.queue);
    CHECK(a.domains == b.domains && a.completion == b.completion &&
          a.memory_bytes == b.memory_bytes);
    const auto caps_a = plain->caps().value(), caps_b = apart->caps().value();
    CHECK(caps_a.size() == caps_b.size() && !caps_a.empty());
    for (size_t i = 0; i < caps_a.size(); ++i) {
      CHECK(caps_a[i].name == caps_b[i].name && caps_a[i].source == caps_b[i].source);
      CHECK(caps_a[i].level == caps_b[i].level && caps_a[i].value == caps_b[i].value);
    }
    const auto counters_a = plain->counters().value(), counters_b = apart->counters().value();
    CHECK(counters_a.size() == counters_b.size());
    const Topology shape_a = plain->topology().value(), shape_b = apart->topology().value();
    CHECK(shape_a.modes == shape_b.modes && shape_a.placements == shape_b.placements);
    CHECK(shape_a.session_chips == shape_b.session_chips &&
          shape_a.chips.size() == shape_b.chips.size());
    CHECK(std::isnan(plain->health().value().power_w) ==
          std::isnan(apart->health().value().power_w));
  }
}

TEST(a_driver_of_a_draft_of_the_abi_is_asked_in_its_own_version) {
  const auto device = open_device("isolate:older");
  CHECK(device->table().abi_version == 1 && device->info().ok());  // 0.1
  CHECK(device->topology().error().code == Status::UNSUPPORTED);
}

TEST(buffers_lie_in_shared_memory_and_outlive_the_child) {
  for (const char* driver : {"isolate:null", "isolate:mock"}) {
    const auto device = open_device(driver);
    const auto buffer = device->alloc(1 << 20, CALD_DOMAIN_HOST, 4096).value();
    auto* bytes = static_cast<unsigned char*>(buffer->data());
    CHECK(bytes != nullptr && reinterpret_cast<uintptr_t>(bytes) % 4096 == 0);
    CHECK(bytes[0] == 0 && bytes[(1 << 20) - 1] == 0);
    bytes[77] = 42;
    unsigned char read[3] = {};
    CHECK(buffer->read(76, read, 3).ok() && read[1] == 42);  // the driver's copy is the same memory
    CHECK(buffer->write(5, "abc", 3).ok() && std::memcmp(bytes + 5, "abc", 3) == 0);
    CHECK(buffer->read((1 << 20) - 1, read, 3).error().code == Status::OUT_OF_RANGE);
    const auto running = children();
    CHECK(running.size() == 1);
    kill(running[0], SIGKILL);
    CHECK(soon([&] { return children().empty(); }));
    CHECK(soon([&] { return !device->info().ok(); }));
    CHECK(bytes[77] == 42 && std::memcmp(bytes + 5, "abc", 3) == 0);
    bytes[78] = 43;
    CHECK(bytes[78] == 43);
    CHECK(buffer->read(0, read, 3).error().code == Status::DEVICE_LOST);
  }
}

TEST(jobs_run_and_are_told_inside_of_submit) {
  TableClient client("null", "validate", true);
  for (uint64_t seq = 1; seq <= 200; ++seq) {
    const JobHandle job = client.submit(seq);
    CHECK(client.told().size() == seq);  // null ends it inside of submit
    CHECK(client.told().back().thread == std::this_thread::get_id());
    CHECK(client.told().back().completion.job_seq == seq);
    CHECK(client.wait(job, 0) == CALD_OK && client.query(job) == CALD_JOB_DONE);
  }
  client.close();
}

TEST(a_job_through_the_runtime) {
  for (const std::string driver : {"null", "mock:completion=wait", "mock"}) {
    if (driver.find('=') != std::string::npos) continue;
    const auto device = open_device("isolate:" + driver);
    if (driver != "null") continue;
    const auto model = Model::load(device, PackageForTest::make("null", "null"), {}).value();
    const auto session = device->session().value();
    const std::shared_ptr<BindingSet> set = model->make_bindings(0).value();
    for (int i = 0; i < 50; ++i) {
      const auto job = Job::submit(session, model, set, monotonic_ns() + kLong).value();
      CHECK(job->wait(monotonic_ns() + kLong).ok());
      CHECK(job->timing().ok());
    }
  }
  CHECK(soon([] { return children().empty(); }));
}

TEST(a_wait_costs_next_to_nothing) {
  const Environment hangs("CALRT_DEADLY", "submit hang");
  TableClient client("deadly", "", true);
  const auto cpu_ms = [](int who) {
    rusage used{};
    getrusage(who, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000.0 +
           static_cast<double>(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1000.0;
  };
  const cald_job_desc desc = [&] {
    cald_job_desc made = client.desc(1);
    made.deadline_ns = monotonic_ns() + 300'000'000;  // and 0.8 s for the answer
    return made;
  }();
  cald_job* job = nullptr;
  const double own = cpu_ms(RUSAGE_SELF), theirs = cpu_ms(RUSAGE_CHILDREN);
  const uint64_t begun = monotonic_ns();
  const cald_status status =
      client.table().submit(client.session.get().pointer, &desc, &job, nullptr);
  const double took_s = static_cast<double>(monotonic_ns() - begun) / 1e9;
  CHECK(status == CALD_DEVICE_LOST && took_s > 1);
  const double spent = cpu_ms(RUSAGE_SELF) - own;
  CHECK(spent < 5);
  CHECK(soon([] { return children().empty(); }));
  std::printf("a wait of %.2f s: %.2f ms here, %.2f ms in the child with its start\n", took_s,
              spent, cpu_ms(RUSAGE_CHILDREN) - theirs);
}
