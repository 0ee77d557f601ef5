// SPDX-License-Identifier: Apache-2.0
// The arena of cells and the KV adapter. A sequence's cells are those of mock's lane of its number;
// the arena is only counted.
#include <sched.h>

#include <algorithm>

#include "state.h"

namespace calrt::standin {
namespace {

int check_seq(const calrt_model& model, uint32_t seq) {
  if (seq < model.taken.size()) return 0;
  return refuse(CALRT_E_KV_SEQ, "seq=%u of %zu", seq, model.taken.size());
}

// [p0, *p1) lies in the sequence's cells; the end is put in for UINT32_MAX.
int check_range(const calrt_model& model, uint32_t seq, uint32_t p0, uint32_t* p1) {
  const uint32_t end = model.taken[seq];
  if (*p1 == UINT32_MAX) *p1 = std::max(p0, end);
  if (p0 <= *p1 && *p1 <= end) return 0;
  return refuse(CALRT_E_KV_RANGE, "positions %u to %u, sequence %u has %u cells", p0, *p1, seq,
                end);
}

// Clears what lies beyond `n` cells and gives it back.
void shorten(calrt_model* model, uint32_t seq, uint32_t n) {
  const uint32_t had = model->taken[seq];
  model->cells.clear(seq, n, had - n);
  model->taken[seq] = n;
  model->free_cells += had - n;
}

void remove(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1) {
  if (p1 == model->taken[seq])
    shorten(model, seq, p0);
  else
    model->cells.clear(seq, p0, p1 - p0);
}

// Busy until the cells are there. The lock is given up again and again, so that others may release.
int apply(calrt_model* model, uint32_t seq, uint32_t n, Lock* lock) {
  if (n > model->desc.context)
    return refuse(CALRT_E_KV_RANGE, "n=%u, the context is %u", n, model->desc.context);
  const bool spins = due("apply_spins").has_value();
  for (;;) {
    STANDIN_CHECK(check_model(model));
    const uint32_t has = model->taken[seq];
    if (n <= has && !spins) return 0;
    if (!spins && n - has <= model->free_cells) {
      model->taken[seq] = n;
      model->free_cells -= n - has;
      return 0;
    }
    lock->unlock();
    sched_yield();
    lock->lock();
  }
}

// The operations on cells, where they are not silently none.
#define STANDIN_KV_ENTER(function, what, seq) \
  STANDIN_ENTER(function);                    \
  STANDIN_CHECK(check_model(model));          \
  STANDIN_CHECK(check_idle(*model, what));    \
  STANDIN_CHECK(check_seq(*model, seq))
#define STANDIN_KV_NOOP \
  if (due("kv_silent_noops")) return 0

int check_state(const calrt_model& model, uint32_t seq, uint32_t p0, uint32_t* p1,
                const void* memory, uint64_t bytes) {
  STANDIN_CHECK(check_range(model, seq, p0, p1));
  if (memory == nullptr) return refuse(CALRT_E_ARGUMENT, "the memory is null");
  const uint64_t need = uint64_t{*p1 - p0} * mock::kCellBytes;
  if (bytes == need) return 0;
  return refuse(CALRT_E_ARGUMENT, "bytes=%llu, %u cells are %llu", static_cast<ull>(bytes),
                *p1 - p0, static_cast<ull>(need));
}

}  // namespace
}  // namespace calrt::standin

using namespace calrt::standin;

int calrt_kv_apply(calrt_model* model, uint32_t seq, uint32_t n) {
  STANDIN_ENTER(kv_apply);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_seq(*model, seq));
  return apply(model, seq, n, &lock);
}

int calrt_kv_release(calrt_model* model, uint32_t seq) {
  STANDIN_KV_ENTER(kv_release, "release", seq);
  shorten(model, seq, 0);
  return 0;
}

int calrt_kv_free_cells(calrt_model* model, uint32_t* out) {
  STANDIN_ENTER(kv_free_cells);
  STANDIN_CHECK(check_model(model));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  *out = model->free_cells;
  return 0;
}

int calrt_kv_seq_cells(calrt_model* model, uint32_t seq, uint32_t* out) {
  STANDIN_ENTER(kv_seq_cells);
  STANDIN_CHECK(check_model(model));
  STANDIN_CHECK(check_seq(*model, seq));
  if (out == nullptr) return refuse(CALRT_E_ARGUMENT, "out is null");
  *out = model->taken[seq];
  return 0;
}

int calrt_kv_seq_copy(calrt_model* model, uint32_t from, uint32_t to, uint32_t p0, uint32_t p1) {
  STANDIN_KV_ENTER(kv_seq_copy, "copy", from);
  STANDIN_CHECK(check_seq(*model, to));
  STANDIN_CHECK(check_range(*model, from, p0, &p1));
  STANDIN_KV_NOOP;
  STANDIN_CHECK(apply(model, to, p1, &lock));
  STANDIN_CHECK(check_range(*model, from, p0, &p1));  // again: others came in between
  model->cells.copy(from, p0, to, p0, p1 - p0);
  return 0;
}

int calrt_kv_seq_keep(calrt_model* model, uint32_t seq) {
  STANDIN_KV_ENTER(kv_seq_keep, "keep", seq);
  for (uint32_t other = 0; other < model->taken.size(); ++other)
    if (other != seq) shorten(model, other, 0);
  return 0;
}

int calrt_kv_seq_rm(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1) {
  STANDIN_KV_ENTER(kv_seq_rm, "rm", seq);
  STANDIN_CHECK(check_range(*model, seq, p0, &p1));
  remove(model, seq, p0, p1);
  return 0;
}

int calrt_kv_seq_add(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1, int32_t delta) {
  STANDIN_KV_ENTER(kv_seq_add, "add", seq);
  STANDIN_CHECK(check_range(*model, seq, p0, &p1));
  const int64_t to = int64_t{p0} + delta, end = int64_t{p1} + delta;
  if (to < 0 || end > model->taken[seq])
    return refuse(CALRT_E_KV_RANGE, "positions %u to %u by %d, sequence %u has %u cells", p0, p1,
                  delta, seq, model->taken[seq]);
  STANDIN_KV_NOOP;
  if (p0 == p1 || delta == 0) return 0;
  const auto target = static_cast<uint32_t>(to);
  model->cells.copy(seq, p0, seq, target, p1 - p0);
  model->cells.rotate(seq, target, p1 - p0, delta);
  if (delta > 0)
    model->cells.clear(seq, p0, std::min(target, p1) - p0);
  else
    remove(model, seq, std::max(static_cast<uint32_t>(end), p0), p1);
  return 0;
}

int calrt_kv_seq_div(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1, uint32_t divisor) {
  STANDIN_KV_ENTER(kv_seq_div, "div", seq);
  STANDIN_CHECK(check_range(*model, seq, p0, &p1));
  if (divisor == 0) return refuse(CALRT_E_ARGUMENT, "divisor=0");
  STANDIN_KV_NOOP;
  for (uint32_t p = p0; p < p1; ++p) {  // upwards: nothing is overwritten before it has moved
    const uint32_t to = p / divisor;
    if (to == p) continue;
    model->cells.copy(seq, p, seq, to, 1);
    model->cells.rotate(seq, to, 1, static_cast<int32_t>(to) - static_cast<int32_t>(p));
    model->cells.clear(seq, p, 1);
  }
  return 0;
}

int calrt_kv_state_get(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1, void* out,
                       uint64_t bytes) {
  STANDIN_KV_ENTER(kv_state_get, "state_get", seq);
  STANDIN_CHECK(check_state(*model, seq, p0, &p1, out, bytes));
  STANDIN_KV_NOOP;
  model->cells.read(seq, p0, p1 - p0, static_cast<unsigned char*>(out));
  return 0;
}

int calrt_kv_state_set(calrt_model* model, uint32_t seq, uint32_t p0, uint32_t p1, const void* from,
                       uint64_t bytes) {
  STANDIN_KV_ENTER(kv_state_set, "state_set", seq);
  STANDIN_CHECK(check_state(*model, seq, p0, &p1, from, bytes));
  STANDIN_KV_NOOP;
  model->cells.write(seq, p0, p1 - p0, static_cast<const unsigned char*>(from));
  return 0;
}
