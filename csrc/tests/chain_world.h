// SPDX-License-Identifier: Apache-2.0
// A device in virtual time whose logits are a hash of all cells 0..position of the lane, so every
// request has exactly one right continuation, whatever shared the device with it: a stray write, a
// stale cell or a lost chunk shows as a wrong token.
#pragma once

#include <algorithm>
#include <bit>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/tick_loop.h"
#include "tests/check.h"

namespace calrt::testing {

inline constexpr uint32_t kVocab = 48;

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline std::vector<uint16_t> chain_row(const std::vector<int32_t>& cells, size_t count) {
  uint64_t hash = 1;
  for (size_t i = 0; i < count; ++i) hash = mix(hash * 31 + uint64_t(cells[i] + 7) * 1000003 + i);
  std::vector<uint16_t> row(kVocab);
  for (uint32_t v = 0; v < kVocab; ++v) {
    const float logit = float(mix(hash + v) % 4096) / 512;
    row[v] = uint16_t(std::bit_cast<uint32_t>(logit) >> 16);
  }
  return row;
}

// What the request must produce when it is alone: tokens and how it ends.
struct Solo {
  std::vector<int32_t> tokens;
  engine::Finish finish;
};

inline Solo solo_run(const engine::Start& start, uint32_t cells) {
  Solo solo{{}, engine::Finish::LENGTH};
  auto sampler = *Sampler::make(start.sampling, kVocab);
  std::vector<int32_t> context = start.history;
  context.insert(context.end(), start.tokens.begin(), start.tokens.end());
  for (int32_t token : context) sampler.accept(token);
  while (true) {
    const auto row = chain_row(context, context.size());
    const int32_t token = sampler.sample({row.data(), true, kVocab, kVocab}).token;
    const auto& stops = start.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
      solo.finish = engine::Finish::STOP;
      return solo;
    }
    solo.tokens.push_back(token);
    sampler.accept(token);
    if (solo.tokens.size() == start.max_tokens) return solo;
    if (context.size() == cells) {
      solo.finish = engine::Finish::CONTEXT;
      return solo;
    }
    context.push_back(token);
  }
}

class ChainDevice final : public engine::Submitter {
 public:
  ChainDevice(uint32_t lanes, uint32_t cells, uint64_t* now)
      : cells_(lanes, std::vector<int32_t>(cells, -99)), now_(now) {}

  // Switches, asked once per submit.
  std::function<Status()> refuse = [] { return Status::OK; };
  std::function<Status(const engine::JobPlan&)> fail_job = [](const engine::JobPlan&) {
    return Status::OK;
  };
  std::function<bool()> lose = [] { return false; };
  std::function<bool()> no_logits = [] { return false; };
  std::function<uint64_t(const engine::JobPlan&)> duration = [](const engine::JobPlan&) {
    return uint64_t{1000};
  };
  std::vector<std::string> log;  // one word per job; + before what was submitted behind another one
  size_t most = 0;               // jobs that were in flight at a time
  uint64_t runs_at_once = 1;     // or one after the other, as a session of depth 1 does
  bool cancelled = false;

  // The job that ends first, and when; 0 and UINT64_MAX without one.
  uint64_t ends_first() const { return jobs_.empty() ? 0 : first()->seq; }
  uint64_t completes_at() const { return jobs_.empty() ? UINT64_MAX : first()->end_ns; }

  uint64_t next_tag() override { return ++seq_; }

  Result<uint64_t> submit(const engine::JobPlan& plan, uint64_t deadline_ns) override {
    if (const Status status = refuse(); status != Status::OK) return fail(status, "refused");
    Running job{++seq_, 0, fail_job(plan), lose(), no_logits(), lanes_of(plan)};
    uint64_t begin = *now_;
    for (const Running& other : jobs_) {
      for (const uint32_t lane : job.lanes) {
        CHECK(std::find(other.lanes.begin(), other.lanes.end(), lane) == other.lanes.end());
      }
      if (runs_at_once < 2) begin = std::max(begin, other.end_ns);
    }
    job.end_ns = job.lost ? deadline_ns : begin + duration(plan);
    std::string& word = log.emplace_back(jobs_.empty() ? "" : "+");
    word.append(1, plan.graph.prefill ? 'p' : 'd');
    word.append(std::to_string(plan.graph.size)).append(1, ':');
    word.append(std::to_string(plan.n_valid));
    jobs_.push_back(std::move(job));
    most = std::max(most, jobs_.size());
    return seq_;
  }

  End finish(const engine::JobPlan& plan, uint64_t job_seq) override {
    const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                    [&](const Running& job) { return job.seq == job_seq; });
    CHECK(found != jobs_.end());
    const Running job = std::move(*found);
    jobs_.erase(found);
    nan_ = job.nan;
    const bool good = job.outcome == Status::OK && !job.lost;
    for (uint32_t i = 0; i < plan.rows.size(); ++i) {
      const auto& row = plan.rows[i];
      if (row.lane < 0 && !identity(plan)) continue;  // padding: nothing is written
      const uint32_t lane = row.lane < 0 ? i : uint32_t(row.lane);
      CHECK(lane < cells_.size() && size_t(row.position) < cells_[lane].size());
      CHECK(row.lane < 0 || plan.graph.serves(lane));
      cells_[lane][row.position] = row.lane < 0 || !good ? -5 : row.token;
      if (job.lost) owed_lanes_.push_back(lane);
    }
    if (job.lost) return {fail(Status::EXECUTION_FAILED, "lost"), true};
    if (!good) return {fail(job.outcome, "job failed"), false};
    return {};
  }

  Result<LogitsView> logits(const engine::JobPlan& plan, uint32_t row) override {
    const auto& at = plan.rows[row];
    row_ = chain_row(cells_[at.lane], size_t(at.position) + 1);
    if (nan_) row_.assign(kVocab, 0x7fc0);
    return LogitsView{row_.data(), true, kVocab, kVocab};
  }

  void cancel() override { cancelled = true; }
  bool answer = true;  // lost jobs are answered at once
  std::vector<uint32_t> answered() override {
    return answer ? std::exchange(owed_lanes_, {}) : std::vector<uint32_t>{};
  }
  bool owed() const override { return !owed_lanes_.empty(); }

  std::vector<int32_t>& cells(uint32_t lane) { return cells_[lane]; }

 private:
  struct Running {
    uint64_t seq, end_ns;
    Status outcome;
    bool lost, nan;
    std::vector<uint32_t> lanes;  // that it writes
  };

  static bool identity(const engine::JobPlan& plan) {
    return plan.graph.lane_map != CALD_LANE_MAP_ANY && !plan.graph.prefill;
  }

  static std::vector<uint32_t> lanes_of(const engine::JobPlan& plan) {
    std::vector<uint32_t> lanes;
    for (uint32_t i = 0; i < plan.rows.size(); ++i) {
      if (plan.rows[i].lane >= 0) lanes.push_back(uint32_t(plan.rows[i].lane));
      if (plan.rows[i].lane < 0 && identity(plan)) lanes.push_back(i);
    }
    return lanes;
  }

  std::vector<Running>::const_iterator first() const {
    return std::min_element(jobs_.begin(), jobs_.end(),
                            [](const Running& a, const Running& b) { return a.end_ns < b.end_ns; });
  }

  std::vector<std::vector<int32_t>> cells_;
  uint64_t* now_;
  uint64_t seq_ = 0;
  std::vector<Running> jobs_;
  bool nan_ = false;
  std::vector<uint32_t> owed_lanes_;
  std::vector<uint16_t> row_;
};

struct Outcome {
  std::vector<int32_t> tokens;
  int started = 0, ended = 0;
  engine::Finish finish{};
  int32_t status = 0;
  std::string text;
  int64_t prompt_done = 0;
};

inline constexpr uint64_t kJobTimeout = 1'000'000'000;

// Loop, device, lanes and clock; events are collected by request.
class World {
 public:
  World(std::vector<engine::GraphShape> graphs, uint32_t lanes, uint32_t cells,
        engine::StepOptions options = {}, uint32_t in_flight = 1)
      : table(kv::LaneTable::make(lanes, cells, 1)),
        device(lanes, cells, &now),
        loop(
            engine::StepCore(std::move(graphs), table, options), &device, kJobTimeout,
            [this] { return now; },
            [this] {
              CHECK(device.ends_first() == 0);
              for (const uint32_t lane : table->poisoned(0, true)) {
                CHECK(table->begin_scrub(lane).ok());
                CHECK(table->end_scrub(lane, lane_works(lane)).ok());
              }
              return Result<void>();
            },
            in_flight) {}

  uint64_t now = 1000;
  std::shared_ptr<kv::LaneTable> table;
  ChainDevice device;
  engine::TickLoop loop;
  std::map<uint64_t, Outcome> outcomes;
  size_t room = 100000;
  std::function<bool(uint32_t)> lane_works = [](uint32_t) { return true; };

  // False if no lane is free. With `start.history` its cells are put in place first.
  bool start(engine::Start start) {
    auto reserved = table->try_reserve(table->cells(), now);
    if (!reserved.ok()) return false;
    start.lane = reserved->commit().value();
    start.position = uint32_t(start.history.size());
    if (start.position > 0) {
      const uint64_t tag = device.next_tag();
      CHECK(table->begin_job(start.lane, tag, start.position, true).ok());
      CHECK(table->end_job(start.lane, tag, true, true));
      auto& cells = device.cells(start.lane.lane);
      std::copy(start.history.begin(), start.history.end(), cells.begin());
    }
    auto sampler = *Sampler::make(start.sampling, kVocab);
    for (int32_t token : start.history) sampler.accept(token);
    for (int32_t token : start.tokens) sampler.accept(token);
    loop.core().start(std::make_unique<engine::Record>(std::move(start), std::move(sampler)));
    return true;
  }

  void step() {
    loop.step(room);
    collect();
    const auto sound = loop.core().check_invariants();
    CHECK(sound.ok());
    if (!sound.ok()) std::fprintf(stderr, "%s\n", sound.error().message.c_str());
  }

  void collect() {
    for (const auto& event : loop.core().events()) {
      Outcome& out = outcomes[event.request];
      CHECK(out.ended == 0);
      switch (event.kind) {
        case engine::EventKind::STARTED:
          ++out.started;
          break;
        case engine::EventKind::PREFILL:
          CHECK(event.value > out.prompt_done);
          out.prompt_done = event.value;
          break;
        case engine::EventKind::TOKEN:
          out.tokens.push_back(int32_t(event.value));
          break;
        case engine::EventKind::ENDED:
          ++out.ended;
          out.finish = engine::Finish(event.value);
          out.status = event.status;
          out.text = event.text;
      }
    }
    loop.core().events().clear();
  }

  // To the next moment at which something happens, at most `limit`. False if nothing would.
  bool advance(uint64_t limit = UINT64_MAX) {
    const uint64_t next = std::min({device.completes_at(), loop.wake_at(), limit});
    if (next == UINT64_MAX) return false;
    now = std::max(now, next);
    if (device.completes_at() <= now) loop.completed(device.ends_first());
    return true;
  }

  void run() {
    for (int turns = 0; turns < 100000; ++turns) {
      step();
      if (loop.idle()) return;
      if (!loop.waits_for_room() && !advance()) break;
    }
    CHECK(!"the plan came to rest with requests in it");
  }
};

inline engine::Start request(uint64_t id, std::vector<int32_t> tokens, uint32_t max_tokens) {
  engine::Start start;
  start.request = id;
  start.tokens = std::move(tokens);
  start.max_tokens = max_tokens;
  start.sampling.temperature = 0;
  return start;
}

inline std::vector<int32_t> prompt(std::mt19937& random, size_t n) {
  std::vector<int32_t> tokens(n);
  for (auto& token : tokens) token = int32_t(random() % kVocab);
  return tokens;
}

inline std::vector<engine::GraphShape> graphs(std::vector<uint32_t> batches,
                                              std::vector<uint32_t> chunks,
                                              int32_t lane_map = CALD_LANE_MAP_ANY,
                                              bool n_valid = true) {
  std::vector<engine::GraphShape> shapes;
  for (uint32_t b : batches) shapes.push_back({uint32_t(shapes.size()), false, b, lane_map, false});
  for (uint32_t t : chunks) shapes.push_back({uint32_t(shapes.size()), true, t, lane_map, n_valid});
  return shapes;
}

inline std::string words(const std::vector<std::string>& log) {
  std::string all;
  for (const auto& word : log) all += (all.empty() ? "" : " ") + word;
  return all;
}

// What the request got is what it gets alone.
inline void check_exact(const World& world, const engine::Start& start, uint32_t cells) {
  const Solo solo = solo_run(start, cells);
  const auto found = world.outcomes.find(start.request);
  CHECK(found != world.outcomes.end());
  if (found == world.outcomes.end()) return;
  CHECK(found->second.ended == 1 && found->second.started == 1);
  CHECK(found->second.finish == solo.finish);
  CHECK(found->second.tokens == solo.tokens);
}

}  // namespace calrt::testing
