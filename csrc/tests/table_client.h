// SPDX-License-Identifier: Apache-2.0
// A caller of a driver's table, without the runtime above it: what a layer does is seen bare.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "calrt/driver_host.h"
#include "calrt/driver_library.h"
#include "tests/check.h"
#include "tests/package_for_test.h"

namespace calrt {

// Decode of one lane on a loaded model; what is told of jobs is written down.
struct TableClient {
  static constexpr uint64_t kIn = 4, kOut = PackageForTest::kVocab * 4;

  struct Told {
    cald_completion completion;
    std::thread::id thread;
  };
  std::shared_ptr<DriverLibrary> library;
  DeviceHandle device;
  SessionHandle session;
  BufferHandle tokens, logits;
  ModelHandle model;

  TableClient(const std::string& driver, const std::string& layers, bool isolated = false) {
    library = *DriverLibrary::load(driver, layers, isolated);
    cald_device_options options{};
    options.struct_size = sizeof options;
    options.config = "";
    device = make<DeviceHandle, cald_device>(
        [&](auto** out) { return table().device_open(library->handle(), &options, out, nullptr); });
    session = make<SessionHandle, cald_session>(
        [&](auto** out) { return table().session_open(on(), 0, out, nullptr); });
    tokens = buffer(kIn);
    logits = buffer(kOut);
    bindings_[0] = {CALD_ROLE_TOKENS, 0, tokens.get().pointer, 0, kIn};
    bindings_[1] = {CALD_ROLE_LOGITS, 0, logits.get().pointer, 0, kOut};
    static const uint32_t profiles[] = {1, 4}, chunks[] = {PackageForTest::kChunk};
    cald_load_options load{};
    load.struct_size = sizeof load;
    load.lanes = 1;
    load.cells = 64;
    load.compute = CALD_COMPUTE_F32;
    load.kv_dtype = load.logits_dtype = CALD_F32;
    load.parallel = "none";
    load.placement = "any";
    load.n_profiles = 2;
    load.profiles = profiles;
    load.n_chunks = 1;
    load.chunks = chunks;
    model = make<ModelHandle, cald_model>([&](auto** out) {
      return table().model_load(on(), PackageForTest::typed(), &load, out, nullptr);
    });
  }
  ~TableClient() { close(); }
  TableClient(const TableClient&) = delete;
  TableClient& operator=(const TableClient&) = delete;

  void close() {  // children first; told() may be asked afterwards
    session.reset();
    model.reset();
    tokens.reset();
    logits.reset();
    device.reset();
    library.reset();
  }

  const cald_driver_table& table() const { return library->table(); }
  cald_device* on() const { return device.get().pointer; }

  BufferHandle buffer(uint64_t bytes) {
    return make<BufferHandle, cald_buffer>([&](auto** out) {
      return table().buffer_alloc(on(), CALD_DOMAIN_HOST, bytes, 64, out, nullptr);
    });
  }
  uint8_t* memory(const BufferHandle& of) const {
    void* address = nullptr;
    CHECK(table().buffer_map(of.get().pointer, &address, nullptr) == CALD_OK);
    return static_cast<uint8_t*>(address);
  }

  cald_job_desc desc(uint64_t job_seq) {
    cald_job_desc desc{};
    desc.struct_size = sizeof desc;
    desc.graph = 1;
    desc.model = model.get().pointer;
    desc.n_bindings = 2;
    desc.bindings = bindings_;
    desc.job_seq = job_seq;
    desc.deadline_ns = CALD_NO_DEADLINE;
    desc.on_complete = [](void* user, const cald_completion* completion) {
      auto* self = static_cast<TableClient*>(user);
      const std::scoped_lock lock(self->mutex_);
      self->told_.push_back({*completion, std::this_thread::get_id()});
    };
    desc.user = this;
    return desc;
  }
  Result<cald_job*> try_submit(uint64_t job_seq) {
    const cald_job_desc asked = desc(job_seq);
    return call_driver_for<cald_job>("submit", [&](cald_job** out, cald_error* error) {
      return table().submit(session.get().pointer, &asked, out, error);
    });
  }
  JobHandle submit(uint64_t job_seq) {
    auto job = try_submit(job_seq);
    CHECK(job.ok());
    return job.ok() ? JobHandle({*job, &table()}) : JobHandle();
  }

  int32_t query(const JobHandle& job, cald_error* error = nullptr) {
    int32_t state = 0;
    CHECK(table().job_query(job.get().pointer, &state, error) == CALD_OK);
    return state;
  }
  cald_status wait(const JobHandle& job, uint64_t ms) {
    return table().job_wait(job.get().pointer, monotonic_ns() + ms * 1'000'000, nullptr);
  }
  cald_status cancel(const JobHandle& job) {
    return table().job_cancel(job.get().pointer, nullptr);
  }

  std::vector<Told> told() {
    const std::scoped_lock lock(mutex_);
    return told_;
  }
  std::string order() {  // "1 2 "
    std::string text;
    for (const Told& one : told()) text += std::to_string(one.completion.job_seq) + " ";
    return text;
  }

 private:
  template <class Handle, class T, class Call>
  Handle make(Call&& call) {
    T* made = nullptr;
    CHECK(call(&made) == CALD_OK && made != nullptr);
    return made != nullptr ? Handle({made, &table()}) : Handle();
  }
  std::mutex mutex_;
  std::vector<Told> told_;
  cald_binding bindings_[2];
};

}  // namespace calrt
