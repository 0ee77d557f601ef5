// SPDX-License-Identifier: Apache-2.0
// What the record layer writes the replay layer gives again: answers, ends, outputs, text.
#include <unistd.h>

#include <fstream>
#include <map>

#include "layers/record_json.h"
#include "layers/record_layer.h"
#include "layers/replay_layer.h"
#include "tests/table_client.h"

using namespace calrt;
using namespace calrt::layers;

namespace {

struct RecordFile {  // goes with the test
  std::string path;
  RecordFile() {
    const char* folder = std::getenv("TMPDIR");
    path = std::string(folder != nullptr ? folder : "/tmp") + "/calrt_record_test_" +
           std::to_string(getpid()) + ".jsonl";
  }
  ~RecordFile() { unlink(path.c_str()); }
  std::vector<std::string> lines() const {
    std::ifstream file(path);
    std::vector<std::string> all;
    for (std::string line; std::getline(file, line);) all.push_back(line);
    return all;
  }
};

using Counters = std::map<std::string, uint64_t>;

Counters counters_of(const TableClient& client) {
  Counters all;
  for (const auto& [name, value] : client.library->layers().front()->counters()) all[name] = value;
  return all;
}

std::string told_text(const std::vector<TableClient::Told>& told) {
  std::string text;
  for (const auto& [end, thread] : told)
    text += std::to_string(end.job_seq) + ":" + std::to_string(end.state) + "/" +
            std::to_string(end.status) + "/" + std::to_string(end.native_code) + "/" +
            std::to_string(end.bytes_in) + "/" + std::to_string(end.bytes_out) + "/" +
            std::to_string(end.flags) + " ";
  return text;
}

// Jobs with few different inputs and all that a caller sees of them, as text.
std::string run(const std::string& layers, Counters* counters = nullptr, int jobs = 12,
                uint8_t first_token = 0) {
  TableClient client("null", layers);
  std::string seen;
  std::memset(client.memory(client.logits), 0, TableClient::kOut);
  for (int i = 1; i <= jobs; ++i) {
    client.memory(client.tokens)[0] = static_cast<uint8_t>(first_token + i % 3);
    cald_health health{};
    health.struct_size = sizeof health;
    seen += "health " + std::to_string(client.table().device_health(client.on(), &health, nullptr));
    auto made = client.try_submit(static_cast<uint64_t>(i));
    if (!made.ok()) {
      seen += " refused " + error_text(made.error()) + "\n";
      continue;
    }
    const JobHandle job({*made, &client.table()});
    cald_error why{};
    why.struct_size = sizeof why;
    const cald_status waited = client.wait(job, 1);
    const int32_t state = client.query(job, &why);
    seen += " wait " + std::to_string(waited) + " state " + std::to_string(state) + " why " +
            std::to_string(why.code) + " " + std::to_string(why.native_code) + " " + why.message;
    for (uint64_t b = 0; b < TableClient::kOut; ++b)
      seen += " " + std::to_string(client.memory(client.logits)[b]);
    seen += "\n";
  }
  if (counters != nullptr) *counters = counters_of(client);
  client.close();
  return seen + told_text(client.told());
}

constexpr const char* kFaults =
    ";fault:submit status=SUBMIT_FAILED native=9 message=\"no, \\\"not\\\" now\" nth=2 / "
    "completion flip nth=1 / completion status=CCU_FAULT native=13 message=\"unit 3\" nth=3 / "
    "completion nan nth=4 / completion drop nth=5 / completion twice nth=6 / "
    "completion short_out=2 nth=7 / completion status=-7 nth=8 / completion seq=5 nth=9 / "
    "device_health status=DEVICE_UNHEALTHY nth=4 / submit status=30 nth=11";

}  // namespace

TEST(a_record_with_faults_is_replayed_without_them) {
  const RecordFile file;
  Counters recorded, replayed;
  const std::string faulty = run("record:" + file.path + kFaults, &recorded);
  const std::string healthy = run("");
  CHECK(faulty != healthy && faulty.find("unit 3") != std::string::npos);
  CHECK(recorded["jobs"] == 12 && recorded["left_out"] == 0);
  const std::string again = run("replay:" + file.path, &replayed);
  CHECK(again == faulty);
  if (again != faulty) std::fprintf(stderr, "%s\n---\n%s\n", faulty.c_str(), again.c_str());
  CHECK(replayed["jobs"] == 12 && replayed["calls"] == 1 && replayed["left"] == 0);
  CHECK(replayed["diverged"] == 0);
  // Compared only, the healthy device differs wherever a fault was.
  CHECK(run("replay:" + file.path + " check", &replayed) == healthy);
  CHECK(replayed["diverged"] >= 8 && replayed["jobs"] == 12);
}

TEST(a_healthy_record_has_nothing_to_compare_badly) {
  const RecordFile file;
  Counters counters;
  const std::string first = run("record:" + file.path);
  CHECK(run("replay:" + file.path + " check", &counters) == first && counters["diverged"] == 0);
  CHECK(run("replay:" + file.path, &counters) == first && counters["diverged"] == 0);
  // Below the layer the device is damaged: the record wins, and without data says so.
  const std::string fault = ";fault:completion flip nth=4 / device_health status=28 nth=2";
  CHECK(run("replay:" + file.path + fault, &counters).find("85") == std::string::npos);
  CHECK(counters["diverged"] == 1);  // device_health
  run("record:" + file.path + " data=0");
  run("replay:" + file.path + fault, &counters);
  CHECK(counters["diverged"] == 2 + 8);  // flipped, as are all later outputs: null writes none
}

TEST(jobs_that_were_not_recorded_are_the_drivers) {
  const RecordFile file;
  Counters counters;
  run("record:" + file.path + ";fault:completion status=24 every=2", nullptr, 3);
  const std::string more = run("replay:" + file.path, &counters, 6);
  CHECK(counters["jobs"] == 3 && counters["diverged"] == 3);
  CHECK(more.find("2:4/24") != std::string::npos && more.find("4:3/0") != std::string::npos);
  CHECK(run("replay:" + file.path, &counters, 3, 100) == run("", nullptr, 3));
  CHECK(counters["diverged"] == 3 && counters["left"] == 3);
}

TEST(a_device_that_can_only_wait) {
  const RecordFile file;
  const auto waits = [&](const std::string& layers) {
    TableClient client("null", layers);
    cald_job_desc desc = client.desc(1);
    desc.on_complete = nullptr;
    std::string seen;
    for (int i = 0; i < 4; ++i) {
      std::memset(client.memory(client.logits), 0, TableClient::kOut);
      cald_job* job = nullptr;
      CHECK(client.table().submit(client.session.get().pointer, &desc, &job, nullptr) == CALD_OK);
      const JobHandle held({job, &client.table()});
      const cald_status waited = client.wait(held, 1);
      cald_error why{};
      why.struct_size = sizeof why;
      seen += std::to_string(waited) + " " + std::to_string(client.query(held, &why)) + " " +
              why.message + " " + std::to_string(client.memory(client.logits)[3]) + "\n";
    }
    return seen;
  };
  const std::string faulty =
      waits("record:" + file.path +
            ";fault:device_info completion=wait / completion flip nth=1 / "
            "completion status=CCU_FAULT message=\"unit 5\" nth=2 / completion drop nth=3");
  CHECK(faulty.find("unit 5") != std::string::npos);
  const std::string again = waits("replay:" + file.path);
  CHECK(again == faulty);
  if (again != faulty) std::fprintf(stderr, "%s---\n%s\n", faulty.c_str(), again.c_str());
}

TEST(each_line_is_json_and_says_what_was_called) {
  const RecordFile file;
  run("record:" + file.path, nullptr, 2);
  std::map<std::string, int> calls;
  uint64_t completions = 0;
  for (const std::string& text : file.lines()) {
    const auto line = JsonValue::parse(text);
    CHECK(line.has_value());
    if (!line) continue;
    if (!(*line)["entry"].is_null()) ++calls[(*line)["entry"].text()];
    if (!(*line)["state"].is_null()) {
      ++completions;
      const JsonValue& output = (*line)["outputs"].items().at(0);
      CHECK(output["role"].integer() == CALD_ROLE_LOGITS);
      CHECK(output["sha256"].text().size() == 64);
      CHECK(output["hex"].text().size() == 2 * TableClient::kOut);
    }
    if ((*line)["entry"].text() == "buffer_alloc") {
      CHECK((*line)["args"].items().at(0).text() == "device#2");
      CHECK((*line)["made"].text().starts_with("buffer#"));
    }
  }
  CHECK(completions == 2 && calls["submit"] == 2 && calls["driver_open"] == 1);
  CHECK(calls["driver_close"] == 1 && calls["buffer_alloc"] == 2 && calls["job_destroy"] == 2);
}

TEST(files_that_are_no_record_name_the_line) {
  const RecordFile file;
  const auto opened = [&](const std::string& text) {
    std::ofstream(file.path) << text;
    return make_layers("replay:" + file.path);
  };
  const std::string head = "{\"format\":\"calrt-record\",\"version\":1}\n";
  CHECK(opened(head).ok());
  CHECK(opened(head + "{\"call\":1,\"entry\":\"submit\",\"jo").ok());  // cut off: its process died
  const std::pair<std::string, const char*> rows[] = {
      {"", "is empty"},
      {"{}\n", "was not written by the record layer"},
      {"{\"format\":\"calrt-record\",\"version\":2}\n", "version 1"},
      {head + "[[[[\n{}\n", "line 2: no record"},
      {head + "{\"call\":1,\"entry\":\"sumbit\"}\n{}\n", "line 2: no record"},
      {head + std::string(5000, '[') + "\n{}\n", "line 2: no record"}};
  for (const auto& [text, words] : rows) {
    auto made = opened(text);
    CHECK(!made.ok() && made.error().code == Status::INVALID_ARGUMENT);
    CHECK(!made.ok() && made.error().message.find(words) != std::string::npos);
  }
  CHECK(!make_layers("replay:/nonexistent").ok() && !make_layers("replay").ok());
  CHECK(!make_layers("replay:" + file.path + " chekc").ok());
  CHECK(!make_layers("record:" + file.path + " data=-1").ok());
}

TEST(what_throws_is_thrown_again) {
  const RecordFile file;
  const auto thrown = [&](const std::string& layers) {
    auto library = *DriverLibrary::load("null", layers);
    uint32_t count = 0;
    int thrown = 0;
    for (int i = 0; i < 3; ++i) {
      try {
        CHECK(library->table().device_count(library->handle(), &count, nullptr) == CALD_OK);
      } catch (const std::exception&) {
        thrown |= 1 << i;
      }
    }
    return thrown;
  };
  CHECK(thrown("record:" + file.path + ";fault:device_count throw nth=2") == 2);
  CHECK(thrown("replay:" + file.path) == 2);
}
