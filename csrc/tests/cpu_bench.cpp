// SPDX-License-Identifier: Apache-2.0
// Speed of the cpu driver on the shape of SmolLM2-135M with random weights, beside what the machine
// can do in the same minute: sequential reads of memory, and fused multiply-adds from registers.
//   cpu_bench [threads...]      default: 1 2
#include <cstdio>
#include <ctime>
#include <fstream>
#include <thread>

#include "cpu_client.h"
#include "cpu_limits.h"
#include "cpu_tiny_model.h"
#include "layout/isa.h"

using namespace calrt::testing;

namespace {

double seconds() { return static_cast<double>(test_now_ns(nullptr)) * 1e-9; }

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

 private:
  TinyShape shape_;
  Device device_;
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
  for (int i = 1; i < argc; ++i) counts.push_back(static_cast<uint32_t>(std::atoi(argv[i])));
  if (counts.empty()) counts = {1, 2};
  for (uint32_t threads : counts) {
    std::printf("-- %u thread(s), %s, load average %s\n", threads,
                calrt::isa_name(*calrt::select_isa()), load_average().c_str());
    std::printf("limits: memory read %.1f GB/s, F32 multiply-add %.0f GFLOP/s\n",
                read_gigabytes_per_second(threads), fma_gigaflops(threads));
    Bench bench(source, source.package(), threads);
    for (uint32_t chunk : {128u, 512u}) bench.prefill(chunk);
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
