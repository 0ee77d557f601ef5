// SPDX-License-Identifier: Apache-2.0
// Defects of KV operations: what is asked of mock is not what was asked of us.
#include <algorithm>

#include "drivers/mock/session.h"
#include "tests/drivers/defective_hook.h"

namespace calrt::defective {
namespace {

// Done at once, in a way of its own; a job that does nothing takes its place.
void turn_into_nothing(cald_kv_desc* desc) {
  desc->op = CALD_KV_ROTATE;
  desc->cell = 0;
  desc->lane = 0;
  desc->n = 1;
  desc->delta = 0;
}

void clamp(cald_kv_desc* desc) {
  const mock::LoadPlan& plan = desc->model->plan;
  desc->lane = std::min(desc->lane, plan.lanes - 1);
  desc->to_lane = std::min(desc->to_lane, plan.lanes - 1);
  desc->cell = std::min(desc->cell, plan.cells - 1);
  desc->to_cell = std::min(desc->to_cell, plan.cells - 1);
  desc->n = std::min({desc->n, plan.cells - desc->cell, plan.cells - desc->to_cell});
  if (desc->buffer != nullptr) desc->bytes = desc->n * mock::kCellBytes;
}

void misread(cald_kv_desc* desc) {
  const uint32_t cells = desc->model->plan.cells;
  mock::Cells& arena = desc->model->cells;
  switch (desc->op) {
    case CALD_KV_CLEAR:
      if (is("clear_one_less") && desc->n > 1) desc->n -= 1;
      if (is("clear_one_more") && desc->cell + desc->n < cells) desc->n += 1;
      break;
    case CALD_KV_LANE_COPY:
      if (is("lane_copy_half")) desc->n = std::max(desc->n / 2, 1u);
      if (is("lane_copy_whole")) desc->n = cells;
      if (is("lane_copy_moves")) {
        arena.copy(desc->lane, 0, desc->to_lane, 0, desc->n);
        arena.clear(desc->lane, 0, desc->n);
        turn_into_nothing(desc);
      }
      if (is("kv_overtakes")) {
        arena.copy(desc->lane, 0, desc->to_lane, 0, desc->n);
        turn_into_nothing(desc);
      }
      break;
    case CALD_KV_RANGE_COPY:
      if (is("range_copy_to_0")) desc->to_cell = desc->cell;
      if (is("range_copy_forwards")) {
        for (uint32_t i = 0; i < desc->n; ++i)
          arena.copy(desc->lane, desc->cell + i, desc->to_lane, desc->to_cell + i, 1);
        turn_into_nothing(desc);
      }
      break;
    case CALD_KV_ROTATE:
      if (is("rotates_too_far") && desc->delta != 0) desc->delta += 1;
      if (is("rotates_backwards")) desc->delta = -desc->delta;
      if (is("rotates_lane")) desc->n = cells - desc->cell;
      break;
    case CALD_KV_READ:
      if (is("read_one_short") && desc->n > 1) {
        desc->n -= 1;
        desc->bytes -= mock::kCellBytes;
      }
      if (is("read_overrun")) desc->buffer->data[desc->offset + desc->bytes] ^= 0xFF;
      break;
    case CALD_KV_WRITE:
      if (is("write_next_cell") && desc->cell + desc->n < cells) desc->cell += 1;
      if (is("write_lane_0")) desc->lane = 0;
      break;
    default:
      break;
  }
}

cald_status kv_submit(cald_session* session, const cald_kv_desc* given, cald_job** out,
                      cald_error* err) {
  cald_kv_desc desc = mock::taken(*given);
  if (is("kv_two_ops") && desc.op == (CALD_KV_CLEAR | CALD_KV_LANE_COPY)) desc.op = CALD_KV_CLEAR;
  if (is("kv_clamps")) clamp(&desc);
  const uint64_t need = desc.n * mock::kCellBytes;
  if (is("kv_any_bytes") && desc.buffer != nullptr && desc.bytes < need) desc.bytes = need;
  if (is("kv_foreign_buffer") && desc.buffer != nullptr && desc.buffer->device != session->device())
    turn_into_nothing(&desc);
  const bool right = desc.lane < desc.model->plan.lanes && desc.to_lane < desc.model->plan.lanes &&
                     uint64_t{desc.cell} + desc.n <= desc.model->plan.cells &&
                     uint64_t{desc.to_cell} + desc.n <= desc.model->plan.cells &&
                     (desc.buffer == nullptr || desc.buffer->holds(desc.offset, desc.bytes));
  if (right) misread(&desc);
  hook_in(&desc);
  const cald_status status = mock().kv_submit(session, &desc, out, err);
  if (status == CALD_OK) note_job(*out, nullptr);
  return status;
}

}  // namespace

void wrap_kv(cald_driver_table* table) { table->kv_submit = kv_submit; }

}  // namespace calrt::defective
