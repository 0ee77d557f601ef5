// SPDX-License-Identifier: Apache-2.0
// What a job costs on a device that costs nothing: the null driver ends it inside submit.
#include <cstdio>

#include "bench.h"
#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "tests/package_for_test.h"

using namespace calrt;

namespace {

constexpr double kLimitNs = 1000;
constexpr uint64_t kMinuteNs = 60'000'000'000;

struct Rig {
  std::shared_ptr<Device> device = Device::open("null", {}).value();
  std::shared_ptr<Model> model =
      Model::load(device, PackageForTest::make("null", "null"), {}).value();
  std::shared_ptr<Session> session = device->session().value();
  std::shared_ptr<BindingSet> bindings = model->make_bindings(0).value();
};

struct Sink final : CompletionSink {
  uint64_t told = 0;
  void completed(uint64_t, JobState, int32_t) noexcept override { ++told; }
};

void check(bool ok) {
  if (!ok) std::fprintf(stderr, "a job failed: the figure means nothing\n");
}

}  // namespace

// Submit, wait, destroy, with bindings that are already filled.
BENCH(submit_wait_destroy) {
  Rig rig;
  Sink sink;
  bool ok = true;
  bench::record("native.submit_wait_destroy.null", bench::best_ns([&] {
                  auto job = Job::submit(rig.session, rig.model, rig.bindings,
                                         monotonic_ns() + kMinuteNs, &sink);
                  ok = ok && job.ok() && (*job)->wait(0).ok();
                }),
                "ns", kLimitNs);
  check(ok);
}

// The driver's own share of it: its entries called by nobody but this loop.
BENCH(driver_alone) {
  Rig rig;
  const cald_driver_table& table = rig.device->table();
  cald_job_desc desc{};
  desc.struct_size = sizeof desc;
  desc.model = rig.model->handle();
  desc.n_bindings = static_cast<uint32_t>(rig.bindings->bindings().size());
  desc.bindings = rig.bindings->bindings().data();
  desc.deadline_ns = CALD_NO_DEADLINE;
  desc.on_complete = [](void*, const cald_completion*) {};
  bool ok = true;
  bench::record("native.submit_wait_destroy.driver_alone", bench::best_ns([&] {
                  cald_job* job = nullptr;
                  ok = ok && table.submit(rig.session->handle(), &desc, &job, nullptr) == CALD_OK;
                  ok = ok && table.job_wait(job, 0, nullptr) == CALD_OK;
                  table.job_destroy(job);
                }),
                "ns");
  check(ok);
}

BENCH(kv_submit_wait_destroy) {
  Rig rig;
  bool ok = true;
  const KvMove clear{CALD_KV_CLEAR, 0, 0, 0, 0, 1, 0};
  bench::record("native.kv_submit_wait_destroy.null", bench::best_ns([&] {
                  auto job =
                      Job::submit_kv(rig.session, rig.model, clear, {}, monotonic_ns() + kMinuteNs);
                  ok = ok && job.ok() && (*job)->wait(0).ok();
                }),
                "ns", kLimitNs);
  check(ok);
}
