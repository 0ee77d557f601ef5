// SPDX-License-Identifier: Apache-2.0
// What a process of its own adds to a job: submit, end and destroy on null through isolate, without
// what null itself takes, beside a bare round trip of two processes over eventfds.
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "bench.h"
#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "tests/package_for_test.h"

using namespace calrt;

namespace {

constexpr double kLimit = 1.5;  // of the bare round trip

// A process that answers each signal with one.
class Echo {
 public:
  Echo() : there_(eventfd(0, 0)), back_(eventfd(0, 0)) {
    pid_ = fork();
    if (pid_ != 0) return;
    for (uint64_t count = 0; read(there_, &count, sizeof count) > 0 && count < kEnd;)
      if (count = 1; write(back_, &count, sizeof count) < 0) break;
    _exit(0);
  }
  ~Echo() {
    const uint64_t end = kEnd;
    (void)!write(there_, &end, sizeof end);
    waitpid(pid_, nullptr, 0);
    close(there_);
    close(back_);
  }
  void round_trip() {
    uint64_t count = 1;
    (void)!write(there_, &count, sizeof count);
    (void)!read(back_, &count, sizeof count);
  }

 private:
  static constexpr uint64_t kEnd = 1 << 20;
  int there_, back_;
  pid_t pid_;
};

// Jobs through a driver's table, nothing above it.
struct Rig {
  explicit Rig(const char* spec)
      : device(Device::open(spec, {}, {"", {}, {}}).value()),
        model(Model::load(device, PackageForTest::make("null", "null"), {}).value()),
        session(device->session().value()),
        bindings(model->make_bindings(0).value()) {
    desc.struct_size = sizeof desc;
    desc.model = model->handle();
    desc.n_bindings = static_cast<uint32_t>(bindings->bindings().size());
    desc.bindings = bindings->bindings().data();
    desc.deadline_ns = CALD_NO_DEADLINE;
    desc.on_complete = [](void* user, const cald_completion*) { ++static_cast<Rig*>(user)->told; };
    desc.user = this;
  }
  void job() {
    const cald_driver_table& table = device->table();
    cald_job* made = nullptr;
    ok = ok && table.submit(session->handle(), &desc, &made, nullptr) == CALD_OK;
    ok = ok && table.job_wait(made, 0, nullptr) == CALD_OK;
    table.job_destroy(made);
  }
  std::shared_ptr<Device> device;
  std::shared_ptr<Model> model;
  std::shared_ptr<Session> session;
  std::shared_ptr<BindingSet> bindings;
  cald_job_desc desc{};
  uint64_t told = 0;
  bool ok = true;
};

struct Times {
  std::vector<double> ns;
  template <class Call>
  void take(Call&& call, int calls = 200) {
    for (int i = 0; i < calls; ++i) {
      const uint64_t begin = monotonic_ns();
      call();
      ns.push_back(static_cast<double>(monotonic_ns() - begin));
    }
  }
  double at(double quantile) {
    std::sort(ns.begin(), ns.end());
    return ns[static_cast<size_t>(quantile * static_cast<double>(ns.size() - 1))];
  }
};

}  // namespace

// In turns, so that what else the machine does meets all three alike.
BENCH(isolate_submit) {
  Echo echo;
  Rig plain("null"), apart("isolate:null");
  Times bare, here, there;
  for (int turn = 0; turn < 60; ++turn) {
    bare.take([&] { echo.round_trip(); });
    here.take([&] { plain.job(); });
    there.take([&] { apart.job(); });
  }
  if (!plain.ok || !apart.ok || plain.told != here.ns.size() || apart.told != there.ns.size())
    std::fprintf(stderr, "a job failed: the figure means nothing\n");
  const double trip = bare.at(0.5);
  bench::record("native.isolate.eventfd_round_trip.p50", trip, "ns");
  bench::record("native.isolate.submit_added.null.p50", there.at(0.5) - here.at(0.5), "ns",
                kLimit * trip);
  bench::record("native.isolate.submit_added.null.p99", there.at(0.99) - here.at(0.99), "ns");
}
