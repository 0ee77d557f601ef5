// SPDX-License-Identifier: Apache-2.0
// The validate layer names each broken rule, of the caller and of the driver, and nothing else.
#include "layers/validate.h"

#include <fstream>
#include <functional>

#include "base/log.h"
#include "layers/visit.h"
#include "tests/table_client.h"

using namespace calrt;
using namespace calrt::layers;

namespace {

using Table = cald_driver_table;

std::mutex lines_mutex;
std::vector<std::string> lines;  // of component validate

// While it lives, what the layer logs is in `lines`.
struct Listening {
  Listening() {
    lines.clear();
    set_log_sink([](const LogRecord& record) {
      const std::scoped_lock lock(lines_mutex);
      if (std::string(record.component) == "validate") lines.emplace_back(record.text);
    });
  }
  ~Listening() { set_log_sink(nullptr); }
};

bool logged(const std::string& words) {
  const std::scoped_lock lock(lines_mutex);
  for (const std::string& line : lines)
    if (line.find(words) != std::string::npos) return true;
  return false;
}

// A driver's misbehaviour of the test's own, below the validate layer.
std::function<bool(Call&)> lie;
struct Liar : Layer {
  const char* name() const override { return "liar"; }
  bool replace(Call& call) override { return lie != nullptr && lie(call); }
};

struct World {
  Listening listening;
  TableClient client;
  std::shared_ptr<Layer> layer;

  explicit World(const std::string& below = "", const std::string& driver = "null")
      : client(driver, "validate;" + (below.empty() ? "liar" : below)) {
    layer = client.library->layers().front();
  }
  ~World() { lie = nullptr; }

  const Table& table() { return client.table(); }
  cald_session* session() { return client.session.get().pointer; }
  // "stale_handle 1 ..." of what was counted; forgets nothing.
  std::string broken() {
    std::string text;
    for (const auto& [name, count] : layer->counters())
      if (count != 0) text += name + " " + std::to_string(count) + " ";
    return text;
  }
};

const bool registered = [] {
  register_layer("liar", [](const std::string&) -> Result<std::shared_ptr<Layer>> {
    return std::shared_ptr<Layer>(std::make_shared<Liar>());
  });
  return true;
}();

template <class T>
T* address(uintptr_t value) {
  return reinterpret_cast<T*>(value);
}

}  // namespace

TEST(a_clean_life_breaks_no_rule) {
  for (const char* driver : {"null", "scripted"}) {
    World world("", driver);
    cald_device_info info{};
    info.struct_size = sizeof info;
    CHECK(world.table().device_info(world.client.on(), &info, nullptr) == CALD_OK);
    for (uint64_t seq = 1; seq <= 50; ++seq) {
      JobHandle job = world.client.submit(seq);
      CHECK(world.client.wait(job, 1000) == CALD_OK);
      CHECK(world.client.query(job) == CALD_JOB_DONE);
    }
    CHECK(world.client.told().size() == 50);
    world.client.close();
    CHECK(world.broken().empty() && lines.empty());
    if (!lines.empty()) std::fprintf(stderr, "%s\n", lines.front().c_str());
  }
}

TEST(handles_that_are_none_are_refused_before_the_driver_sees_them) {
  World world;
  int below = 0;
  lie = [&](Call&) { return ++below, false; };
  void* out = nullptr;
  cald_error error{};
  error.struct_size = sizeof error;
  const auto map = [&](cald_buffer* buffer) {
    return world.table().buffer_map(buffer, &out, &error);
  };
  CHECK(map(address<cald_buffer>(0x1234)) == CALD_INVALID_HANDLE);
  CHECK(error.code == CALD_INVALID_HANDLE && std::string(error.where) == "buffer_map");
  CHECK(std::string(error.message).find("gave no such buffer") != std::string::npos);
  CHECK(map(reinterpret_cast<cald_buffer*>(world.session())) == CALD_INVALID_HANDLE);
  CHECK(std::string(error.message).find("no buffer but a session") != std::string::npos);
  CHECK(map(nullptr) == CALD_INVALID_ARGUMENT);
  CHECK(world.table().buffer_map(world.client.tokens.get().pointer, nullptr, nullptr) ==
        CALD_INVALID_ARGUMENT);
  CHECK(below == 0);
  cald_buffer* gone = world.client.buffer(8).release().pointer;
  world.table().buffer_free(gone);
  below = 0;
  CHECK(map(gone) == CALD_INVALID_HANDLE);
  world.table().buffer_free(gone);
  world.table().buffer_free(address<cald_buffer>(0x1234));
  CHECK(below == 0);
  world.table().buffer_free(nullptr);  // NULL is no mistake
  CHECK(below == 1);
  CHECK(world.broken() ==
        "null_argument 2 unknown_handle 2 stale_handle 1 wrong_kind 1 double_free 1 ");
  CHECK(logged("stale_handle: buffer_map (call ") && logged("double_free: buffer_free (call "));
}

TEST(handles_inside_a_job_are_checked) {
  World world;
  cald_job* job = nullptr;
  cald_job_desc desc = world.client.desc(1);
  desc.model = address<cald_model>(0x10);
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_INVALID_HANDLE);
  desc = world.client.desc(1);
  desc.set = address<cald_binding_set>(0x20);
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_INVALID_HANDLE);
  desc.struct_size = offsetof(cald_job_desc, set);  // a caller of ABI 0.1 has no such field
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_OK);
  world.table().job_destroy(job);
  cald_binding foreign{CALD_ROLE_TOKENS, 0, address<cald_buffer>(0x30), 0, 4};
  desc.bindings = &foreign;
  desc.n_bindings = 1;
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_INVALID_HANDLE);
  desc.bindings = nullptr;
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_INVALID_ARGUMENT);
  CHECK(world.broken() == "null_argument 1 unknown_handle 3 ");
}

TEST(structs_shorter_than_abi_0_1_are_refused) {
  World world;
  cald_device_info info{};
  CHECK(world.table().device_info(world.client.on(), &info, nullptr) == CALD_INVALID_ARGUMENT);
  cald_job_desc desc = world.client.desc(1);
  desc.struct_size = offsetof(cald_job_desc, set) - 1;
  cald_job* job = nullptr;
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_INVALID_ARGUMENT);
  uint32_t count = 0;
  cald_error short_error{};
  short_error.struct_size = 16;
  CHECK(world.table().device_caps(world.client.on(), nullptr, &count, &short_error) ==
        CALD_INVALID_ARGUMENT);
  CHECK(short_error.code == 0);  // not written to: it is not that long
  CHECK(world.broken() == "struct_size 3 ");
  CHECK(logged("cald_device_info.struct_size is 0"));
}

TEST(the_shortest_sizes_are_those_of_abi_0_1) {
  // Of each struct of 0.1 that is an argument: one byte less than the lock file's size is refused.
  std::ifstream lock(CALRT_ABI_LOCK_0_1);
  CHECK(lock.good());
  std::string type;
  uint32_t size = 0, seen = 0;
  std::map<std::string, uint32_t> sizes;
  while (lock >> type >> size) sizes.emplace(type, size);
  World world;
  const auto least = [&](const char* name, auto blank, auto&& ask) {
    blank.struct_size = sizes.at(name) - 1;
    CHECK(ask(blank) == CALD_INVALID_ARGUMENT);
    blank.struct_size = sizes.at(name);
    CHECK(ask(blank) != CALD_INVALID_ARGUMENT);
    ++seen;
  };
  cald_device* device = world.client.on();
  least("cald_device_info", cald_device_info{},
        [&](auto& out) { return world.table().device_info(device, &out, nullptr); });
  least("cald_health", cald_health{},
        [&](auto& out) { return world.table().device_health(device, &out, nullptr); });
  least("cald_model_info", cald_model_info{}, [&](auto& out) {
    return world.table().model_info(world.client.model.get().pointer, &out, nullptr);
  });
  least("cald_error", cald_error{}, [&](auto& error) {
    uint32_t count = 0;
    return world.table().device_count(world.client.library->handle(), &count, &error);
  });
  JobHandle job = world.client.submit(1);
  least("cald_timing", cald_timing{},
        [&](auto& out) { return world.table().job_timing(job.get().pointer, &out, nullptr); });
  CHECK(seen == 5);
}

TEST(children_and_leaks_are_named) {
  World world;
  cald_buffer* lost = world.client.buffer(4096).release().pointer;
  (void)lost;
  world.client.session.reset();
  world.client.model.reset();
  world.client.tokens.reset();
  world.client.logits.reset();
  lie = [](Call& call) { return call.entry == Entry::device_close; };  // null would free it
  world.client.device.reset();
  lie = nullptr;
  CHECK(world.table().buffer_map(lost, nullptr, nullptr) != CALD_OK);
  world.client.library.reset();
  CHECK(world.broken().find("children_alive 1 leaked 1 ") != std::string::npos);
  CHECK(logged("children_alive: device_close") && logged("1 live, one is buffer"));
  CHECK(logged("leaked: driver_close") && logged("(4096 bytes, made by call "));
}

TEST(what_a_job_or_a_set_holds_is_not_given_back) {
  World world("fault:completion hold nth=1");
  JobHandle held = world.client.submit(1);
  cald_buffer* tokens = world.client.tokens.release().pointer;
  cald_model* model = world.client.model.release().pointer;
  world.table().buffer_free(tokens);
  world.table().model_unload(model);
  cald_job* job = held.release().pointer;
  world.table().job_destroy(job);
  CHECK(world.broken() == "still_held 2 job_not_ended 1 ");
  CHECK(world.table().job_cancel(job, nullptr) == CALD_OK);
  CHECK(world.table().job_wait(job, monotonic_ns() + 20'000'000'000, nullptr) == CALD_OK);
  const cald_binding binding{CALD_ROLE_TOKENS, 0, tokens, 0, 4};
  cald_binding_set* set = nullptr;
  CHECK(world.table().binding_set_make(model, 1, &binding, 1, &set, nullptr) == CALD_OK);
  world.table().buffer_free(tokens);
  CHECK(world.broken() == "still_held 3 job_not_ended 1 ");
  world.table().binding_set_free(set);
  world.table().job_destroy(job);
  world.table().buffer_free(tokens);
  world.table().model_unload(model);
  world.client.close();
  CHECK(world.broken() == "still_held 3 job_not_ended 1 ");
}

TEST(what_a_lost_device_holds_is_let_go) {
  World world("fault:completion drop / job_wait status=DEVICE_LOST");
  JobHandle job = world.client.submit(1);
  CHECK(world.client.wait(job, 1) == CALD_DEVICE_LOST);
  job.reset();
  world.client.tokens.reset();
  world.client.close();
  CHECK(world.broken().empty());
}

TEST(handles_that_a_driver_gives_wrongly) {
  World world;
  cald_buffer* buffer = nullptr;
  lie = [&](Call& call) {
    if (call.entry != Entry::buffer_alloc) return false;
    *std::get<4>(call.of<&Table::buffer_alloc>()) = buffer;
    return true;
  };
  cald_buffer* out = nullptr;
  CHECK(world.table().buffer_alloc(world.client.on(), CALD_DOMAIN_HOST, 8, 8, &out, nullptr) ==
        CALD_OK);
  buffer = world.client.tokens.get().pointer;
  CHECK(world.table().buffer_alloc(world.client.on(), CALD_DOMAIN_HOST, 8, 8, &out, nullptr) ==
        CALD_OK);
  CHECK(world.broken() == "ok_without_handle 1 handle_lives 1 ");
  lie = [](Call& call) {
    call.status = call.entry == Entry::device_count ? 30 : -1;
    return true;
  };
  uint32_t count = 0;
  CHECK(world.table().device_count(world.client.library->handle(), &count, nullptr) == 30);
  CHECK(world.table().device_caps(world.client.on(), nullptr, &count, nullptr) == -1);
  CHECK(world.broken() == "ok_without_handle 1 handle_lives 1 status_range 2 ");
}

TEST(completions_that_no_driver_may_tell) {
  World world(
      "fault:completion twice nth=1 / completion seq=3 nth=2 / completion state=cancelled nth=3 / "
      "completion state=failed nth=4 / completion status=-7 nth=5");
  for (uint64_t seq = 1; seq <= 5; ++seq) world.client.submit(seq);
  CHECK(world.client.order() == "1 5 3 4 5 ");  // the second one was not passed on
  CHECK(world.broken() == "status_range 1 completion_state 2 completion_seq 1 completed_twice 1 ");
}

namespace {

// What the driver was given, to be told at will.
struct Kept {
  void (*on_complete)(void*, const cald_completion*) = nullptr;
  void* user = nullptr;
  uint64_t job_seq = 0;
  void tell(uint32_t size = sizeof(cald_completion), int32_t state = CALD_JOB_DONE) const {
    cald_completion end{};
    end.struct_size = size;
    end.state = state;
    end.job_seq = job_seq;
    on_complete(user, &end);
  }
};

// Keeps the driver's jobs from telling anything by themselves; `refuse` answers that.
void keep(std::vector<Kept>& kept, cald_status refuse = CALD_OK) {
  lie = [&kept, refuse](Call& call) {
    if (call.entry != Entry::submit) return false;
    auto& [session, desc, out, error] = call.of<&Table::submit>();
    kept.push_back({desc->on_complete, desc->user, desc->job_seq});
    static cald_job_desc silent;
    silent = *desc;
    silent.on_complete = nullptr;
    desc = &silent;
    call.forward();
    if (refuse != CALD_OK) {
      call.driver.job_destroy(*out);
      *out = nullptr;
      call.status = refuse;
    }
    return true;
  };
}

}  // namespace

TEST(completions_at_the_wrong_time) {
  World world;
  std::vector<Kept> kept;
  keep(kept);
  JobHandle untold = world.client.submit(1);
  CHECK(world.client.wait(untold, 100) == CALD_OK);
  CHECK(world.broken() == "waited_untold 1 ");
  untold.reset();
  kept[0].tell();
  CHECK(world.broken() == "completed_late 1 waited_untold 1 ");
  keep(kept, CALD_SUBMIT_FAILED);
  CHECK(!world.client.try_submit(2).ok());
  kept[1].tell();
  CHECK(world.broken() == "completed_late 1 completed_refused 1 waited_untold 1 ");
  CHECK(world.client.told().empty());
  keep(kept);
  JobHandle brief = world.client.submit(3);
  kept[2].tell(12);
  CHECK(world.broken().find("completion_size 1 ") != std::string::npos);
  JobHandle running = world.client.submit(4);
  kept[3].tell(sizeof(cald_completion), CALD_JOB_RUNNING);
  CHECK(world.broken().find("completion_state 1 ") != std::string::npos);
  CHECK(world.client.told().size() == 2);
}

TEST(states_that_go_back) {
  World world;
  int32_t now = CALD_JOB_RUNNING;
  JobHandle job = world.client.submit(1);
  lie = [&](Call& call) {
    if (call.entry != Entry::job_query) return false;
    *std::get<1>(call.of<&Table::job_query>()) = now;
    return true;
  };
  CHECK(world.client.query(job) == CALD_JOB_RUNNING);
  now = CALD_JOB_QUEUED;
  world.client.query(job);
  CHECK(world.broken() == "state_back 1 ");
  now = 9;
  world.client.query(job);
  CHECK(world.broken() == "state_back 2 ");
  now = CALD_JOB_FAILED;  // it was told as DONE
  world.client.query(job);
  CHECK(world.broken() == "state_back 3 ");
  now = CALD_JOB_RUNNING;
  world.client.query(job);
  CHECK(world.broken() == "state_back 4 ");
  lie = nullptr;
}

TEST(queues_that_are_not_as_stated) {
  World world;
  cald_device_info info{};
  info.struct_size = sizeof info;
  CHECK(world.table().device_info(world.client.on(), &info, nullptr) == CALD_OK);
  lie = [](Call& call) {
    call.status = CALD_QUEUE_FULL;
    return call.entry == Entry::submit;
  };
  CHECK(!world.client.try_submit(1).ok());
  CHECK(world.broken() == "queue_full_early 1 ");
  std::vector<Kept> kept;
  keep(kept);
  std::vector<JobHandle> jobs;
  const uint32_t room = info.depth + info.queue;
  for (uint64_t seq = 2; jobs.size() < room + info.depth; ++seq)
    jobs.push_back(world.client.submit(seq));
  CHECK(world.broken() == "queue_full_early 1 ");
  jobs.push_back(world.client.submit(1000));
  CHECK(world.broken() == "queue_overrun 1 queue_full_early 1 ");
  lie = [](Call& call) {
    call.status = CALD_QUEUE_FULL;
    return call.entry == Entry::submit;
  };
  CHECK(!world.client.try_submit(1001).ok());  // now it is full
  CHECK(world.broken() == "queue_overrun 1 queue_full_early 1 ");
  lie = nullptr;
  for (const Kept& one : kept) one.tell();
}

TEST(on_complete_calls_no_entry) {
  World world;
  static World* at = nullptr;
  at = &world;
  cald_job_desc desc = world.client.desc(1);
  desc.on_complete = [](void*, const cald_completion*) {
    uint32_t count = 0;
    CHECK(at->table().device_count(at->client.library->handle(), &count, nullptr) == CALD_OK);
  };
  cald_job* job = nullptr;
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_OK);
  world.table().job_destroy(job);
  CHECK(world.broken() == "entry_in_completion 1 ");
}

TEST(a_job_without_on_complete_is_waited_for) {
  World world;
  cald_job_desc desc = world.client.desc(1);
  desc.on_complete = nullptr;
  cald_job* job = nullptr;
  CHECK(world.table().submit(world.session(), &desc, &job, nullptr) == CALD_OK);
  CHECK(world.table().job_wait(job, CALD_NO_DEADLINE, nullptr) == CALD_OK);
  world.table().job_destroy(job);
  world.client.close();
  CHECK(world.broken().empty());
}

TEST(many_threads_break_no_rule) {
  World world("fault:completion delay_ms=1 every=3 / completion thread every=2");
  std::atomic<uint64_t> sequence{0};
  std::mutex one_at_a_time;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        JobHandle job = [&] {
          const std::scoped_lock lock(one_at_a_time);
          return world.client.submit(++sequence);
        }();
        world.client.query(job);
        CHECK(world.client.wait(job, 20'000) == CALD_OK);
        CHECK(world.client.query(job) == CALD_JOB_DONE);
      }
    });
  for (std::thread& thread : threads) thread.join();
  world.client.close();
  CHECK(world.client.told().size() == 400 && world.broken().empty());
}

TEST(it_takes_no_configuration) {
  CHECK(make_validate_layer("").ok());
  CHECK(!make_layers("validate:x").ok());
  CHECK(make_layers("validate")->front()->counters().size() == static_cast<size_t>(kRules));
}
