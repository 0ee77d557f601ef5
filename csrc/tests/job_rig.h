// SPDX-License-Identifier: Apache-2.0
// A scripted device with a model and one binding set; at its end all must have been given back.
#pragma once

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "tests/check.h"
#include "tests/package_for_test.h"
#include "tests/scripted_access.h"

namespace calrt {

inline constexpr uint64_t kMs = 1'000'000;
inline uint64_t in(uint64_t ms) { return monotonic_ns() + ms * kMs; }

inline scripted::Script& script() {
  static scripted::Script* found =
      scripted_access((*(*Device::open("scripted", {}))->info()).driver_path);
  return *found;
}

struct Sink : CompletionSink {
  std::atomic<int> told{0}, answers{0};
  std::atomic<uint64_t> job_seq{0};
  std::atomic<JobState> state{JobState::CREATED};
  std::atomic<int32_t> status{-1};
  bool awaits = false;
  void completed(uint64_t seq, JobState end, int32_t code) noexcept override {
    job_seq = seq;
    state = end;
    status = code;
    ++told;
  }
  bool awaits_answer() const noexcept override { return awaits; }
  void answered(uint64_t seq) noexcept override {
    if (seq == job_seq) ++answers;
  }
  std::vector<uint64_t> requests(uint64_t) noexcept override { return {71, 72}; }
};

struct Rig {
  std::shared_ptr<Device> device;
  std::shared_ptr<Model> model;
  std::shared_ptr<Session> session;
  std::shared_ptr<BindingSet> bindings;
  Sink sink;

  Rig() : Rig([](scripted::Script&) {}) {}
  // `setup` writes the script before the device is opened.
  template <class Setup>
  explicit Rig(Setup&& setup) {
    script().reset();
    script().set(setup);
    device = *Device::open("scripted", {});
    LoadRequest request;
    request.lanes = 4;
    model = *Model::load(device, PackageForTest::make("scripted", "test-class"), request);
    session = *device->session();
    bindings = make();
  }
  ~Rig() {
    script().set([](scripted::Script& now) {
      now.throws.clear();
      now.answers.clear();
      now.wait_hangs = false;
    });
    drop();
    CHECK(eventually([] { return script().living() == 0; }));
    const std::scoped_lock lock(script().mutex);
    for (const std::string& what : script().wrong)
      std::fprintf(stderr, "wrong: %s\n", what.c_str());
    CHECK(script().wrong.empty());
  }
  std::shared_ptr<BindingSet> make() { return *model->make_bindings(0); }
  Result<std::shared_ptr<Job>> submit(uint64_t ms = 20'000) { return submit(bindings, ms); }
  Result<std::shared_ptr<Job>> submit(const std::shared_ptr<BindingSet>& set, uint64_t ms) {
    return Job::submit(session, model, set, session->now_ns() + ms * kMs, &sink);
  }
  void drop() {
    bindings.reset();
    session.reset();
    model.reset();
    device.reset();
  }
};

}  // namespace calrt
