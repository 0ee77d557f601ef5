// SPDX-License-Identifier: Apache-2.0
// Every nth allocation of every call of a lane table fails in turn: OUT_OF_HOST_MEMORY, and all
// that can be seen is as before; with the memory it works.
#include "tests/failing_new.h"
#include "tests/lane_world.h"

using namespace calrt;
using namespace calrt::kv;
using namespace calrt::testing;

namespace {

int failed_in_all = 0;

// Three owned lanes (a hole in the second, the third empty), one parked, one free; a hosted blob.
struct Table : LaneWorld {
  LaneRef a, b, c;
  uint32_t parked = 0;
  uint64_t blob = 0;
  Table() : LaneWorld(5) {
    a = own(20);
    b = own(20);
    c = own(0);
    CHECK(table->seq_rm(b, 4, 6).ok() && table->seq_add(b, 10, -1, 2).ok());
    parked = park(7, 16);
    blob = host(8, 12, 100);
  }
  std::string all() const { return seen({a, b, c}); }

  // call() returns a Result or a Status; `last` is what it says when it has all it wants.
  template <class Call>
  void fails(Status last, int line, Call&& call) {
    const std::string before = all();
    Status code = Status::OK;
    failed_in_all += each_allocation_fails(
        [&] { code = call(); },
        [&] {
          if (code != Status::OUT_OF_HOST_MEMORY || all() != before || !whole()) {
            std::fprintf(stderr, "line %d: status %d\n", line, static_cast<int>(code));
            CHECK(all() == before);
          }
          CHECK(code == Status::OUT_OF_HOST_MEMORY);
        });
    if (code != last) std::fprintf(stderr, "line %d: status %d\n", line, static_cast<int>(code));
    CHECK(code == last && whole());
  }
};

template <class T>
Status code_of(const Result<T>& got) {
  return got.ok() ? Status::OK : got.error().code;
}

// A table of its own for each call, as `t`.
#define FAILS_AS(last, call)                                                 \
  do {                                                                       \
    Table t;                                                                 \
    t.fails(Status::last, __LINE__, [&] { return code_of(t.table->call); }); \
  } while (0)
#define FAILS(call) FAILS_AS(OK, call)

}  // namespace

TEST(sequences) {
  FAILS(seq_rm(t.a, 5, 8));
  FAILS(seq_rm(t.b, 5, 8));
  FAILS(seq_rm_all(2, 4));
  FAILS(seq_keep(t.a));
  FAILS(seq_add(t.a, 5, 8, 1));
  FAILS(seq_div(t.a, 0, -1, 3));
  FAILS(seq_cp(t.b, t.c, 0, 9));
  FAILS(clear(t.b));
  FAILS(shift(t.a, 2, 3));
  FAILS(truncate(t.b, 2));
  FAILS(pos_min(t.b));
  FAILS(pos_max(t.b));
  FAILS(sequence(t.b));
  FAILS_AS(INVALID_ARGUMENT, seq_div(t.a, 0, -1, 0));
  FAILS_AS(OUT_OF_RANGE, seq_add(t.a, 0, -1, 1000));
}

TEST(jobs_and_moves) {
  FAILS(begin_job(t.a, 1000, 5, true));
  FAILS(begin_job(t.c, 1000, 5, true));
  FAILS(begin_copy(t.b, t.c, 0, -1, 1000));
  FAILS(begin_write(t.c, 1000, 9));
  FAILS(begin_read(t.a, 1000));
  FAILS_AS(KV_INVALID_SEQUENCE, begin_apply(t.b, 1000));
  FAILS_AS(INVALID_STATE, begin_reuse(t.c, 1000));
  FAILS_AS(INVALID_STATE, begin_spill(t.c, 1000));
  FAILS_AS(OUT_OF_RANGE, begin_job(t.a, 1000, 60, true));
  Table t;
  CHECK(t.table->shift(t.a, 2, 3).ok());
  t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->begin_apply(t.a, 1000)); });
  CHECK(t.table->end_job(t.a, 1000, true, true) && t.length(t.a.lane) == 17);
}

TEST(admission) {
  FAILS(can_allocate(3));
  FAILS_AS(OUT_OF_RANGE, can_allocate(65));
  FAILS_AS(OUT_OF_RANGE, try_reserve(65, 0));
  FAILS_AS(KV_NO_CAPACITY, try_reserve(1, 0, t.a.lane, true));
  FAILS(release(t.b));
  FAILS_AS(INVALID_HANDLE, release({t.a.lane, 9, t.a.lease}));
  FAILS(snapshot(t.a));
  // In place, copied, hosted, and with an eviction.
  for (const uint32_t n : {17u, 12u}) {
    Table t;
    const Prefix prompt = LaneWorld::prefix(7, n);
    Result<Reservation> got = fail(Status::INTERNAL, "none");
    t.fails(Status::OK, __LINE__, [&] { return code_of(got = t.reuse(prompt)); });
    CHECK(got->reuse().kind == (n == 17 ? Reuse::Kind::IN_PLACE : Reuse::Kind::COPY));
    t.fails(Status::OK, __LINE__, [&] { return code_of(got->commit()); });
    if (n == 12)
      t.fails(Status::OK, __LINE__,
              [&] { return code_of(t.table->begin_reuse(got->ref(), 9999)); });
  }
  Table t;
  const Prefix prompt = LaneWorld::prefix(8, 13);
  Result<Reservation> hosted = fail(Status::INTERNAL, "none");
  Result<Reservation> evicts = fail(Status::INTERNAL, "none");
  t.fails(Status::OK, __LINE__, [&] { return code_of(hosted = t.reuse(prompt)); });
  CHECK(hosted->reuse().kind == Reuse::Kind::HOSTED);
  t.fails(Status::OK, __LINE__, [&] { return code_of(evicts = t.table->try_reserve(8, 0)); });
  CHECK(evicts->evicted() && evicts->evicted()->prefix.tokens.size() == 16);
  t.fails(Status::OK, __LINE__, [&] { return code_of(evicts->commit()); });
  t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->begin_spill(evicts->ref(), 9999)); });
}

TEST(prefixes) {
  {
    Table t;
    Prefix mine = LaneWorld::prefix(9, 20);
    t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->park(t.a, std::move(mine), 1)); });
    CHECK(t.state(t.a.lane) == LaneState::PARKED);
  }
  {
    Table t;
    Prefix mine = LaneWorld::prefix(9, 20);
    std::vector<uint64_t> evicted;
    Result<uint64_t> id = uint64_t{0};
    t.fails(Status::OK, __LINE__, [&] {
      return code_of(id = t.table->begin_hosted(std::move(mine), (1 << 20) - 50, 0, &evicted));
    });
    CHECK(evicted == std::vector<uint64_t>{t.blob});
    t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->end_hosted(*id, true)); });
    t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->drop_hosted(*id)); });
  }
  FAILS(unpark(t.parked));
  FAILS(clear_prefixes());
  FAILS(drop_reuse(t.a));
  FAILS_AS(INVALID_STATE, unpark(t.a.lane));
  FAILS_AS(INVALID_STATE, enable_prefixes(4));
  const Prefix wanted = LaneWorld::prefix(7, 9);
  FAILS(find_prefix(wanted));
}

TEST(recovery) {
  Table t;
  CHECK(t.table->begin_job(t.a, 1000, 5, true).ok() && t.table->end_job(t.a, 1000, false, true));
  t.fails(Status::KV_POISONED, __LINE__, [&] { return code_of(t.table->seq_keep(t.a)); });
  t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->begin_scrub(t.a.lane)); });
  t.fails(Status::INVALID_STATE, __LINE__, [&] { return code_of(t.table->begin_scrub(t.a.lane)); });
  t.fails(Status::OK, __LINE__, [&] { return code_of(t.table->end_scrub(t.a.lane, true)); });
  CHECK(t.state(t.a.lane) == LaneState::RESERVED && t.length(t.a.lane) == 0);
}

TEST(many_allocations_failed) {
  std::printf("%d allocations failed\n", failed_in_all);
  CHECK(failed_in_all >= 50);
}
