// SPDX-License-Identifier: Apache-2.0
// Speed of the cpu driver on the shape of SmolLM2-135M with random weights, beside what the machine
// can do in the same minute: sequential reads of memory, and fused multiply-adds from registers.
//   cpu_bench [kv] [threads...]      default: 1 2; kv: that part alone
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>

#include "cpu_kv_client.h"
#include "cpu_limits.h"
#include "cpu_tiny_model.h"
#include "layout/isa.h"

using namespace calrt::testing;

namespace {

double seconds() { return static_cast<double>(host_now_ns()) * 1e-9; }

// Of this process: what is left of a measurement when other processes take the cores.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string load_average() {
  std::ifstream file("/proc/loadavg");
  std::string one;
  file >> one;
  return one.empty() ? "?" : one;
}

// Best of several runs: on a shared machine the best is closest to the machine's own speed.
struct Best {
  double wall = 1e30, cpu = 1e30;
};
template <class Run>
Best best_of(int times, Run&& run) {
  Best best;
  for (int i = 0; i < times; ++i) {
    const double start = seconds(), cpu_start = cpu_seconds();
    run();
    best.wall = std::min(best.wall, seconds() - start);
    best.cpu = std::min(best.cpu, cpu_seconds() - cpu_start);
  }
  return best;
}

// The same bytes by memcpy, with as many threads.
Best copy_of(char* to, const char* from, size_t bytes, uint32_t threads) {
  return best_of(9, [&] {
    std::vector<std::thread> others;
    const size_t each = bytes / threads / 4096 * 4096;
    for (uint32_t t = 1; t < threads; ++t)
      others.emplace_back([=] { std::memcpy(to + t * each, from + t * each, each); });
    std::memcpy(to, from, each);
    for (std::thread& other : others) other.join();
    std::memcpy(to + threads * each, from + threads * each, bytes - threads * each);
  });
}

class Bench {
 public:
  Bench(const TinyModel& source, cald_package& package, uint32_t threads)
      : shape_(source.shape()), device_(threads) {
    LoadArgs args;
    args.lanes = 16;
    args.cells = 2048;
    args.compute = CALD_COMPUTE_BF16;
    args.kv = CALD_BF16;
    args.chunks = {128, 512};
    const double start = seconds();
    model_ = std::make_unique<Model>(device_, package, args);
    if (model_->failure.code != CALD_OK) throw std::runtime_error(model_->failure.text);
    std::printf("load %.2f s\n", seconds() - start);
  }

  void prefill(uint32_t chunk) {
    std::vector<int32_t> tokens(chunk), positions(chunk);
    const int32_t lane = 0, n_valid = static_cast<int32_t>(chunk);
    std::vector<std::vector<cald_binding>> jobs;
    for (uint32_t first = 0; first < 512; first += chunk) {
      for (uint32_t i = 0; i < chunk; ++i) {
        tokens[i] = static_cast<int32_t>((first + i) * 97 % shape_.vocab);
        positions[i] = static_cast<int32_t>(first + i);
      }
      jobs.push_back({model_->bind(CALD_ROLE_TOKENS, tokens.data(), chunk * 4),
                      model_->bind(CALD_ROLE_POSITIONS, positions.data(), chunk * 4),
                      model_->bind(CALD_ROLE_LANES, &lane, 4),
                      model_->bind(CALD_ROLE_N_VALID, &n_valid, 4),
                      model_->bind(CALD_ROLE_LOGITS, nullptr, model_->logit_bytes(1))});
    }
    const uint32_t graph = model_->graph("prefill_t" + std::to_string(chunk));
    const Best time = best_of(3, [&] {
      for (const auto& job : jobs) model_->run(graph, job);
    });
    prefill_speed_ = 512 / time.wall;
    std::printf("prefill 512, chunk %-4u %8.1f tok/s %8.1f per CPU second\n", chunk,
                512 / time.wall, 512 / time.cpu);
  }

  void decode(uint32_t batch, int32_t position) {
    constexpr int kSteps = 8;
    std::vector<int32_t> tokens(batch, 5), positions(batch), lanes(batch);
    for (uint32_t i = 0; i < batch; ++i) lanes[i] = static_cast<int32_t>(i);
    const cald_binding at = model_->bind(CALD_ROLE_POSITIONS, positions.data(), batch * 4ull);
    const std::vector<cald_binding> job = {
        model_->bind(CALD_ROLE_TOKENS, tokens.data(), batch * 4ull), at,
        model_->bind(CALD_ROLE_LANES, lanes.data(), batch * 4ull),
        model_->bind(CALD_ROLE_LOGITS, nullptr, model_->logit_bytes(batch))};
    const uint32_t graph = model_->graph("decode_b" + std::to_string(batch));
    const Best time = best_of(3, [&] {
      for (int step = 0; step < kSteps; ++step) {
        for (uint32_t i = 0; i < batch; ++i)
          static_cast<int32_t*>(Model::mapped(at))[i] = position + step;
        model_->run(graph, job);
      }
    });
    std::printf("decode B=%-2u at %-5d    %8.1f tok/s %8.1f per CPU second\n", batch, position,
                batch * kSteps / time.wall, batch * kSteps / time.cpu);
  }

  // All cells of a lane moved to and from a buffer beside memcpy; half of them discarded and the
  // rest moved down and turned, beside prefilling as many again.
  void kv(uint32_t threads) {
    KvClient kv(device_, *model_);
    const uint32_t cells = kv.info.cells;
    const size_t bytes = cells * kv.info.bytes_per_cell;
    std::vector<char> from(bytes, 1), to(bytes, 2);
    char* const room = kv.room(bytes);
    const Best plain = copy_of(to.data(), from.data(), bytes, threads);
    const auto show = [&](const char* name, const std::vector<KvAsk>& asks, const Best& limit) {
      const Best time = best_of(9, [&] {
        for (const KvAsk& ask : asks)
          if (kv.run(ask) != CALD_OK) throw std::runtime_error(kv.failure.text);
      });
      std::printf("%-20s %8.1f GB/s %7.2f ms %5.1f %% of memcpy\n", name,
                  static_cast<double>(bytes) / time.wall * 1e-9, time.wall * 1e3,
                  limit.wall / time.wall * 100);
      return time;
    };
    std::memset(room, 0, bytes);
    show("kv write", {{CALD_KV_WRITE, 0, 0, cells}}, plain);
    show("kv read", {{CALD_KV_READ, 0, 0, cells}}, plain);
    show("kv lane_copy", {{CALD_KV_LANE_COPY, 0, 0, cells, 1}}, plain);
    show("kv clear", {{CALD_KV_CLEAR, 2, 0, cells}}, plain);
    const uint32_t keep = 5, discard = (cells - keep) / 2, rest = cells - keep - discard;
    const Best shift = show("kv shift by half",
                            {{CALD_KV_RANGE_COPY, 0, keep + discard, rest, 0, keep},
                             {CALD_KV_ROTATE, 0, keep, rest, 0, 0, -static_cast<int32_t>(discard)}},
                            plain);
    // Prefill speeds were of 512 tokens from position 0 on: later ones cost more.
    std::printf("that is %.2f %% of prefilling %u tokens again at the speed of chunk 512\n",
                shift.wall / (rest / prefill_speed_) * 100, rest);
  }

 private:
  TinyShape shape_;
  Device device_;
  double prefill_speed_ = 1;  // tokens a second
  std::unique_ptr<Model> model_;
};

}  // namespace

int main(int argc, char** argv) try {
  TinyShape shape;
  shape.vocab = 49152;
  shape.layers = 30;
  shape.embed = 576;
  shape.heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.ffn = 1536;
  shape.file_dtype = CALD_BF16;
  TinyModel source(shape);
  std::vector<uint32_t> counts;
  const bool kv_only = argc > 1 && std::string(argv[1]) == "kv";
  for (int i = kv_only ? 2 : 1; i < argc; ++i)
    counts.push_back(static_cast<uint32_t>(std::atoi(argv[i])));
  if (counts.empty()) counts = {1, 2};
  for (uint32_t threads : counts) {
    std::printf("-- %u thread(s), %s, load average %s\n", threads,
                calrt::isa_name(*calrt::select_isa()), load_average().c_str());
    std::printf("limits: memory read %.1f GB/s, F32 multiply-add %.0f GFLOP/s\n",
                read_gigabytes_per_second(threads), fma_gigaflops(threads));
    Bench bench(source, source.package(), threads);
    bench.prefill(512);
    bench.kv(threads);
    if (kv_only) continue;
    bench.prefill(128);
    for (uint32_t batch : {1u, 4u, 8u, 16u}) bench.decode(batch, 0);
    bench.decode(1, 1900);
    bench.decode(8, 1900);
    std::printf("limits again: memory read %.1f GB/s, F32 multiply-add %.0f GFLOP/s, load %s\n",
                read_gigabytes_per_second(threads), fma_gigaflops(threads), load_average().c_str());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "cpu_bench: %s\n", error.what());
  return 1;
}
