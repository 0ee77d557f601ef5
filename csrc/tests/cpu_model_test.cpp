// SPDX-License-Identifier: Apache-2.0
// The cpu driver's results, through its ABI: right against double precision, and the same bits
// whatever batch, chunk, threads or neighbours a token has.
#include <cmath>

#include "check.h"
#include "cpu_client.h"
#include "cpu_tiny_model.h"
#include "layout/convert.h"

using namespace calrt::testing;

namespace {

struct Mode {
  int32_t compute, kv;
};
constexpr Mode kModes[] = {{CALD_COMPUTE_F32, CALD_F32},
                           {CALD_COMPUTE_F32, CALD_BF16},
                           {CALD_COMPUTE_BF16, CALD_BF16},
                           {CALD_COMPUTE_BF16, CALD_F32}};

LoadArgs args_of(const Mode& mode) {
  LoadArgs args;
  args.compute = mode.compute;
  args.kv = mode.kv;
  args.lanes = 16;
  return args;
}

std::vector<int32_t> some_tokens(size_t n, uint32_t vocab, uint32_t seed = 5) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % vocab);
  return tokens;
}

std::vector<float> floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

double relative_rms(const std::vector<float>& got, const std::vector<double>& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    power += want[i] * want[i];
  }
  return std::sqrt(error / power);
}

// The logits of each token of `tokens`, one decode_b1 job after another.
std::vector<std::string> one_by_one(Model& model, const std::vector<int32_t>& tokens,
                                    int32_t lane) {
  std::vector<std::string> all;
  for (size_t p = 0; p < tokens.size(); ++p)
    all.push_back(model.decode(1, {{tokens[p], static_cast<int32_t>(p), lane}}).at(0));
  return all;
}

void check_reference(const TinyShape& shape) {
  TinyModel tiny(shape);
  const std::vector<int32_t> tokens = some_tokens(37, shape.vocab);
  const std::vector<double> want = tiny.reference(tokens);
  for (const char* isa : calrt::usable_isas()) {
    Device device(1, isa);
    for (const Mode& mode : kModes) {
      Model model(device, tiny.package(), args_of(mode));
      const auto got = model.prefill(64, tokens, 0, 3);
      CHECK(got.size() == 1);
      if (got.size() != 1) continue;
      const bool exact = mode.compute == CALD_COMPUTE_F32 && mode.kv == CALD_F32;
      const double error = relative_rms(floats(got[0]), want);
      if (!(error < (exact ? 5e-6 : 3e-2)))
        std::fprintf(stderr, "%s compute=%d kv=%d: %g\n", isa, mode.compute, mode.kv, error);
      CHECK(error < (exact ? 5e-6 : 3e-2));
    }
  }
}

}  // namespace

TEST(agrees_with_double_precision) { check_reference({}); }

TEST(agrees_with_rope_halves_and_own_head) {
  TinyShape shape;
  shape.rope_style = CALD_ROPE_HALF;
  shape.tied = 0;
  shape.file_dtype = CALD_BF16;
  check_reference(shape);
}

TEST(agrees_on_odd_widths) {
  TinyShape shape;
  shape.embed = 33;
  shape.ffn = 71;
  shape.head_dim = 34;
  shape.heads = 5;
  shape.kv_heads = 5;
  shape.vocab = 130;
  check_reference(shape);
}

TEST(prefill_equals_decode) {
  TinyModel tiny;
  const std::vector<int32_t> tokens = some_tokens(70, tiny.shape().vocab);
  std::vector<int32_t> rows;
  for (int32_t r = 0; r < 64; ++r) rows.push_back(r);
  for (const char* isa : calrt::usable_isas()) {
    Device device(1, isa);
    for (const Mode& mode : kModes) {
      Model model(device, tiny.package(), args_of(mode));
      const auto alone = one_by_one(model, tokens, 0);
      const std::vector<int32_t> head(tokens.begin(), tokens.begin() + 64);
      const auto whole = model.prefill(64, head, 0, 1, rows);
      for (size_t p = 0; p < 64; ++p) CHECK(whole.at(p) == alone[p]);
      // The same in chunks that end in the middle of a pair of cells.
      size_t p = 0;
      for (size_t n : {size_t{3}, size_t{16}, size_t{9}, size_t{16}, size_t{16}, size_t{10}}) {
        const std::vector<int32_t> part(tokens.begin() + static_cast<long>(p),
                                        tokens.begin() + static_cast<long>(p + n));
        const auto last = model.prefill(16, part, static_cast<int32_t>(p), 2);
        p += n;
        CHECK(last.at(0) == alone[p - 1]);
      }
    }
  }
}

TEST(batch_and_neighbours_do_not_matter) {
  TinyModel tiny;
  const std::vector<int32_t> tokens = some_tokens(21, tiny.shape().vocab);
  for (const char* isa : calrt::usable_isas()) {
    Device device(1, isa);
    for (const Mode& mode : kModes) {
      Model model(device, tiny.package(), args_of(mode));
      const auto alone = one_by_one(model, tokens, 0);
      for (uint32_t batch : {4u, 8u, 16u}) {
        for (size_t p = 0; p < tokens.size(); ++p) {
          std::vector<Step> steps;
          const size_t mine = p % batch;
          for (size_t i = 0; i < batch; ++i) {
            const auto lane = static_cast<int32_t>(15 - i);
            // Neighbours are other tokens, somewhere else, and now and then padding.
            steps.push_back({static_cast<int32_t>((p * 7 + i) % 77),
                             static_cast<int32_t>((p * 3 + i * 5) % 90),
                             (p + i) % 5 == 0 ? -1
                             : lane == 5      ? -1
                                              : lane});
          }
          steps[mine] = {tokens[p], static_cast<int32_t>(p), 5};
          CHECK(model.decode(batch, steps).at(mine) == alone[p]);
        }
      }
    }
  }
}

TEST(threads_do_not_matter) {
  TinyModel tiny;
  const std::vector<int32_t> tokens = some_tokens(40, tiny.shape().vocab);
  std::vector<int32_t> rows;
  for (int32_t r = 0; r < 40; ++r) rows.push_back(r);
  for (const char* isa : calrt::usable_isas())
    for (const Mode& mode : kModes) {
      std::vector<std::string> first;
      for (uint32_t threads : {1u, 2u, 3u}) {
        Device device(threads, isa);
        Model model(device, tiny.package(), args_of(mode));
        auto got = model.prefill(64, tokens, 0, 0, rows);
        got.push_back(model.decode(4, {{7, 40, 0}}).at(0));
        if (threads == 1) first = got;
        CHECK(got == first);
      }
    }
}

TEST(stale_cells_do_not_matter) {
  // A model whose embedding row 76 is not finite leaves NaN and infinities in every cell it
  // touches; the next owner of the lane must not see them.
  TinyModel tiny;
  const std::vector<int32_t> tokens = some_tokens(33, 70);
  const std::vector<float> poison(tiny.shape().embed, std::nanf(""));
  const cald_tensor& embedding = tiny.tensor("token_embd.weight");
  const auto row_bytes = static_cast<off_t>(poison.size() * 4);
  CHECK(pwrite(tiny.fd(), poison.data(), poison.size() * 4,
               static_cast<off_t>(embedding.offset) + 76 * row_bytes) == row_bytes);
  for (const char* isa : calrt::usable_isas()) {
    Device device(1, isa);
    for (const Mode& mode : kModes) {
      Model model(device, tiny.package(), args_of(mode));
      const auto clean = one_by_one(model, tokens, 0);
      const std::vector<int32_t> bad(64, 76);
      for (int32_t lane : {1, 2, 3}) {
        const auto spoiled = model.prefill(64, bad, 0, lane);
        CHECK(std::isnan(floats(spoiled.at(0))[0]));
      }
      CHECK(one_by_one(model, tokens, 1) == clean);
      const auto last = model.prefill(64, tokens, 0, 2);
      CHECK(last.at(0) == clean.back());
      // Also beside a neighbour that is NaN in the same job, and before a NaN of its own chunk.
      std::vector<int32_t> tail_bad = tokens;
      tail_bad.push_back(76);
      const auto rows = model.prefill(64, tail_bad, 0, 3, {0, 31, 32, 33});
      CHECK(rows.at(0) == clean[0]);
      CHECK(rows.at(1) == clean[31]);
      CHECK(rows.at(2) == clean[32]);
      CHECK(std::isnan(floats(rows.at(3))[0]));
      const auto pair = model.decode(4, {{76, 40, 4}, {tokens[0], 0, 5}});
      CHECK(pair.at(1) == clean[0]);
    }
  }
}

TEST(a_cell_written_again_leaves_the_others) {
  TinyModel tiny;
  const std::vector<int32_t> tokens = some_tokens(12, tiny.shape().vocab);
  Device device;
  for (const Mode& mode : kModes) {
    Model model(device, tiny.package(), args_of(mode));
    const auto clean = one_by_one(model, tokens, 0);
    model.decode(1, {{tokens[4], 4, 0}});  // the same token again, in the middle
    CHECK(model.decode(1, {{tokens[11], 11, 0}}).at(0) == clean[11]);
  }
}

TEST(bf16_logits_are_the_rounded_f32_ones) {
  TinyModel tiny;
  const std::vector<int32_t> tokens = some_tokens(9, tiny.shape().vocab);
  Device device;
  LoadArgs args;
  Model wide(device, tiny.package(), args);
  args.logits = CALD_BF16;
  Model narrow(device, tiny.package(), args);
  const std::vector<float> exact = floats(wide.prefill(16, tokens, 0, 0).at(0));
  const std::string rounded = narrow.prefill(16, tokens, 0, 0).at(0);
  CHECK(rounded.size() == exact.size() * 2);
  for (size_t i = 0; i < exact.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, rounded.data() + 2 * i, 2);
    CHECK(bits == calrt::bf16_from_f32(exact[i]));
  }
}
