// SPDX-License-Identifier: Apache-2.0
// The fault layer does what its rules say, to the call they say, and nothing else.
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cmath>
#include <cstring>
#include <set>

#include "calrt/device.h"
#include "calrt/model.h"
#include "layers/fault.h"
#include "layers/fault_rules.h"
#include "tests/scripted_access.h"
#include "tests/table_client.h"

using namespace calrt;
using namespace calrt::layers;
using Told = TableClient::Told;

namespace {

constexpr uint64_t kLong = 20'000;  // ms, a ceiling that only a hang reaches

std::string hits(const std::string& rule, int calls) {  // "..x." of submit
  auto rules = *FaultRules::parse("submit status=21 " + rule);
  std::string text;
  for (int i = 0; i < calls; ++i)
    text += rules->meet(static_cast<int>(Entry::submit)).status ? 'x' : '.';
  return text;
}

uint64_t counter(TableClient& client, const std::string& name) {
  for (const auto& [known, value] : client.library->layers().front()->counters())
    if (known == name) return value;
  return UINT64_MAX;
}

scripted::Script& script() { return *scripted_access((*DriverLibrary::load("scripted"))->path()); }

}  // namespace

TEST(rules_without_meaning_name_the_part) {
  const std::pair<const char*, const char*> rows[] = {
      {"submitt status=1", "'submitt' is no target"},
      {"submit", "nothing to do"},
      {"submit nth=1", "nothing to do"},
      {"submit statsu=1", "no word 'statsu'"},
      {"submit status=x", "status: 'x' is not a number or a status's name"},
      {"submit status=", "status: '' is not"},
      {"submit status=2147483648", "status: 2147483648 is outside"},
      {"submit status=3x", "'3x'"},
      {"submit status=21 nth=0", "nth: 0 is outside"},
      {"submit status=21 nth=-1", "nth: -1 is outside"},
      {"submit status=21 p=1.5", "p: 1.5 is outside 0 to 1"},
      {"submit status=21 p=nan", "p: nan is outside 0 to 1"},
      {"submit delay_ms=60001", "delay_ms: 60001 is outside"},
      {"submit drop", "'drop' has no meaning for submit"},
      {"completion throw", "'throw' has no meaning for completion"},
      {"completion drop=1", "drop: takes no value"},
      {"completion state=gone", "state: 'gone' is not done, failed, cancelled"},
      {"buffer_free status=3", "'status' has no meaning for buffer_free"},
      {"submit short=3", "'short' has no meaning for submit"},
      {"submit hide", "'hide' has no meaning for submit"},
      {"poll hide nth=2", "no condition"},
      {"device_info depth=2 every=2", "no condition"},
      {"device_info depth=0", "depth: 0 is outside"},
      {"submit status=21 / completion dorp", "rule 2 'completion dorp'"},
  };
  for (const auto& [rules, words] : rows) {
    auto made = make_fault_layer(rules);
    CHECK(!made.ok() && made.error().code == Status::INVALID_ARGUMENT);
    const bool named = !made.ok() && made.error().message.find(words) != std::string::npos;
    if (!named && !made.ok()) std::fprintf(stderr, "%s: %s\n", rules, made.error().message.c_str());
    CHECK(named);
  }
  CHECK(make_fault_layer("").ok() && make_fault_layer(" / ").ok());
  CHECK(!make_fault_layer(std::string(9000, ' ')).ok());
  std::string many;
  for (int i = 0; i < 65; ++i) many += "submit status=21/";
  CHECK(!make_fault_layer(many).ok());
}

TEST(conditions_count_calls_from_one) {
  CHECK(hits("", 4) == "xxxx");
  CHECK(hits("nth=3", 5) == "..x..");
  CHECK(hits("from=3", 5) == "..xxx");
  CHECK(hits("every=2", 6) == ".x.x.x");
  CHECK(hits("from=3 every=2", 7) == "...x.x.");
  CHECK(hits("times=2", 5) == "xx...");
  CHECK(hits("every=2 times=2", 8) == ".x.x....");
  CHECK(hits("p=0", 64).find('x') == std::string::npos);
  CHECK(hits("p=1", 8) == "xxxxxxxx");
}

TEST(chance_is_the_same_for_the_same_seed) {
  const std::string one = hits("p=0.25 seed=7", 4000);
  CHECK(one == hits("p=0.25 seed=7", 4000) && one != hits("p=0.25 seed=8", 4000));
  const auto count = std::count(one.begin(), one.end(), 'x');
  CHECK(count > 850 && count < 1150);  // 1000 +- 5.5 sigma
}

TEST(the_later_rule_wins_and_any_means_entries_with_a_status) {
  auto rules = *FaultRules::parse("any status=27 / submit status=16 native=-9 message=\"a b\"");
  const Effect submit = rules->meet(static_cast<int>(Entry::submit));
  CHECK(submit.status == 16 && submit.native == -9 && submit.message == "a b");
  CHECK(rules->meet(static_cast<int>(Entry::job_wait)).status == 27);
  CHECK(!rules->meet(static_cast<int>(Entry::buffer_free)).status);
  CHECK(!rules->meet(FaultRules::kCompletion).status);
}

TEST(a_status_is_answered_with_its_number_and_text) {
  TableClient client("null",
                     "fault:submit status=SUBMIT_FAILED native=77 message=\"no, not now\" "
                     "nth=2");
  client.submit(1);
  auto refused = client.try_submit(2);
  CHECK(!refused.ok() && refused.error().code == Status::SUBMIT_FAILED);
  CHECK(refused.error().native_code == 77 && refused.error().message == "no, not now");
  CHECK(client.order() == "1 " && counter(client, "1.submit") == 1);
  client.submit(3);
  CHECK(client.order() == "1 3 ");
}

TEST(after_gives_back_what_the_driver_made) {
  script().reset();
  for (const char* entry :
       {"driver_open", "device_open", "session_open", "buffer_alloc", "model_load", "submit"}) {
    const std::string rule = std::string("fault:") + entry;
    TableClient* client = nullptr;
    if (std::strcmp(entry, "submit") == 0) {
      client = new TableClient("scripted", rule + " status=21 after");
      auto refused = client->try_submit(1);
      CHECK(!refused.ok() && refused.error().code == Status::SUBMIT_FAILED);
      CHECK(client->order() == "1 ");  // a driver that does both
    } else if (std::strcmp(entry, "driver_open") == 0) {
      CHECK(!DriverLibrary::load("scripted", rule + " status=21 after").ok());
    } else {
      auto device = Device::open("scripted", {}, {rule + " status=21 after", {}});
      if (device.ok() && std::strcmp(entry, "session_open") == 0)
        CHECK(!(*device)->session().ok());
      else if (device.ok() && std::strcmp(entry, "buffer_alloc") == 0)
        CHECK(!(*device)->alloc(8, CALD_DOMAIN_HOST, 64).ok());
      else if (device.ok())
        CHECK(!Model::load(*device, PackageForTest::make("scripted", "test-class"), {}).ok());
      else
        CHECK(std::strcmp(entry, "device_open") == 0);
    }
    CHECK(script().called(entry) > 0);
    delete client;
    CHECK(script().living() == 0);
    script().reset();
  }
}

TEST(a_dropped_completion_is_never_told) {
  TableClient client("null", "fault:completion drop nth=2 / completion hold nth=3");
  JobHandle first = client.submit(1), second = client.submit(2), held = client.submit(3);
  CHECK(client.query(first) == CALD_JOB_DONE && client.query(second) == CALD_JOB_RUNNING);
  CHECK(client.wait(second, 1) == CALD_WAIT_TIMEOUT && client.wait(first, 1) == CALD_OK);
  CHECK(client.cancel(second) == CALD_OK);
  // Told after whatever the cancel before it would have told.
  CHECK(client.cancel(held) == CALD_OK && client.wait(held, kLong) == CALD_OK);
  CHECK(client.query(second) == CALD_JOB_RUNNING);
  CHECK(counter(client, "1.completion") == 1);
  first.reset(), second.reset(), held.reset();
  client.close();
  CHECK(client.order() == "1 3 ");
}

TEST(a_held_completion_waits_for_cancel) {
  TableClient client("null", "fault:completion hold nth=1 / completion hold cancel=normal nth=2");
  JobHandle cancelled = client.submit(1), normal = client.submit(2);
  CHECK(client.told().empty() && client.wait(cancelled, 1) == CALD_WAIT_TIMEOUT);
  CHECK(client.cancel(cancelled) == CALD_OK && client.wait(cancelled, kLong) == CALD_OK);
  CHECK(client.query(cancelled) == CALD_JOB_CANCELLED);
  CHECK(client.cancel(normal) == CALD_OK && client.wait(normal, kLong) == CALD_OK);
  CHECK(client.query(normal) == CALD_JOB_DONE);
  const std::vector<Told> told = client.told();
  CHECK(told.size() == 2 && told[0].completion.state == CALD_JOB_CANCELLED);
  CHECK(told[0].completion.status == CALD_CANCELLED && told[1].completion.state == CALD_JOB_DONE);
}

TEST(closing_the_session_tells_what_is_held) {
  TableClient client("null", "fault:completion hold nth=1 / completion delay_ms=60000 nth=2");
  {
    JobHandle held = client.submit(1), late = client.submit(2);
    CHECK(client.told().empty());
    client.session.reset();
    for (JobHandle* job : {&held, &late})  // too late for job_destroy: the memory alone goes
      driver_host().free(nullptr, job->release().pointer);
  }
  CHECK(client.order() == "1 2 ");
}

TEST(swapped_completions_come_out_of_order) {
  TableClient client("null", "fault:completion swap nth=1");
  JobHandle first = client.submit(1);
  CHECK(client.told().empty() && client.query(first) == CALD_JOB_RUNNING);
  JobHandle second = client.submit(2);
  CHECK(client.order() == "2 1 " && client.query(first) == CALD_JOB_DONE);
  TableClient always("null", "fault:completion swap");
  JobHandle a = always.submit(1), b = always.submit(2), c = always.submit(3), d = always.submit(4);
  CHECK(always.order() == "2 1 4 3 ");
}

TEST(late_completions_come_from_the_layers_thread) {
  TableClient client("null", "fault:completion delay_ms=5 nth=1 / completion thread nth=2");
  JobHandle late = client.submit(1), threaded = client.submit(2);
  CHECK(client.wait(late, kLong) == CALD_OK && client.wait(threaded, kLong) == CALD_OK);
  for (const Told& told : client.told()) CHECK(told.thread != std::this_thread::get_id());
  CHECK(client.told().size() == 2);
}

TEST(nothing_is_told_of_a_destroyed_job_or_a_closed_driver) {
  TableClient client("null",
                     "fault:completion delay_ms=500 nth=1 / completion delay_ms=60000 from=2");
  client.submit(1);  // destroyed at once
  JobHandle marker = client.submit(2);
  CHECK(client.cancel(marker) == CALD_OK && client.wait(marker, kLong) == CALD_OK);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  CHECK(client.order() == "2 ");
  marker.reset();
  client.submit(3);
  client.close();
  CHECK(client.order() == "2 ");
}

TEST(completions_told_twice_or_with_another_tag) {
  TableClient client("null", "fault:completion twice nth=1 / completion seq=5 nth=2");
  client.submit(1);
  client.submit(2);
  CHECK(client.order() == "1 1 7 ");
}

TEST(completions_with_another_end_are_described_by_job_query) {
  TableClient client("null",
                     "fault:completion status=CCU_FAULT native=13 message=\"unit 3\" nth=1 / "
                     "completion state=cancelled nth=2 / completion status=30 nth=3 / "
                     "completion status=-1 nth=4 / completion status=-2147483648 nth=5");
  JobHandle ccu = client.submit(1), cancelled = client.submit(2);
  cald_error error{};
  error.struct_size = sizeof error;
  CHECK(client.query(ccu, &error) == CALD_JOB_FAILED && error.code == CALD_CCU_FAULT);
  CHECK(error.native_code == 13 && std::string(error.message) == "unit 3");
  CHECK(client.query(cancelled) == CALD_JOB_CANCELLED);
  for (const auto& [seq, number] : {std::pair(3, 30), {4, -1}, {5, INT_MIN}}) {
    CHECK(client.query(client.submit(static_cast<uint64_t>(seq)), &error) == CALD_JOB_FAILED);
    CHECK(error.native_code == number && error.flags == CALD_ERROR_UNMAPPED);
  }
  const std::vector<Told> told = client.told();
  CHECK(told[0].completion.status == CALD_CCU_FAULT && told[0].completion.native_code == 13);
  CHECK(told[1].completion.state == CALD_JOB_CANCELLED && told[2].completion.status == 30);
  CHECK(told[3].completion.status == -1 && told[4].completion.status == INT_MIN);
}

TEST(short_and_damaged_outputs) {
  TableClient client(
      "null",
      "fault:completion short_in=3 nth=1 / completion short_out=2 nth=2 / "
      "completion nan nth=3 / completion flip nth=4 / completion short_out=99 nth=5");
  std::memset(client.memory(client.logits), 0, TableClient::kOut);
  for (uint64_t seq = 1; seq <= 2; ++seq) client.submit(seq);
  client.submit(3);
  float logits[PackageForTest::kVocab];
  std::memcpy(logits, client.memory(client.logits), sizeof logits);
  for (const float value : logits) CHECK(std::isnan(value));
  std::memset(client.memory(client.logits), 0, TableClient::kOut);
  client.submit(4);
  for (uint64_t i = 0; i < TableClient::kOut; ++i) CHECK(client.memory(client.logits)[i] == 0x55);
  client.submit(5);
  const std::vector<Told> told = client.told();
  CHECK(told[0].completion.bytes_in == TableClient::kIn - 3);
  CHECK(told[1].completion.bytes_out == TableClient::kOut - 2);
  CHECK(told[4].completion.bytes_out == 0);
}

TEST(early_completes_before_submit_returns) {
  script().reset();
  script().ends = scripted::Ends::THREAD;
  {
    TableClient client("scripted", "fault:completion early");
    for (uint64_t seq = 1; seq <= 50; ++seq) {
      JobHandle job = client.submit(seq);
      CHECK(client.told().size() == seq);
      CHECK(eventually([&] { return client.wait(job, 1) == CALD_OK; }));
    }
  }
  script().reset();
}

TEST(transfers_stop_short) {
  TableClient client("null",
                     "fault:buffer_transfer short=3 / buffer_h2d short=3 nth=1 / "
                     "buffer_d2h short=30");
  const uint8_t data[4] = {1, 2, 3, 4};
  cald_buffer* buffer = client.tokens.get().pointer;
  CHECK(client.table().buffer_h2d(buffer, 0, data, 4, nullptr) == CALD_OK);
  CHECK(client.memory(client.tokens)[0] == 1 && client.memory(client.tokens)[1] == 0);
  CHECK(client.table().buffer_h2d(buffer, 0, data, 4, nullptr) == CALD_OK);
  CHECK(client.memory(client.tokens)[3] == 4);
  uint8_t back[4] = {9, 9, 9, 9};
  CHECK(client.table().buffer_d2h(buffer, 0, back, 4, nullptr) == CALD_OK && back[0] == 9);
  cald_transfer transfer{};
  transfer.struct_size = sizeof transfer;
  transfer.direction = CALD_TO_HOST;
  transfer.buffer = buffer;
  transfer.host = back;
  transfer.bytes = 4;
  CHECK(client.table().buffer_transfer(&transfer, nullptr) == CALD_OK);
  CHECK(transfer.bytes == 4 && transfer.moved == 1 && back[0] == 1 && back[1] == 9);
}

TEST(a_device_with_another_shape) {
  auto device = *Device::open(
      "null", {}, {"fault:device_info exclusive=0 sessions=3 depth=2 queue=5 id=bus7", {}});
  const DeviceInfo info = *device->info();
  CHECK(info.sessions == 3 && info.depth == 2 && info.queue == 5 && info.id == "bus7");
  CHECK((*(*Device::open("null", {}))->info()).sessions == 1);
}

TEST(completion_by_wait_tells_nobody) {
  TableClient client("null",
                     "fault:device_info completion=wait / completion delay_ms=5 nth=2 / "
                     "completion status=24 nth=3 / completion drop nth=4");
  JobHandle first = client.submit(1), late = client.submit(2), bad = client.submit(3);
  JobHandle never = client.submit(4);
  CHECK(client.wait(first, kLong) == CALD_OK && client.query(first) == CALD_JOB_DONE);
  CHECK(client.wait(late, kLong) == CALD_OK && client.query(late) == CALD_JOB_DONE);
  CHECK(client.wait(bad, kLong) == CALD_OK && client.query(bad) == CALD_JOB_FAILED);
  CHECK(client.wait(never, 1) == CALD_WAIT_TIMEOUT);
  CHECK(client.told().empty());
}

TEST(completion_by_poll_tells_inside_poll) {
  TableClient client("null",
                     "fault:device_info completion=poll clock=virtual / "
                     "completion delay_ms=3 nth=2");
  const auto poll = [&](uint64_t now) {
    uint64_t next = 0;
    CHECK(client.table().poll(client.session.get().pointer, now, &next, nullptr) == CALD_OK);
    return next;
  };
  CHECK(poll(100) == CALD_NO_DEADLINE);
  JobHandle first = client.submit(1), late = client.submit(2);
  CHECK(client.told().empty() && client.wait(first, kLong) == CALD_WAIT_TIMEOUT);  // at once
  CHECK(poll(101) == 3'000'100 && client.order() == "1 ");
  CHECK(poll(3'000'099) == 3'000'100 && client.order() == "1 ");
  CHECK(poll(3'000'100) == CALD_NO_DEADLINE && client.order() == "1 2 ");
  CHECK(client.wait(late, 0) == CALD_OK);
  auto lacking = Device::open("older", {}, {"fault:device_info completion=poll", {}});
  CHECK(!lacking.ok() && lacking.error().code == Status::UNSUPPORTED);
}

TEST(counters_are_the_devices) {
  auto device =
      *Device::open("null", {}, {"fault:device_health status=28 nth=2 / any delay_ms=0", {}});
  CHECK(device->health().ok() && !device->health().ok());
  uint64_t found = 0;
  const auto counters = *device->counters();
  for (const auto& [name, value] : counters)
    if (name == "fault.1.device_health") found = value;
  CHECK(found == 1);
}

TEST(a_forks_child_leaves_the_layers_to_its_parent) {
  auto client = std::make_unique<TableClient>("null", "fault:completion delay_ms=60000 every=2");
  JobHandle done = client->submit(1), late = client->submit(2);  // the layer has a thread now
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a hang ends it, and is seen
    done = JobHandle(), late = JobHandle();
    client.reset();
    TableClient own("null", "fault:completion thread");
    JobHandle job = own.submit(1);
    _exit(own.wait(job, kLong) == CALD_OK ? 7 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  CHECK(client->cancel(late) == CALD_OK && client->wait(late, kLong) == CALD_OK);
}

TEST(many_threads_and_faults_at_once) {
  TableClient client("null",
                     "fault:completion delay_ms=1 every=3 / completion thread every=2 / "
                     "completion twice every=5 / submit status=21 every=7");
  std::atomic<uint64_t> sequence{0}, refused{0};
  std::mutex one_at_a_time;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        const cald_job_desc asked = client.desc(++sequence);
        cald_job* made = nullptr;
        {
          const std::scoped_lock lock(one_at_a_time);
          (void)client.table().submit(client.session.get().pointer, &asked, &made, nullptr);
        }
        if (made == nullptr) {
          ++refused;
          continue;
        }
        JobHandle job({made, &client.table()});
        if (i % 5 != 0) CHECK(client.wait(job, kLong) == CALD_OK);
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 800 / 7);
  client.close();
  std::set<uint64_t> distinct;
  for (const Told& told : client.told()) distinct.insert(told.completion.job_seq);
  CHECK(distinct.size() <= 800 - 800 / 7 && distinct.size() >= 500);
}
