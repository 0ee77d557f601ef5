// SPDX-License-Identifier: Apache-2.0
// What KV bookkeeping costs: a reserve and its release, alone and against a second thread, and the
// sequence operations on lanes of 40,960 cells that are 1 run or 1,000.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench.h"
#include "kv/lanes.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

constexpr uint32_t kLanes = 16, kCells = 40'960;
constexpr double kOneRunNs = 100, kManyRunsNs = 20'000;

void check(bool ok) {
  if (!ok) std::fprintf(stderr, "an operation failed: the figure means nothing\n");
}

// Lanes all of whose cells but the last are in use, as `runs` runs with a cell between them.
class Rig {
 public:
  explicit Rig(uint32_t runs) {
    for (LaneRef& lane : lanes_) lane = table_->try_reserve(kCells, 0).value().commit().value();
    const LaneRef& first = lanes_[0];
    check(table_->begin_write(first, 1, kCells - 1).ok() && table_->end_job(first, 1, true, true));
    const uint32_t step = kCells / runs;
    for (uint32_t i = 1; i < runs; ++i) check(table_->seq_rm(first, i * step, i * step + 1).ok());
    check(table_->sequence(first)->runs().size() == runs);
  }
  const LaneRef& first() const { return lanes_[0]; }
  // ns of op(table, lane) on a lane that is like the first: the least of many rounds.
  template <class Op>
  double ns(Op&& op) {
    using Clock = std::chrono::steady_clock;
    double best = 1e300;
    bool ok = true;
    for (int round = 0; round < 1'500; ++round) {
      for (uint32_t i = 1; i < kLanes; ++i)
        ok = table_->seq_cp(lanes_[0], lanes_[i], -1, -1).ok() && ok;
      const auto begin = Clock::now();
      for (uint32_t i = 1; i < kLanes; ++i) ok = op(*table_, lanes_[i]).ok() && ok;
      const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
      best = std::min(best, took.count() / (kLanes - 1));
    }
    check(ok);
    return best;
  }

 private:
  std::shared_ptr<LaneTable> table_ = LaneTable::make(kLanes, kCells, 1);
  std::vector<LaneRef> lanes_ = std::vector<LaneRef>(kLanes);
};

void sequence_operations(uint32_t runs) {
  Rig rig(runs);
  const auto row = [&](const char* name, auto&& op) {
    bench::record(std::string("native.kv.seq_") + name, rig.ns(op), "ns",
                  runs == 1 ? kOneRunNs : kManyRunsNs, runs);
  };
  constexpr int64_t kMiddle = kCells / 2 + 4;  // inside of a run
  row("rm_tail", [](LaneTable& t, const LaneRef& lane) { return t.seq_rm(lane, kMiddle, -1); });
  row("rm", [](LaneTable& t, const LaneRef& lane) { return t.seq_rm(lane, kMiddle, kMiddle + 8); });
  row("cp", [&](LaneTable& t, const LaneRef& lane) { return t.seq_cp(rig.first(), lane, -1, -1); });
  row("keep", [](LaneTable& t, const LaneRef& lane) { return t.seq_keep(lane); });
  row("add", [](LaneTable& t, const LaneRef& lane) { return t.seq_add(lane, 0, -1, 1); });
  row("add_behind",
      [](LaneTable& t, const LaneRef& lane) { return t.seq_add(lane, kMiddle, -1, -2); });
}

}  // namespace

BENCH(kv_can_allocate) {
  const auto table = LaneTable::make(kLanes, kCells, 1);
  bool ok = true;
  const double ns = bench::best_ns([&] { ok = table->can_allocate(1'000)->now && ok; });
  bench::record("native.kv.can_allocate", ns, "ns", 20);
  check(ok);
}

namespace {

// ns of a call while another thread makes the same calls: the median of the short rounds in which
// it made half to twice as many. In the others one of both did not run, as cores are shared.
template <class Call>
std::optional<double> contended_ns(Call&& call) {
  using Clock = std::chrono::steady_clock;
  constexpr uint64_t kCalls = 200;
  std::atomic<uint64_t> others{0};
  std::atomic<bool> end{false};
  std::thread other([&] {
    while (!end.load(std::memory_order_relaxed)) {
      call();
      others.fetch_add(1, std::memory_order_relaxed);
    }
  });
  std::vector<double> rounds;
  for (int round = 0; round < 50'000; ++round) {
    const uint64_t before = others.load();
    const auto begin = Clock::now();
    for (uint64_t i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::nano> took = Clock::now() - begin;
    const uint64_t made = others.load() - before;
    if (made >= kCalls / 2 && made <= kCalls * 2) rounds.push_back(took.count() / kCalls);
  }
  end.store(true);
  other.join();
  if (rounds.empty()) return std::nullopt;
  const auto median = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  std::nth_element(rounds.begin(), median, rounds.end());
  return *median;
}

}  // namespace

// `n` of the rows: threads.
BENCH(kv_try_reserve) {
  const auto table = LaneTable::make(kLanes, kCells, 1);
  std::atomic<bool> ok{true};
  const auto reserve = [&] {
    if (!table->try_reserve(1'000, 1).ok()) ok = false;
  };
  bench::record("native.kv.try_reserve_release", bench::best_ns(reserve), "ns", 100, 1);
  if (const auto ns = contended_ns(reserve))
    bench::record("native.kv.try_reserve_release", *ns, "ns", 600, 2);
  check(ok);
}

BENCH(kv_sequence_1_run) { sequence_operations(1); }
BENCH(kv_sequence_1000_runs) { sequence_operations(1'000); }
