// SPDX-License-Identifier: Apache-2.0
// The trace layer's file: whole JSON, slices that nest, every job once, the device's clock aligned.
#include "layers/trace_layer.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "layers/record_json.h"
#include "layers/trace_layer_clock.h"
#include "tests/drivers/skewed.h"
#include "tests/table_client.h"

using namespace calrt;
using namespace calrt::layers;

namespace {

std::string file_name() {
  const char* folder = std::getenv("TMPDIR");
  return std::string(folder != nullptr ? folder : "/tmp") + "/calrt_trace_test_" +
         std::to_string(getpid()) + ".json";
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Events of a whole file, or of one whose end is missing.
std::vector<JsonValue> events_of(std::string text) {
  auto parsed = JsonValue::parse(text);
  if (!parsed) parsed = JsonValue::parse(text + "\n]");
  CHECK(parsed.has_value());
  return parsed ? parsed->items() : std::vector<JsonValue>();
}

int64_t ns(const JsonValue& micros) {  // the digits are exact
  const std::string& text = micros.text();
  const size_t dot = text.find('.');
  return std::stoll(text.substr(0, dot)) * 1000 + std::stoll(text.substr(dot + 1));
}

struct Slice {
  int64_t from, to;
  std::string name;
  uint64_t job_seq;
};
using Slices = std::map<std::pair<uint64_t, uint64_t>, std::vector<Slice>>;  // by pid and tid

Slices slices_of(const std::vector<JsonValue>& events) {
  Slices slices;
  for (const JsonValue& event : events)
    if (event["ph"].text() == "X")
      slices[{event["pid"].count(), event["tid"].count()}].push_back(
          {ns(event["ts"]), ns(event["ts"]) + ns(event["dur"]), event["name"].text(),
           event["args"]["job_seq"].count()});
  for (auto& [track, list] : slices)
    std::sort(list.begin(), list.end(), [](const Slice& a, const Slice& b) {
      return a.from != b.from ? a.from < b.from : a.to > b.to;
    });
  return slices;
}

// On each track a slice lies inside the one that is open, or begins after it.
void check_nesting(const Slices& slices) {
  for (const auto& [track, list] : slices) {
    std::vector<Slice> open;
    for (const Slice& slice : list) {
      CHECK(slice.to >= slice.from);
      while (!open.empty() && open.back().to <= slice.from) open.pop_back();
      CHECK(open.empty() || slice.to <= open.back().to);
      open.push_back(slice);
    }
  }
}

// Every span ends as often as it begins, in time, and the inner ones inside.
std::map<uint64_t, uint64_t> check_spans(const std::vector<JsonValue>& events) {
  struct Span {
    std::vector<std::pair<std::string, int64_t>> open;
    int64_t last = 0;
    uint64_t job_seq = 0;
    int begun = 0;
  };
  std::map<uint64_t, Span> spans;
  for (const JsonValue& event : events) {
    const std::string& phase = event["ph"].text();
    if (phase != "b" && phase != "e") continue;
    Span& span = spans[event["id"].count()];
    const int64_t t = ns(event["ts"]);
    CHECK(t >= span.last);
    span.last = t;
    if (phase == "b") {
      if (span.open.empty()) ++span.begun, span.job_seq = event["args"]["job_seq"].count();
      span.open.emplace_back(event["name"].text(), t);
    } else {
      CHECK(!span.open.empty() && span.open.back().first == event["name"].text());
      if (!span.open.empty()) span.open.pop_back();
    }
  }
  std::map<uint64_t, uint64_t> jobs;  // job_seq: how many spans
  for (const auto& [id, span] : spans) {
    CHECK(span.open.empty() && span.begun == 1);
    ++jobs[span.job_seq];
  }
  return jobs;
}

struct Removed {  // the file goes with the test
  std::string path = file_name();
  ~Removed() { unlink(path.c_str()); }
};

}  // namespace

TEST(readings_of_two_clocks_make_one_time) {
  DeviceClock clock;
  const auto device = [](uint64_t host) { return 2 * host + 5000; };  // twice as fast
  for (uint64_t host = 1000; host <= 9000; host += 2000) clock.add(device(host), host, 10);
  for (uint64_t host = 0; host < 12000; host += 7) CHECK(clock.to_host(device(host)) == host);
  CHECK(clock.pairs() == 5 && clock.residual_ns() == 10);
  CHECK(std::abs(clock.drift_ppm() - 1e6) < 1e-3 && clock.offset_ns() == 14000);
  clock.add(100, 100, 7);  // went back
  CHECK(clock.pairs() == 5);
  CHECK(clock.covers(device(9000)) && !clock.covers(device(9001)));
  // A bend is followed: between two readings the line is theirs.
  clock.add(device(9000) + 1000, 10000, 10);
  CHECK(clock.to_host(device(9000) + 500) == 9500);
  CHECK(clock.to_host(device(4321)) == 4321);
  for (uint64_t i = 1; i < 20000; ++i) clock.add(device(9000) + 1000 + i, 10000 + i, 10);
  CHECK(clock.to_host(device(9000) + 1000 + 15000) == 25000);  // memory is bounded, lines are not
}

TEST(one_reading_is_an_offset) {
  DeviceClock clock;
  CHECK(!clock.known() && clock.drift_ppm() == 0 && clock.offset_ns() == 0);
  clock.add(1000, 50, 3);
  CHECK(clock.to_host(900) == static_cast<uint64_t>(-50) && clock.to_host(2000) == 1050);
  clock.add(1000, 60, 3);  // a clock that stands
  CHECK(clock.to_host(2000) == 1050 && clock.drift_ppm() == 0);
}

TEST(a_traced_run_is_whole_nested_and_aligned) {
  const Removed file;
  constexpr uint64_t kJobs = 3000;
  std::map<std::string, uint64_t> counters;
  {
    TableClient client("skewed", "trace:" + file.path);
    for (uint64_t seq = 1; seq <= kJobs; ++seq) {
      JobHandle job = client.submit(seq);
      CHECK(client.wait(job, 1000) == CALD_OK);
      if (seq % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(30));  // a drain
    }
    std::thread([&] { client.submit(kJobs + 1); }).join();
    const auto layer = client.library->layers().front();
    client.session.reset();
    client.model.reset();
    client.tokens.reset();
    client.logits.reset();
    client.device.reset();
    for (const auto& [name, value] : layer->counters()) counters[name] = value;
    client.close();
    CHECK(client.told().size() >= kJobs + 1);
  }
  const std::string text = read(file.path);
  const auto whole = JsonValue::parse(text);
  CHECK(whole.has_value());
  if (!whole) return;
  const auto& events = whole->items();
  const Slices slices = slices_of(events);
  check_nesting(slices);
  const auto jobs = check_spans(events);
  CHECK(jobs.size() == kJobs + 1);
  // Host: a slice per call, a thread per track. Device: inside the submit that made it.
  std::map<uint64_t, Slice> submits, device;
  std::map<std::string, uint64_t> calls;
  std::set<uint64_t> threads;
  for (const auto& [track, list] : slices)
    for (const Slice& slice : list) {
      if (track.first == 1) {
        ++calls[slice.name];
        threads.insert(track.second);
        if (slice.name == "submit") submits[slice.job_seq] = slice;
      } else if (slice.name == "job") {
        CHECK(device.emplace(slice.job_seq, slice).second);
      }
    }
  CHECK(calls["submit"] >= kJobs + 1 && calls["on_complete"] == calls["submit"]);
  CHECK(calls["job_wait"] == kJobs && calls["driver_close"] == 1 && threads.size() == 2);
  CHECK(submits.size() == kJobs + 1 && device.size() == kJobs + 1);
  CHECK(counters["device_dropped"] == 0 && counters["device_unpaired"] == 0);
  CHECK(counters["jobs"] == calls["submit"] && counters["left_out"] == 0);
  CHECK(counters["residual_ns"] == SKEWED_RESIDUAL_NS);
  int64_t worst = 0;
  for (const auto& [seq, slice] : device) {
    const Slice& call = submits[seq];
    worst = std::max({worst, call.from - slice.from, slice.to - call.to});
  }
  CHECK(worst <= SKEWED_RESIDUAL_NS);
  if (worst > SKEWED_RESIDUAL_NS) std::fprintf(stderr, "off by %lld ns\n", (long long)worst);
  // The residual is stated, as data and as text.
  const JsonValue* alignment = nullptr;
  bool label = false;
  for (const JsonValue& event : events) {
    if (event["name"].text() == "clock alignment") alignment = &event["args"];
    label = label || (event["name"].text() == "process_labels" &&
                      event["args"]["labels"].text().find("residual 900 ns") != std::string::npos);
  }
  CHECK(label && alignment != nullptr);
  if (alignment == nullptr) return;
  CHECK((*alignment)["residual_ns"].count() == SKEWED_RESIDUAL_NS);
  CHECK((*alignment)["readings"].count() >= 6);
  CHECK((*alignment)["text"].text().find("drift +") != std::string::npos);
  const double drift = (*alignment)["drift_ppm"].real();
  CHECK(std::abs(drift - SKEWED_DRIFT_PPM) < 60);  // 900 ns in 180 ms are 5 ppm
}

TEST(a_file_whose_process_died_is_readable) {
  const Removed file;
  const pid_t child = fork();
  if (child == 0) {
    auto* client = new TableClient("null", "trace:" + file.path);
    for (uint64_t seq = 1; seq <= 500; ++seq) client->submit(seq);
    _exit(0);  // nothing is closed
  }
  int status = 0;
  waitpid(child, &status, 0);
  const std::string text = read(file.path);
  CHECK(!JsonValue::parse(text).has_value());
  const auto events = events_of(text);
  CHECK(events.size() > 100);
  check_nesting(slices_of(events));
}

TEST(a_programs_own_trace_works_beside_it) {
  const Removed file;
  TableClient client("null", "trace:" + file.path);
  const auto& table = client.table();
  std::vector<cald_trace_event> events(64);
  uint32_t count = 64;
  client.submit(1);
  CHECK(table.trace_start(client.on(), 4, nullptr) == CALD_OK);
  CHECK(table.trace_start(client.on(), 0, nullptr) == CALD_OUT_OF_RANGE);
  for (uint64_t seq = 2; seq <= 11; ++seq) client.submit(seq);
  cald_trace_info info{};
  info.struct_size = sizeof info;
  CHECK(table.trace_drain(client.on(), events.data(), &count, &info, nullptr) == CALD_OK);
  CHECK(count == 4 && info.dropped == 6 && events[0].id == 2 && events[3].id == 5);
  CHECK(info.host_ns != 0 && info.residual_ns == 0);
  client.submit(12);
  CHECK(table.trace_stop(client.on(), nullptr) == CALD_OK);
  client.submit(13);
  count = 64;
  CHECK(table.trace_drain(client.on(), events.data(), &count, &info, nullptr) == CALD_OK);
  CHECK(count == 1 && events[0].id == 12 && info.dropped == 6);
  const auto layer = client.library->layers().front();
  client.close();
  for (const auto& [name, value] : layer->counters())
    // More than what the program saw if the layer's own turn, every 20 ms, fell between.
    if (name == "device_events") CHECK(value >= 13 - 6 && value <= 13);
}

TEST(a_device_whose_trace_is_left_alone) {
  const Removed file;
  {
    TableClient client("null", "trace:" + file.path + " events=0");
    client.submit(1);
    uint32_t count = 1;
    cald_trace_event event{};
    CHECK(client.table().trace_drain(client.on(), &event, &count, nullptr, nullptr) == CALD_OK);
    CHECK(count == 0);  // it was never begun
  }
  CHECK(check_spans(events_of(read(file.path))).size() == 1);
}

TEST(a_full_file_says_so) {
  const Removed file;
  uint64_t left_out = 0;
  {
    TableClient client("null", "trace:" + file.path + " mb=1");
    for (uint64_t seq = 1; seq <= 4000; ++seq) client.submit(seq);
    for (const auto& [name, value] : client.library->layers().front()->counters())
      if (name == "left_out") left_out = value;
  }
  const std::string text = read(file.path);
  CHECK(left_out > 0 && text.size() <= (1u << 20) + 64 && JsonValue::parse(text).has_value());
}

TEST(configurations_without_meaning_name_the_part) {
  const Removed file;
  const std::pair<std::string, const char*> rows[] = {
      {"trace", "needs a file"},
      {"trace:/nonexistent/x.json", "No such file"},
      {"trace:" + file.path + " evnts=3", "no word 'evnts'"},
      {"trace:" + file.path + " events=x", "events=x"},
      {"trace:" + file.path + " mb=0", "mb=0, expected 1"}};
  for (const auto& [layers, words] : rows) {
    auto made = make_layers(layers);
    CHECK(!made.ok() && made.error().message.find(words) != std::string::npos);
  }
  auto first = make_layers("trace:\"" + file.path + "\"");
  auto second = make_layers("trace:" + file.path);
  CHECK(first.ok() && !second.ok() && second.error().code == Status::INVALID_STATE);
}

TEST(without_a_layer_no_call_is_added) {
  struct Counting : Layer {
    std::map<std::string, int> seen;
    const char* name() const override { return "counting"; }
    void before(Call& call) override { ++seen[entry_name(call.entry)]; }
  };
  static std::shared_ptr<Counting> counting;
  register_layer("counting", [](const std::string&) -> Result<std::shared_ptr<Layer>> {
    return std::shared_ptr<Layer>(counting = std::make_shared<Counting>());
  });
  const Removed file;
  const auto calls = [&](const std::string& layers) {
    TableClient client("null", layers);
    for (uint64_t seq = 1; seq <= 10; ++seq) client.submit(seq);
    client.close();
    return counting->seen;
  };
  // Below validate and fault the driver sees what it sees without them; below trace also the
  // layer's own questions.
  const auto bare = calls("counting");
  CHECK(bare == calls("validate;counting") && bare == calls("fault:;counting"));
  const auto traced = calls("trace:" + file.path + ";counting");
  CHECK(traced.at("trace_start") == 1 && traced.at("submit") == bare.at("submit"));
  // Without layers the table is the driver's own: not one function is between.
  const auto plain = *DriverLibrary::load("null"), again = *DriverLibrary::load("null");
  CHECK(plain->layers().empty() && &plain->table() == &again->table());
  const auto layered = *DriverLibrary::load("null", "validate");
#define CALD_ENTRY(entry, need, minor, cls) \
  CHECK(plain->table().entry != layered->table().entry || plain->table().entry == nullptr);
#include "calrt/driver_entries.inc"
#undef CALD_ENTRY
}

TEST(a_device_that_throws_when_it_is_traced_runs_all_the_same) {
  const Removed file;
  {
    TableClient client("null", "trace:" + file.path +
                                   ";fault:trace_drain throw from=2 / job_timing throw=other / "
                                   "trace_stop throw");
    for (uint64_t seq = 1; seq <= 5; ++seq) {
      client.submit(seq);
      std::this_thread::sleep_for(std::chrono::milliseconds(25));  // each submit drains
    }
    CHECK(client.told().size() == 5);
  }
  const auto whole = JsonValue::parse(read(file.path));
  CHECK(whole.has_value() && check_spans(whole->items()).size() == 5);
}
