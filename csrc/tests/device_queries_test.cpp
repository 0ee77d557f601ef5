// SPDX-License-Identifier: Apache-2.0
// What a device can be asked, over drivers that answer well, badly or not at all.
#include <dlfcn.h>

#include <thread>

#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "tests/check.h"
#include "tests/drivers/surveyed.h"
#include "tests/package_for_test.h"

using namespace calrt;

namespace {

struct World {
  std::shared_ptr<Device> device = *Device::open("surveyed", {});
  std::shared_ptr<Package> package = PackageForTest::make("surveyed", "null");
  surveyed& driver = *find((*device->info()).driver_path);

  World() {
    driver = surveyed{};
    PackageForTest::manifest(*package).allowed_placement = {"chips:0+1"};
  }

  static surveyed* find(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW);
    return reinterpret_cast<decltype(&surveyed_state)>(dlsym(library, "surveyed_state"))();
  }

  std::shared_ptr<Model> load() {
    auto model = Model::load(device, package, {});
    if (!model.ok()) std::fprintf(stderr, "got: %s\n", error_text(model.error()).c_str());
    CHECK(model.ok());
    return *model;
  }
};

template <class T>
bool refused(const Result<T>& result, Status code, const char* words) {
  if (result.ok()) return false;
  const bool right =
      result.error().code == code && result.error().message.find(words) != std::string::npos;
  if (!right) std::fprintf(stderr, "got: %s\n", error_text(result.error()).c_str());
  return right;
}

}  // namespace

TEST(topology_is_copied_and_checked) {
  World world;
  auto topology = world.device->topology();
  CHECK(topology.ok() && topology->chips.size() == 2);
  CHECK(topology->chips[0].name == "left" && topology->chips[0].memory_bytes == 4096);
  CHECK(topology->links.size() == 2 && topology->links[1].from == CALD_HOST_CHIP);
  CHECK(topology->session_chips == std::vector<uint64_t>{3});
  CHECK((topology->modes == std::vector<std::string>{"none", "tensor"}));
  CHECK((topology->placements == std::vector<std::string>{"chips:0+1", ""}));  // NULL is ""
  const struct {
    int32_t wrong;
    const char* words;
  } cases[] = {{SURVEYED_NO_CHIP_LIST, "2 chips and gives no list"},
               {SURVEYED_TOO_MANY_CHIPS, "65 chips, at most 64"},
               {SURVEYED_SHORT_CHIP, "chip 1 incompletely"},
               {SURVEYED_LINK_TO_NOWHERE, "chip 0 with 2 and has 2"}};
  for (const auto& [wrong, words] : cases) {
    world.driver.wrong = wrong;
    CHECK(refused(world.device->topology(), Status::INTERNAL, words));
  }
}

TEST(buffer_rules_are_checked) {
  World world;
  auto rules = world.device->buffer_rules(CALD_DOMAIN_HOST);
  CHECK(rules.ok() && rules->align == 4096 && rules->padding == 512 && rules->max_bytes == 1 << 20);
  CHECK(refused(world.device->buffer_rules(CALD_DOMAIN_DEVICE), Status::UNSUPPORTED, "domain 4"));
  world.driver.wrong = SURVEYED_ALIGN_3;
  CHECK(refused(world.device->buffer_rules(CALD_DOMAIN_HOST), Status::INTERNAL, "align 3"));
  world.driver.wrong = SURVEYED_PADDING_0;
  CHECK(refused(world.device->buffer_rules(CALD_DOMAIN_HOST), Status::INTERNAL, "padding 0"));
}

TEST(device_info_has_what_0_9_added) {
  const DeviceInfo info = *World().device->info();
  CHECK(info.id == "surveyed:7" && info.domains == CALD_DOMAIN_HOST);
  CHECK(info.completion == CALD_COMPLETION_CALLBACK && info.clock == CALD_CLOCK_REAL);
}

TEST(a_driver_that_does_not_tell) {
  auto device = *Device::open("scripted", {});  // has the entries of 0.1 only
  CHECK(refused(device->topology(), Status::UNSUPPORTED, "driver scripted does not tell"));
  CHECK(refused(device->trace_start(16), Status::UNSUPPORTED, "records none"));
  CHECK(refused(device->trace_drain(), Status::UNSUPPORTED, "records none"));
  CHECK(refused(device->trace_stop(), Status::UNSUPPORTED, "records none"));
  auto rules = device->buffer_rules(CALD_DOMAIN_HOST);
  CHECK(rules.ok() && rules->align == 64 && rules->padding == 1 && rules->max_bytes == 0);
}

TEST(a_load_is_checked_against_the_topology) {
  World world;
  LoadRequest request;
  PackageForTest::manifest(*world.package).allowed_parallel = {"none", "pipeline"};
  PackageForTest::manifest(*world.package).allowed_placement = {"chips:0+1", "chip:5"};
  request.parallel = "pipeline";
  request.placement = "chips:0+1";
  CHECK(refused(Model::load(world.device, world.package, request), Status::UNSUPPORTED,
                "parallel=pipeline: device 'surveyed' can do none, tensor"));
  request.parallel = "none";
  request.placement = "chip:5";
  CHECK(refused(Model::load(world.device, world.package, request), Status::UNSUPPORTED,
                "placement=chip:5: device 'surveyed' can do chips:0+1"));
  CHECK(world.driver.loads == 0);
  request.placement = "chips:0+1";
  CHECK(Model::load(world.device, world.package, request).ok());
}

TEST(a_footprint_needs_no_load) {
  World world;
  LoadRequest request;
  request.lanes = 4;
  auto need = world.device->footprint(*world.package, request);
  CHECK(need.ok() && need->host_bytes == 4 && need->device_bytes == 64);
  request.lanes = 3;  // not allowed by the package: the same answer as from a load
  auto refused_need = world.device->footprint(*world.package, request);
  auto refused_load = Model::load(world.device, world.package, request);
  CHECK(!refused_need.ok() && refused_need.error().message == refused_load.error().message);
  world.driver.wrong = SURVEYED_LARGE_FOOTPRINT;
  CHECK(world.device->footprint(*world.package, {}).ok());  // to know it is no error
  CHECK(refused(Model::load(world.device, world.package, {}), Status::OUT_OF_HOST_MEMORY, "GiB"));
  CHECK(world.driver.loads == 0);
}

TEST(binding_sets_are_made_known_once_and_forgotten) {
  World world;
  {
    auto model = world.load();
    auto session = *world.device->session();
    std::shared_ptr<BindingSet> set = *model->make_bindings(*model->graph_index("prefill_t16"));
    CHECK(world.driver.sets_made == 1 && world.driver.sets_alive == 1);
    uint64_t whole = 0;
    set->bind_rows(set->max_rows());
    for (const cald_binding& binding : set->bindings()) whole += binding.bytes;
    CHECK(world.driver.set_bytes == whole);  // jobs may bind any part of it
    set->bind_rows(0);
    for (int i = 0; i < 3; ++i) {
      auto job = Job::submit(session, model, set, monotonic_ns() + 60'000'000'000);
      CHECK(job.ok() && (*job)->wait(monotonic_ns() + 60'000'000'000).ok());
    }
    CHECK(world.driver.sets_made == 1 && world.driver.set_of_job == set->handle());
    CHECK(set->handle() != nullptr);
    const uint64_t bytes = set->buffer(CALD_ROLE_LOGITS)->bytes();
    auto other = *world.device->alloc(bytes, CALD_DOMAIN_HOST, 64);
    CHECK(set->rebind(CALD_ROLE_LOGITS, other).ok());  // the known set has another buffer in it
    CHECK(world.driver.sets_alive == 0 && set->handle() == nullptr);
    auto job = Job::submit(session, model, set, monotonic_ns() + 60'000'000'000);
    CHECK(job.ok() && (*job)->wait(monotonic_ns() + 60'000'000'000).ok());
    CHECK(world.driver.set_of_job == nullptr);
  }
  CHECK(world.driver.sets_alive == 0);
  auto model = world.load();
  world.driver.wrong = SURVEYED_SET_REFUSED;
  CHECK(refused(model->make_bindings(0), Status::OUT_OF_DEVICE_MEMORY, "binding_set_make"));
  world.driver.wrong = SURVEYED_NO_SET_HANDLE;
  CHECK(refused(model->make_bindings(0), Status::INTERNAL, "gave no handle"));
}

TEST(kv_info) {
  World world;
  auto info = world.load()->kv_info();
  CHECK(info.ok() && info->lanes == 1 && info->cells == 64 && info->bytes_per_cell == 0);
  CHECK(info->ops == (CALD_KV_CLEAR | CALD_KV_LANE_COPY | CALD_KV_RANGE_COPY));
}

TEST(a_trace_is_bounded_and_on_the_hosts_clock) {
  World world;
  auto model = world.load();
  auto session = *world.device->session();
  std::shared_ptr<BindingSet> set = *model->make_bindings(0);
  std::vector<uint64_t> jobs;
  const auto run = [&](int n) {
    for (int i = 0; i < n; ++i) {
      auto job = *Job::submit(session, model, set, monotonic_ns() + 60'000'000'000);
      CHECK(job->wait(monotonic_ns() + 60'000'000'000).ok());
      jobs.push_back(job->job_seq());
    }
  };
  run(1);  // before: not traced
  jobs.clear();
  CHECK(refused(world.device->trace_start(0), Status::OUT_OF_RANGE, "capacity=0"));
  const uint64_t begin = monotonic_ns();
  CHECK(world.device->trace_start(4).ok());
  run(6);
  auto trace = world.device->trace_drain();
  const uint64_t end = monotonic_ns();
  CHECK(trace.ok() && trace->events.size() == 4 && trace->dropped == 2);
  for (size_t i = 0; i < trace->events.size(); ++i) {
    const auto& event = trace->events[i];
    CHECK(event.id == jobs[i] && event.name == "jobs" && event.value == int64_t(i) + 1);
    CHECK(event.t_ns >= begin + SURVEYED_CLOCK_AHEAD_NS);
    CHECK(trace->host_ns(event.t_ns) >= begin && trace->host_ns(event.t_ns) <= end);
  }
  CHECK(trace->residual_ns == SURVEYED_RESIDUAL_NS);
  run(1);  // there is room again
  CHECK(world.device->trace_stop().ok());
  run(1);  // after: not traced
  trace = world.device->trace_drain();
  CHECK(trace.ok() && trace->events.size() == 1 && trace->events[0].id == jobs[6]);
  CHECK(world.device->trace_start(5000).ok());  // begins anew, more than one batch
  run(5001);
  trace = world.device->trace_drain();
  CHECK(trace.ok() && trace->events.size() == 5000 && trace->dropped == 1);
  world.driver.wrong = SURVEYED_DRAINS_TOO_MUCH;
  CHECK(refused(world.device->trace_drain(), Status::INTERNAL, "4096 had room"));
  CHECK(world.device->trace_stop().ok());
}

// Jobs of a session write while the device is drained from another thread: nothing is lost twice.
TEST(draining_beside_jobs) {
  World world;
  auto model = world.load();
  auto session = *world.device->session();
  std::shared_ptr<BindingSet> set = *model->make_bindings(0);
  CHECK(world.device->trace_start(64).ok());
  constexpr int kJobs = 2000;
  std::atomic<bool> over{false};
  std::thread submitter([&] {
    for (int i = 0; i < kJobs; ++i) {
      auto job = *Job::submit(session, model, set, monotonic_ns() + 60'000'000'000);
      CHECK(job->wait(monotonic_ns() + 60'000'000'000).ok());
    }
    over.store(true);
  });
  uint64_t seen = 0, dropped = 0, last = 0;
  for (bool last_round = false; !last_round;) {
    last_round = over.load();
    auto trace = world.device->trace_drain();
    CHECK(trace.ok());
    for (const auto& event : trace->events) {
      CHECK(event.id > last);
      last = event.id;
    }
    seen += trace->events.size();
    dropped = trace->dropped;
  }
  submitter.join();
  CHECK(seen + dropped == kJobs);
  CHECK(world.device->trace_stop().ok());
}
