// SPDX-License-Identifier: Apache-2.0
// Sequence against a slow model that knows each cell alone: which position it holds, which one its
// K is turned for. The model speaks of llama.cpp's operations on a stream of its own.
#include "kv/sequence.h"

#include <algorithm>
#include <map>
#include <random>

#include "tests/check.h"

using namespace calrt;
using namespace calrt::kv;

namespace {

struct Cell {
  int64_t pos = 0, coded = 0;
  bool operator==(const Cell&) const = default;
};

struct Model {
  int64_t capacity;
  std::map<uint32_t, Cell> cells;  // by index

  static bool in(int64_t pos, int64_t p0, int64_t p1) {
    return pos >= std::max<int64_t>(p0, 0) && (p1 < 0 || pos < p1);
  }
  static bool range_ok(int64_t p0, int64_t p1, Compat compat) {
    return compat == Compat::LLAMA || (p0 >= -1 && p1 >= -1);
  }
  bool rm(int64_t p0, int64_t p1, Compat compat) {
    if (!range_ok(p0, p1, compat)) return false;
    std::erase_if(cells, [&](const auto& one) { return in(one.second.pos, p0, p1); });
    return true;
  }
  bool add(int64_t p0, int64_t p1, int64_t d, Compat compat) {
    if (!range_ok(p0, p1, compat)) return false;
    for (const auto& [at, cell] : cells)
      if (d > 0 && in(cell.pos, p0, p1) && d > capacity - 1 - cell.pos) return false;
    for (auto& [at, cell] : cells)
      if (in(cell.pos, p0, p1)) cell.pos += d;
    std::erase_if(cells, [](const auto& one) { return one.second.pos < 0; });
    return true;
  }
  bool div(int64_t p0, int64_t p1, int64_t d, Compat compat) {
    if (!range_ok(p0, p1, compat) || d < 1) return false;
    for (auto& [at, cell] : cells)
      if (in(cell.pos, p0, p1)) cell.pos /= d;
    return true;
  }
  bool canonical() const {
    uint32_t next = 0;
    for (const auto& [at, cell] : cells) {
      if (at != next || cell.pos != next || cell.coded != next) return false;
      ++next;
    }
    return true;
  }
  uint32_t length() const {
    uint32_t next = 0;
    for (const auto& [at, cell] : cells) {
      if (at != next || cell.pos != next || cell.coded != next) break;
      ++next;
    }
    return next;
  }
  // Positions 0, 1, 2... in the order of the cells.
  bool can_apply() const {
    int64_t next = 0;
    for (const auto& [at, cell] : cells)
      if (cell.pos != next++) return false;
    return true;
  }
};

std::map<uint32_t, Cell> cells_of(const Sequence& sequence) {
  std::map<uint32_t, Cell> out;
  for (const Run& run : sequence.runs())
    for (uint32_t i = 0; i < run.n; ++i)
      out[run.cell + i] = {run.same ? run.pos : int64_t{run.pos} + i, int64_t{run.coded} + i};
  return out;
}

// What cells hold after the moves; a move of a cell that is not there, or on one that was not read
// yet, shows up as another result.
std::map<uint32_t, Cell> moved(std::map<uint32_t, Cell> cells, const Plan& plan, bool* legal) {
  for (const Move& move : plan) {
    std::map<uint32_t, Cell> read;
    for (uint32_t i = 0; i < move.n; ++i) {
      const auto found = cells.find(move.cell + i);
      *legal = *legal && found != cells.end();
      if (found != cells.end()) read[move.to_cell + i] = found->second;
    }
    for (const auto& [at, cell] : read) {
      cells[at] = cell;
      if (move.op == MoveOp::ROTATE) cells[at].coded += move.delta;
    }
  }
  return cells;
}

bool agree(const Sequence& sequence, const Model& model) {
  int64_t least = -1, most = -1;
  for (const auto& [at, cell] : model.cells) {
    least = least < 0 ? cell.pos : std::min(least, cell.pos);
    most = std::max(most, cell.pos);
  }
  return cells_of(sequence) == model.cells && sequence.cells() == model.cells.size() &&
         sequence.pos_min() == least && sequence.pos_max() == most &&
         sequence.canonical() == model.canonical() && sequence.length() == model.length() &&
         sequence.pending().empty() == model.canonical();
}

bool check_plan(Sequence* sequence, Model* model) {
  auto plan = sequence->plan(3);
  if (plan.ok() != model->can_apply()) return false;
  if (!plan.ok()) return plan.error().code == Status::KV_INVALID_SEQUENCE;
  bool legal = true;
  auto after = moved(model->cells, *plan, &legal);
  const auto n = static_cast<uint32_t>(model->cells.size());
  model->cells.clear();
  for (uint32_t i = 0; i < n; ++i) {
    // The data that position i had is what lies there now, turned for it.
    legal = legal && after[i].pos == i && after[i].coded == i;
    model->cells[i] = {i, i};
  }
  sequence->applied();
  return legal;
}

// The moves carry the data: pos travels with its cell, so a wrong order shows.
int64_t pick(std::mt19937& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
}

}  // namespace

TEST(random_operations_agree_with_the_model) {
  uint64_t operations = 0, refused = 0, applied = 0;
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937 random(seed);
    const auto capacity = static_cast<uint32_t>(pick(random, 1, 40));
    Sequence sequence(capacity);
    Model model{capacity, {}};
    for (int step = 0; step < 60; ++step, ++operations) {
      const Sequence before = sequence;
      const Compat compat = random() % 2 ? Compat::STRICT : Compat::LLAMA;
      const int64_t p0 = pick(random, -3, 42), p1 = pick(random, -3, 42);
      const int64_t d =
          random() % 20 == 0 ? (random() % 2 ? INT64_MAX : INT64_MIN) : pick(random, -8, 8);
      bool good = true, same = true;
      switch (random() % 8) {
        case 0: {
          const bool wants = model.rm(p0, p1, compat);
          good = sequence.rm(p0, p1, compat).ok();
          same = good == wants;
          break;
        }
        case 1: {
          const bool wants = model.add(p0, p1, d, compat);
          good = sequence.add(p0, p1, d, compat).ok();
          same = good == wants;
          break;
        }
        case 2: {
          const bool wants = model.div(p0, p1, d, compat);
          good = sequence.div(p0, p1, d, compat).ok();
          same = good == wants;
          break;
        }
        case 3: {
          Sequence slice = before;  // whatever the target held
          good = slice.copy(sequence, p0, p1, compat).ok();
          same = good || slice == before;
          same = same && good == Model::range_ok(p0, p1, compat);
          if (good) {
            Model cut = model;
            std::erase_if(cut.cells,
                          [&](const auto& one) { return !Model::in(one.second.pos, p0, p1); });
            same = same && agree(slice, cut);
            same = same && *sequence.count(p0, p1, compat) == cut.cells.size();
            if (random() % 4 == 0) sequence = slice, model = cut;
          }
          break;
        }
        case 4: {
          const auto n = static_cast<uint32_t>(pick(random, 0, 20));
          const bool wants = model.canonical() && model.cells.size() + n <= capacity;
          good = sequence.append(n).ok();
          same = good == wants;
          const auto begin = static_cast<uint32_t>(model.cells.size());
          for (uint32_t i = 0; good && i < n; ++i) model.cells[begin + i] = {begin + i, begin + i};
          break;
        }
        case 5: {
          const auto to = static_cast<uint32_t>(pick(random, 0, 42));
          const uint32_t stays = std::min(to, model.length());
          std::erase_if(model.cells, [&](const auto& one) { return one.first >= stays; });
          sequence.truncate(to);
          break;
        }
        case 6: {  // what follows the first hole moves up to it
          int64_t hole = 0, end = -1;
          const auto holds = [&](int64_t pos) {
            return std::any_of(model.cells.begin(), model.cells.end(),
                               [pos](const auto& one) { return one.second.pos == pos; });
          };
          while (holds(hole)) ++hole;
          for (int64_t pos = hole; pos < 42 && end < 0; ++pos)
            if (holds(pos)) end = pos;
          if (end < 0) break;
          same = model.add(end, -1, hole - end, compat) && sequence.add(end, -1, hole - end).ok();
          break;
        }
        default:
          applied += model.can_apply() && !model.canonical();
          same = check_plan(&sequence, &model);
          break;
      }
      refused += !good;
      if (!good) same = same && sequence == before;
      if (same && agree(sequence, model)) continue;
      std::fprintf(stderr, "sequence: seed %u, step %d differs from the model\n", seed, step);
      CHECK(false);
      return;
    }
  }
  CHECK(operations == 180'000);
  CHECK(refused > 5'000);  // the errors were reached,
  CHECK(applied > 100);    // and plans that move data
  std::printf("sequence: %llu operations, %llu refused, %llu plans with moves\n",
              static_cast<unsigned long long>(operations), static_cast<unsigned long long>(refused),
              static_cast<unsigned long long>(applied));
}

TEST(a_removed_middle_is_pending_until_it_is_closed_and_applied) {
  Sequence sequence(16);
  CHECK(sequence.append(10).ok());
  CHECK(sequence.rm(2, 5).ok());
  CHECK(sequence.pending().find("[2, 5) are a hole") != std::string::npos);
  CHECK(sequence.pending().find("seq_add(5, -1, -3)") != std::string::npos);
  CHECK(sequence.append(1).error().code == Status::INVALID_STATE);
  CHECK(sequence.plan(0).error().code == Status::KV_INVALID_SEQUENCE);
  CHECK(sequence.add(5, -1, -3).ok());
  CHECK(sequence.pending().find("5 cells is pending") != std::string::npos);
  const Plan plan = *sequence.plan(1);
  CHECK(
      (plan == Plan{{MoveOp::RANGE_COPY, 1, 1, 5, 2, 5, 0}, {MoveOp::ROTATE, 1, 1, 2, 2, 5, -3}}));
  sequence.applied();
  CHECK(sequence.canonical() && sequence.length() == 7);
}

TEST(errors_name_the_field_and_change_nothing) {
  Sequence sequence(8);
  CHECK(sequence.append(8).ok());
  const Sequence before = sequence;
  const auto says = [](const Result<void>& got, Status code, const char* text) {
    return !got.ok() && got.error().code == code &&
           got.error().message.find(text) != std::string::npos;
  };
  CHECK(says(sequence.rm(-2, 3), Status::INVALID_ARGUMENT, "p0=-2"));
  CHECK(says(sequence.rm(0, -2), Status::INVALID_ARGUMENT, "p1=-2"));
  CHECK(says(sequence.div(0, -1, 0), Status::INVALID_ARGUMENT, "d=0"));
  CHECK(says(sequence.div(0, -1, INT64_MIN), Status::INVALID_ARGUMENT, "d="));
  CHECK(says(sequence.add(7, -1, 1), Status::OUT_OF_RANGE, "d=1: position 7"));
  CHECK(says(sequence.add(0, -1, INT64_MAX), Status::OUT_OF_RANGE, "d="));
  CHECK(says(sequence.append(1), Status::OUT_OF_RANGE, "8 cells filled + 1"));
  CHECK(sequence == before);
  CHECK(sequence.add(8, -1, INT64_MAX).ok());  // touches nothing
  CHECK(sequence == before);
  CHECK(sequence.add(0, -1, INT64_MIN).ok());
  CHECK(sequence.cells() == 0);
}

TEST(context_shift_clamps_every_number) {
  constexpr int64_t kNumbers[] = {INT64_MIN, -1,        0,  1,  9,         10,
                                  11,        1LL << 31, 99, -7, 1LL << 40, INT64_MAX};
  for (const uint32_t n : {0u, 1u, 2u, 10u, 4096u}) {
    for (const uint32_t capacity : {1u, 3u, 4u, 10u, 4096u}) {
      for (const int64_t keep : kNumbers) {
        for (const int64_t discard : kNumbers) {
          const Shift shift = context_shift(n, capacity, keep, discard);
          CHECK(shift.keep <= (capacity < 4 ? 0 : capacity - 4));
          CHECK(shift.discard == 0 || shift.keep + shift.discard < n);
        }
      }
    }
  }
  CHECK(context_shift(100, 128, 10, 0).discard == 45);
  CHECK(context_shift(100, 128, 10, 1000).discard == 89);
  CHECK(context_shift(100, 128, 10, 7).discard == 7);
}

TEST(chunks_are_found_behind_the_common_prefix) {
  const std::vector<int32_t> held = {1, 2, 9, 9, 3, 4, 5, 8, 6, 7}, wanted = {1, 2, 3, 4, 5, 6, 7};
  const auto chunks = *matching_chunks(held, wanted, 2);
  CHECK(chunks.size() == 2);
  CHECK(chunks[0].from == 4 && chunks[0].to == 2 && chunks[0].n == 3);
  CHECK(chunks[1].from == 8 && chunks[1].to == 5 && chunks[1].n == 2);
  CHECK(matching_chunks(held, wanted, 3)->size() == 1);
  CHECK(matching_chunks(held, wanted, 4)->empty());
  CHECK(matching_chunks({}, wanted, 1)->empty());
  CHECK(matching_chunks(held, {}, 1)->empty());
  CHECK(matching_chunks(held, wanted, 0).error().code == Status::INVALID_ARGUMENT);
}

TEST(support_says_how_or_what_is_missing) {
  for (int op = 0; op < kSeqOps; ++op) {
    const auto name = static_cast<SeqOp>(op);
    CHECK(support_of(name, MoveCaps::all()).how == How::NATIVE);
    CHECK(!support_of(name, {}).why.empty());
  }
  const auto how = [](SeqOp op, const MoveCaps& caps) { return support_of(op, caps).how; };
  for (const SeqOp op : {SeqOp::RM_TAIL, SeqOp::KEEP, SeqOp::CLEAR})
    CHECK(how(op, {}) == How::NATIVE);
  for (const SeqOp op : {SeqOp::CP_FULL, SeqOp::CP_PREFIX}) {
    CHECK(how(op, {}) == How::RECOMPUTE);
    CHECK(how(op, {.lane_copy = true}) == How::NATIVE);
    CHECK(how(op, {.read = true, .write = true}) == How::HOST);
  }
  CHECK(how(SeqOp::CP_RANGE, {.lane_copy = true}) == How::UNSUPPORTED);
  CHECK(how(SeqOp::CP_RANGE, {.range_copy = true}) == How::NATIVE);
  for (const SeqOp op : {SeqOp::RM_MIDDLE, SeqOp::ADD, SeqOp::DIV, SeqOp::SHIFT}) {
    CHECK(how(op, {.lane_copy = true, .range_copy = true}) == How::UNSUPPORTED);
    CHECK(how(op, {.rotate = true}) == How::UNSUPPORTED);
    CHECK(how(op, {.range_copy = true, .rotate = true}) == How::NATIVE);
    CHECK(how(op, {.read = true, .write = true}) == How::UNSUPPORTED);
    CHECK(how(op, {.read = true, .write = true, .host_rotate = true}) == How::HOST);
    CHECK(how(op, {.rotate = true, .read = true, .write = true}) == How::HOST);
  }
  CHECK(how(SeqOp::SAVE, {.read = true}) == How::NATIVE);
  CHECK(how(SeqOp::LOAD, {.read = true}) == How::UNSUPPORTED);
}
