// SPDX-License-Identifier: Apache-2.0
// Buffers: the driver's rules, transfers that stop half-way, exports, pools of them.
#include "calrt/buffer.h"

#include <dlfcn.h>

#include <cstring>
#include <thread>
#include <vector>

#include "base/copied_bytes.h"
#include "calrt/buffer_pool.h"
#include "calrt/device.h"
#include "calrt/driver_host.h"
#include "calrt/job.h"
#include "tests/check.h"
#include "tests/drivers/short_transfer.h"
#include "tests/package_for_test.h"
#include "tests/scripted_access.h"

using namespace calrt;

namespace {

constexpr uint64_t kMs = 1'000'000;

uint64_t in(uint64_t ms) { return monotonic_ns() + ms * kMs; }

std::shared_ptr<Device> open(const char* driver) {
  auto device = Device::open(driver, {});
  CHECK(device.ok());
  return *device;
}

short_transfer& transfers(Device& device) {
  void* library = dlopen((*device.info()).driver_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto get =
      reinterpret_cast<decltype(&short_transfer_state)>(dlsym(library, "short_transfer_state"));
  return *get();
}

bool says(const Error& error, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    if (error.message.find(part) == std::string::npos) {
      std::fprintf(stderr, "'%s' lacks '%s'\n", error.message.c_str(), part);
      return false;
    }
  return true;
}

PoolStats stats(uint32_t free, uint32_t leased, uint32_t in_flight, uint32_t quarantined) {
  return {free + leased + in_flight + quarantined, free, leased, in_flight, quarantined, 0};
}

bool same(const PoolStats& a, const PoolStats& b) {
  return a.capacity == b.capacity && a.free == b.free && a.leased == b.leased &&
         a.in_flight == b.in_flight && a.quarantined == b.quarantined && a.waiting == b.waiting;
}

}  // namespace

TEST(the_drivers_rules_pad_and_align) {
  auto device = open("surveyed");  // align 4096, padding 512, at most 1 MiB
  for (const uint64_t bytes : {1, 511, 512, 513, 1 << 20}) {
    auto buffer = *device->alloc(bytes, CALD_DOMAIN_HOST, 1);
    CHECK(buffer->bytes() == bytes);
    CHECK(buffer->allocated_bytes() == (bytes + 511) / 512 * 512);
    CHECK(buffer->align() == 4096);
    CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % 4096 == 0);
  }
  auto wide = *device->alloc(100, CALD_DOMAIN_HOST, 8192);  // more than the driver asks for
  CHECK(wide->align() == 8192 && reinterpret_cast<uintptr_t>(wide->data()) % 8192 == 0);
  const char byte = 1;
  CHECK(wide->write(99, &byte, 1).ok());  // the padding is not the caller's
  CHECK(wide->write(100, &byte, 1).error().code == Status::OUT_OF_RANGE);
  auto large = device->alloc((1 << 20) + 1, CALD_DOMAIN_HOST, 1);
  CHECK(large.error().code == Status::OUT_OF_RANGE);
  CHECK(says(large.error(), {"1048577", "512", "1048576"}));
  CHECK(device->alloc(1, CALD_DOMAIN_DEVICE, 1).error().code == Status::UNSUPPORTED);
}

TEST(a_driver_without_rules_gets_what_was_asked_for) {
  auto device = open("scripted");
  auto buffer = *device->alloc(100, CALD_DOMAIN_HOST, 256);
  CHECK(buffer->allocated_bytes() == 100 && buffer->align() == 256);
}

TEST(sizes_domains_and_alignments_without_meaning_never_reach_the_driver) {
  auto device = *Device::open("null", {}, {"fault:buffer_rules native=1 status=29", {}});
  for (const uint32_t domain : {0u, 3u, 12u, 0x80000001u})
    CHECK(device->alloc(64, domain, 1).error().code == Status::INVALID_ARGUMENT);
  for (const uint64_t align : {0u, 3u, 96u})
    CHECK(device->alloc(64, CALD_DOMAIN_HOST, align).error().code == Status::INVALID_ARGUMENT);
  for (const uint64_t bytes : {uint64_t{0}, (uint64_t{1} << 48) + 1, UINT64_MAX})
    CHECK(device->alloc(bytes, CALD_DOMAIN_HOST, 1).error().code == Status::OUT_OF_RANGE);
  const auto counters = *device->counters();
  for (const auto& [name, value] : counters)
    if (name == "fault.1.buffer_rules") CHECK(value == 0);
  CHECK(device->alloc(64, CALD_DOMAIN_HOST, 1).error().native_code == 1);  // this one did
}

TEST(memory_that_a_driver_maps_askew_is_refused) {
  struct Askew : layers::Layer {
    const char* name() const override { return "askew"; }
    void after(layers::Call& call) override {
      if (call.entry != layers::Entry::buffer_map) return;
      auto*& address = *std::get<1>(call.of<&cald_driver_table::buffer_map>());
      address = static_cast<char*>(address) + 32;
    }
  };
  layers::register_layer("askew", [](const std::string&) -> Result<std::shared_ptr<layers::Layer>> {
    return std::shared_ptr<layers::Layer>(std::make_shared<Askew>());
  });
  auto device = *Device::open("null", {}, {"askew:", {}});
  const Error error = device->alloc(64, CALD_DOMAIN_HOST, 64).error();
  CHECK(error.code == Status::INTERNAL && says(error, {"no multiple of 64"}));
}

TEST(a_size_that_only_its_padding_makes_too_large_is_refused) {
  static cald_buffer_rules wanted{};
  struct Rules : layers::Layer {
    const char* name() const override { return "rules"; }
    void after(layers::Call& call) override {
      if (call.entry != layers::Entry::buffer_rules) return;
      auto* rules = std::get<2>(call.of<&cald_driver_table::buffer_rules>());
      rules->align = 64;
      rules->padding = wanted.padding;
      rules->max_bytes = wanted.max_bytes;
    }
  };
  layers::register_layer("rules", [](const std::string&) -> Result<std::shared_ptr<layers::Layer>> {
    return std::shared_ptr<layers::Layer>(std::make_shared<Rules>());
  });
  const auto alloc = [](uint64_t padding, uint64_t max_bytes, uint64_t bytes) {
    wanted.padding = padding;
    wanted.max_bytes = max_bytes;
    auto device = *Device::open("null", {}, {"rules:", {}});
    auto buffer = device->alloc(bytes, CALD_DOMAIN_HOST, 64);
    return buffer.ok() ? Status::OK : buffer.error().code;
  };
  CHECK(alloc(4096, 5000, 4096) == Status::OK && alloc(4096, 5000, 4097) == Status::OUT_OF_RANGE);
  CHECK(alloc(4096, 100, 50) == Status::OUT_OF_RANGE);  // of less than one padding
}

TEST(a_buffer_of_several_sets_is_as_busy_as_the_busiest) {
  auto buffer = *open("scripted")->alloc(64, CALD_DOMAIN_HOST, 64);
  const auto idle = std::make_shared<BindingUse>(0), runs = std::make_shared<BindingUse>(7),
             after = std::make_shared<BindingUse>(0);
  buffer->note_use(idle);
  CHECK(buffer->loan_state() == LoanState::LEASED);
  buffer->note_use(runs);
  buffer->note_use(after);
  CHECK(buffer->loan_state() == LoanState::IN_FLIGHT);
  *runs = 0;
  CHECK(buffer->loan_state() == LoanState::LEASED);
}

TEST(a_transfer_that_stops_half_way_is_a_fault_with_both_numbers) {
  auto device = open("short_transfer");
  short_transfer& driver = transfers(*device);
  auto buffer = *device->alloc(64, CALD_DOMAIN_HOST, 64);
  char data[64] = "written whole";
  CHECK(buffer->write(0, data, 64).ok() && driver.transfers == 1);
  driver.most = 40;
  CHECK(buffer->write(24, data, 40).ok());  // just as many
  auto wrote = buffer->write(0, data, 64);
  CHECK(wrote.error().code == Status::TRANSFER_FAULT);
  CHECK(says(wrote.error(), {"40", "64", "buffer's content is unknown"}));
  auto read = buffer->read(8, data, 56);
  CHECK(read.error().code == Status::TRANSFER_FAULT && says(read.error(), {"40 of 56", "at 8"}));
  driver.most = 0;
  CHECK(says(buffer->write(0, data, 1).error(), {"moved 0 of 1"}));
  driver.most = UINT64_MAX;
  driver.too_many = 1;
  CHECK(buffer->write(0, data, 10).error().code == Status::TRANSFER_FAULT);
  driver.too_many = 0;
  CHECK(buffer->write(0, data, 64).ok() && buffer->read(0, data, 64).ok());
  CHECK(driver.old_copies == 0);
}

TEST(an_error_of_the_driver_stays_what_it_is) {
  auto device = open("scripted");
  scripted::Script& script = *scripted_access((*device->info()).driver_path);
  auto buffer = *device->alloc(64, CALD_DOMAIN_HOST, 64);
  char data[64] = {};
  script.set([](scripted::Script& now) { now.answers["buffer_d2h"] = CALD_DEVICE_LOST; });
  CHECK(buffer->read(0, data, 64).error().code == Status::DEVICE_LOST);
  script.reset();
}

TEST(copies_are_counted_and_views_are_not) {
  auto device = open("null");
  auto buffer = *device->alloc(1000, CALD_DOMAIN_HOST, 64);
  std::vector<char> data(1000);
  const uint64_t before = copied_bytes();
  CHECK(buffer->write(0, data.data(), 1000).ok() && buffer->read(500, data.data(), 100).ok());
  CHECK(copied_bytes() - before == 1100);
  {
    const Export view(nullptr, buffer);
  }
  CHECK(copied_bytes() - before == 1100);
}

TEST(exports_are_counted_by_device_model_and_purpose) {
  auto device = open("null");
  auto one = *device->alloc(8, CALD_DOMAIN_HOST, 8);
  auto two = *device->alloc(8, CALD_DOMAIN_HOST, 8, {"logits", 77});
  CHECK(device->exports().views() == 0);
  {
    const Export a(nullptr, one), b(nullptr, two), c(nullptr, two);
    CHECK(one->exports() == 1 && two->exports() == 2);
    CHECK(device->exports().views() == 3 && device->exports(77).views() == 2);
    CHECK(device->exports().text() == "3 views (1 of buffer, 2 of logits)");
    CHECK(device->exports(78).views() == 0);
  }
  CHECK(one->exports() == 0 && device->exports().views() == 0);
  const auto kept = std::make_unique<Export>(nullptr, one);
  one.reset();
  CHECK(device->exports().text() == "1 view (1 of buffer)");  // it owns the memory
}

TEST(a_pool_lends_each_buffer_once_and_again) {
  auto device = open("surveyed");
  auto pool = *device->make_pool(100, 3, CALD_DOMAIN_HOST, 1);
  CHECK(pool->plan().allocated_bytes == 512 && pool->plan().align == 4096);
  CHECK(same(pool->stats(), stats(3, 0, 0, 0)));
  std::vector<std::shared_ptr<Buffer>> held;
  for (int i = 0; i < 3; ++i) held.push_back(*pool->acquire(0));
  CHECK(held[0] != held[1] && held[1] != held[2] && held[0] != held[2]);
  auto none = pool->acquire(0);
  CHECK(none.error().code == Status::BUFFER_POOL_EXHAUSTED);
  CHECK(says(none.error(), {"3 buffers of 100 bytes", "3 leased, 0 in flight, 0 quarantined"}));
  const Buffer* first = held[0].get();
  auto view = std::make_unique<Export>(nullptr, held[0]);
  held[0].reset();
  CHECK(!pool->acquire(0).ok());  // the view keeps it
  CHECK(pool->exports().text() == "1 view (1 of pool buffer)");
  view.reset();
  auto again = *pool->acquire(0);
  CHECK(again.get() == first && same(pool->stats(), stats(0, 3, 0, 0)));
  pool->close();
  CHECK(pool->acquire(0).error().code == Status::INVALID_STATE);
  const char byte = 1;
  CHECK(again->write(0, &byte, 1).ok());  // a loan outlives its pool
  pool.reset();
  CHECK(again->write(0, &byte, 1).ok());
  CHECK(!device->make_pool(100, 0, CALD_DOMAIN_HOST, 1).ok());
  CHECK(!device->make_pool(0, 1, CALD_DOMAIN_HOST, 1).ok());
  CHECK(!device->make_pool(1 << 21, 1, CALD_DOMAIN_HOST, 1).ok());
}

TEST(a_pool_that_cannot_allocate_keeps_its_size) {
  auto device = open("scripted");
  scripted::Script& script = *scripted_access((*device->info()).driver_path);
  auto pool = *device->make_pool(64, 2, CALD_DOMAIN_HOST, 64);
  script.set(
      [](scripted::Script& now) { now.answers["buffer_alloc"] = CALD_OUT_OF_DEVICE_MEMORY; });
  for (int i = 0; i < 5; ++i) CHECK(pool->acquire(0).error().code == Status::OUT_OF_DEVICE_MEMORY);
  script.reset();
  auto one = *pool->acquire(0), two = *pool->acquire(0);
  CHECK(!pool->acquire(0).ok() && same(pool->stats(), stats(0, 2, 0, 0)));
}

// A buffer of a pool, bound to a job that is lost and answered late.
TEST(a_lost_job_quarantines_its_buffer_until_the_driver_answers) {
  auto device = open("scripted");
  scripted::Script& script = *scripted_access((*device->info()).driver_path);
  script.reset();
  auto model = *Model::load(device, PackageForTest::make("scripted", "test-class"), {});
  auto session = *device->session();
  std::shared_ptr<BindingSet> set = *model->make_bindings(1);
  auto pool = *device->make_pool(set->buffer(CALD_ROLE_LOGITS)->bytes(), 2, CALD_DOMAIN_HOST, 128);
  auto lease = *pool->acquire(0);
  CHECK(set->rebind(CALD_ROLE_LOGITS, lease).ok());
  CHECK(set->buffer(CALD_ROLE_LOGITS) == lease.get());
  CHECK(same(pool->stats(), stats(1, 1, 0, 0)));

  script.ends = scripted::Ends::HELD;
  auto job = *Job::submit(session, model, set, in(200));
  CHECK(same(pool->stats(), stats(1, 0, 1, 0)));
  CHECK(set->rebind(CALD_ROLE_LOGITS, lease).error().code == Status::INVALID_STATE);
  CHECK(!job->wait(in(20'000)).ok() && job->state() == JobState::LOST);
  CHECK(same(pool->stats(), stats(1, 0, 0, 1)));
  const uint64_t job_seq = job->job_seq();
  lease.reset();
  set.reset();
  job.reset();  // whoever held it is gone; the driver may still write
  auto other = *pool->acquire(0);
  auto none = pool->acquire(0);
  CHECK(none.error().code == Status::BUFFER_POOL_EXHAUSTED);
  CHECK(says(none.error(), {"1 leased, 0 in flight, 1 quarantined"}));
  other.reset();
  CHECK(script.finish(job_seq));
  CHECK(eventually([&] { return same(pool->stats(), stats(2, 0, 0, 0)); }));
  auto one = *pool->acquire(0), two = *pool->acquire(0);
  CHECK(one != two);
  script.reset();
}

TEST(a_buffer_that_does_not_suit_is_not_bound) {
  auto device = open("scripted"), foreign = open("scripted:1");
  auto model = *Model::load(device, PackageForTest::make("scripted", "test-class"), {});
  std::shared_ptr<BindingSet> set = *model->make_bindings(1);
  const uint64_t bytes = set->buffer(CALD_ROLE_LOGITS)->bytes();
  const auto bind = [&](Device& on, uint64_t size, uint64_t align, int32_t role,
                        uint32_t domain = CALD_DOMAIN_HOST) {
    return set->rebind(role, *on.alloc(size, domain, align));
  };
  for (const uint32_t domain : {CALD_DOMAIN_HOST_PINNED, CALD_DOMAIN_DEVICE, CALD_DOMAIN_SHARED}) {
    const auto bound = bind(*device, bytes, 128, CALD_ROLE_LOGITS, domain);
    CHECK(bound.error().code == Status::INVALID_ARGUMENT);
    CHECK(says(bound.error(), {domains_text(domain).c_str(), "in domain host are due"}));
  }
  CHECK(bind(*foreign, bytes, 128, CALD_ROLE_LOGITS).error().code == Status::INVALID_HANDLE);
  CHECK(bind(*device, bytes - 1, 128, CALD_ROLE_LOGITS).error().code == Status::INVALID_ARGUMENT);
  const auto askew = bind(*device, bytes, 64, CALD_ROLE_LOGITS);
  CHECK(says(askew.error(), {"aligned to 64 in domain", "aligned to 128 in"}));
  CHECK(bind(*device, bytes, 64, CALD_ROLE_N_VALID).error().code == Status::INVALID_ARGUMENT);
  CHECK(bind(*device, bytes, 128, CALD_ROLE_LOGITS).ok());
}
