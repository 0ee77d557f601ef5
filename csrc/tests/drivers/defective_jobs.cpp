// SPDX-License-Identifier: Apache-2.0
// Defects of submit and of what is told of a job.
#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "drivers/mock/session.h"
#include "tests/drivers/defective_hook.h"

namespace calrt::defective {
namespace {

std::recursive_mutex& hooks_mutex() {
  static std::recursive_mutex& one = *new std::recursive_mutex;
  return one;
}
std::deque<Hook>& hooks() {
  static std::deque<Hook>& all = *new std::deque<Hook>;  // outlives every thread
  return all;
}
constexpr uint64_t kScratchBytes = 1 << 20;
uint64_t last_seq = 0, ended = 0;
std::pair<Hook*, cald_completion> held;  // of completions_swapped

void tell(const Hook& hook, const cald_completion& completion) {
  if (hook.on_complete != nullptr || is("needs_callback")) hook.on_complete(hook.user, &completion);
}

// What a device would do wrong when a job ends, before anybody is told.
void spoil_output(const Hook& hook, const cald_completion& end) {
  if (hook.out == nullptr) return;
  unsigned char* const out = hook.out;
  const uint64_t n = hook.out_bytes;
  const bool done = end.state == CALD_JOB_DONE;
  if (done) {
    if (is("partial_output"))
      std::copy(hook.out_before.end() - 4, hook.out_before.end(), out + hook.row_bytes - 4);
    if (is("writes_behind_output")) out[n] ^= 0xFF;
    if (is("writes_before_output")) out[-1] ^= 0xFF;
    if (is("noise") && ++ended % 3 == 0) out[0] ^= 1;
    if (is("not_a_number")) std::memset(out + 4, 0xFF, 4);
    if (is("set_changes_result") && hook.with_set) out[8] ^= 1;
    if (is("stray_cell") && hook.lane > 0)
      hook.model->cells.write(static_cast<uint32_t>(hook.lane) - 1, 0, 1, 0);
  }
  if (end.state == CALD_JOB_FAILED && is("late_job_writes")) out[0] = 1;
  if (end.state == CALD_JOB_FAILED && is("late_job_writes_cell"))
    hook.model->cells.write(0, 1, 1, 1);
  if (end.state == CALD_JOB_CANCELLED && is("cancelled_writes")) out[0] = 1;
}

void on_complete(void* user, const cald_completion* completion) {
  const std::scoped_lock lock(hooks_mutex());
  Hook& hook = *static_cast<Hook*>(user);
  if (hook.inputs != nullptr) hook.inputs->restore();
  spoil_output(hook, *completion);
  cald_completion end = *completion;
  if (is("fails_after_writing") && hook.wrong) {
    end.state = CALD_JOB_FAILED;
    end.status = CALD_OUT_OF_RANGE;
    hook.model->cells.write(0, 1, 1, 1);
  }
  hook.end = end;
  if (is("job_seq_32_bits")) end.job_seq &= UINT32_MAX;
  if (is("stale_job_seq")) std::swap(end.job_seq, last_seq);
  if (is("reads_desc_late") && hook.desc != nullptr) end.job_seq = hook.desc->job_seq;
  if (is("kv_loses_job_seq") && hook.desc == nullptr) end.job_seq = 0;
  if (is("bytes_out_short") && end.bytes_out > 0) end.bytes_out -= 1;
  if (is("completion_other_state") && end.state == CALD_JOB_DONE) end.state = CALD_JOB_FAILED;
  if (end.state == CALD_JOB_FAILED && is("completion_status_99")) end.status = 99;
  if (end.state == CALD_JOB_FAILED && is("late_is_timeout")) end.status = CALD_WAIT_TIMEOUT;
  if (end.state == CALD_JOB_CANCELLED && is("cancelled_is_ok")) end.status = CALD_OK;
  if (end.state == CALD_JOB_CANCELLED && is("cancelled_not_told")) return;
  if (is("no_completion") && ++ended % 8 == 0) return;
  if (is("close_forgets_queued") && closing() && end.state == CALD_JOB_FAILED) return;
  if (is("completion_after_end") || is("ends_in_submit")) return;  // later, and earlier
  if (is("completions_swapped") && hook.desc != nullptr) {
    if (held.first == nullptr && end.job_seq == 2) {
      held = {&hook, end};
      return;
    }
    tell(hook, end);
    if (held.first != nullptr) tell(*held.first, held.second);
    held = {};
    return;
  }
  tell(hook, end);
  if (is("double_completion")) tell(hook, end);
}

// Memory of a device that a job may be bound to in place of what it was given.
cald_buffer* scratch_of(cald_device* device) {
  static std::map<const cald_device*, cald_buffer*> all;
  cald_buffer*& scratch = all[device];
  if (scratch == nullptr)
    (void)mock().buffer_alloc(device, CALD_DOMAIN_HOST, kScratchBytes, 64, &scratch, nullptr);
  return scratch;
}

// Bindings that mock would refuse, made good.
std::vector<cald_binding> mended(const cald_job_desc& desc) {
  std::vector<cald_binding> bindings(desc.bindings, desc.bindings + desc.n_bindings);
  if (is("ignores_unknown_role"))
    std::erase_if(bindings, [](const cald_binding& binding) { return binding.role == 29; });
  for (cald_binding& binding : bindings) {
    if (is("takes_foreign_buffer") && binding.buffer->device != desc.model->device) {
      cald_buffer* ours = scratch_of(desc.model->device);
      std::memcpy(ours->data, binding.buffer->data, binding.buffer->bytes);
      binding.buffer = ours;
    }
    if (is("takes_unaligned")) binding.offset &= ~uint64_t{63};
    if (is("takes_no_rows") && binding.role == CALD_ROLE_LOGIT_ROWS && binding.bytes == 0)
      binding.bytes = 4;
    if (is("takes_outside") && !binding.buffer->holds(binding.offset, binding.bytes)) {
      binding.offset = 0;
      binding.bytes = std::min(binding.bytes, binding.buffer->bytes);
    }
    if (is("takes_too_small") && binding.buffer->holds(binding.offset, binding.bytes))
      binding.bytes = binding.buffer->bytes - binding.offset;
  }
  const bool no_output = std::none_of(bindings.begin(), bindings.end(), [](const auto& binding) {
    return binding.role == CALD_ROLE_LOGITS;
  });
  if (is("output_is_optional") && no_output) {
    bindings.push_back({CALD_ROLE_LOGITS, 0, scratch_of(desc.model->device), 0, kScratchBytes});
  }
  return bindings;
}

void look_at_output(Hook* hook, const std::vector<cald_binding>& bindings) {
  for (const cald_binding& binding : bindings) {
    if (!binding.buffer->holds(binding.offset, binding.bytes)) continue;
    unsigned char* at = binding.buffer->data + binding.offset;
    if (binding.role == CALD_ROLE_LANES) hook->lane = *reinterpret_cast<const int32_t*>(at);
    if (binding.role != CALD_ROLE_LOGITS || binding.bytes < 16) continue;
    hook->out = at;
    hook->out_bytes = binding.bytes;
    hook->row_bytes = hook->model->plan.vocab * uint64_t{4};
    hook->out_before.assign(at, at + hook->row_bytes);
  }
}

uint64_t deadline_of(const cald_job_desc& desc, cald_session* session) {
  const uint64_t now = now_of(session);
  if (is("ignores_deadline")) return CALD_NO_DEADLINE;
  if (is("deadline_at_submit_only") && desc.deadline_ns > now) return CALD_NO_DEADLINE;
  if (is("no_deadline_is_now") && desc.deadline_ns == CALD_NO_DEADLINE) return 1;
  if (is("job_fails")) return 1;
  return desc.deadline_ns;
}

cald_status submit(cald_session* session, const cald_job_desc* given, cald_job** out,
                   cald_error* err) {
  if (is("reads_behind_desc") && given->set != nullptr && given->struct_size < sizeof *given)
    return refuse(err, CALD_INVALID_HANDLE, "a set that there is not");
  cald_job_desc desc = mock::taken(*given);
  if (is("any_graph")) desc.graph %= static_cast<uint32_t>(desc.model->graphs.size());
  if (is("set_of_other_graph")) desc.set = nullptr;
  if (is("takes_foreign_model") && desc.model->device != session->device())
    return submit_nothing(session, desc, some_model(session->device()), out, err);
  if (is("set_keeps_array") && desc.set != nullptr && !set_is_as_made(desc.set))
    return refuse(err, CALD_INVALID_ARGUMENT, "the set's bindings have changed");
  const std::vector<cald_binding> bindings = mended(desc);
  desc.bindings = bindings.data();
  desc.n_bindings = static_cast<uint32_t>(bindings.size());
  if (is("queue_one_less") && unended(session) >= session->device()->preset->queue)
    return refuse(err, CALD_QUEUE_FULL, "the queue is full");

  Hook& hook = new_hook(desc.on_complete, desc.user);
  hook.desc = given;
  hook.model = desc.model;
  hook.with_set = desc.set != nullptr;
  look_at_output(&hook, bindings);
  if (desc.graph < desc.model->graphs.size()) {
    hook.inputs = std::make_unique<Inputs>(*desc.model, *desc.model->graph_list[desc.graph], desc);
    hook.inputs->misread();
  }
  desc.deadline_ns = deadline_of(desc, session);
  if (desc.on_complete != nullptr || is("needs_callback") || hook.inputs != nullptr) {
    desc.on_complete = on_complete;
    desc.user = &hook;
  }
  cald_status status = mock().submit(session, &desc, out, err);
  if (status == CALD_OUT_OF_RANGE && is("takes_any_value"))
    status = submit_nothing(session, desc, desc.model, out, err);
  if (status == CALD_OUT_OF_RANGE && is("fails_after_writing")) {
    hook.wrong = true;  // late, so that it fails
    status = submit_nothing(session, desc, desc.model, out, err, 1);
  }
  if (status == CALD_QUEUE_FULL && is("full_is_busy"))
    status = refuse(err, CALD_INVALID_STATE, "the queue is full");
  if (status != CALD_OK) {
    if (hook.inputs != nullptr) hook.inputs->restore();
    return status;
  }
  note_job(*out, &hook);
  if (is("ends_in_submit")) {
    cald_completion end{};
    end.struct_size = sizeof end;
    end.state = CALD_JOB_DONE;
    end.job_seq = given->job_seq;
    end.bytes_in = end.bytes_out = CALD_BYTES_UNKNOWN;
    tell(hook, end);
  }
  return status;
}

}  // namespace

Hook& new_hook(void (*told)(void*, const cald_completion*), void* user) {
  const std::scoped_lock lock(hooks_mutex());
  Hook& hook = hooks().emplace_back();
  hook.on_complete = told;
  hook.user = user;
  return hook;
}

void hook_in(cald_kv_desc* desc) {
  if (desc->on_complete == nullptr) return;
  Hook& hook = new_hook(desc->on_complete, desc->user);
  desc->on_complete = on_complete;
  desc->user = &hook;
}

void tell_now(Hook* hook) {
  if (hook != nullptr && hook->end.state != 0 && !hook->told_late) {
    hook->told_late = true;
    tell(*hook, hook->end);
  }
}

void tell_last_again() {
  const std::scoped_lock lock(hooks_mutex());
  if (!hooks().empty()) tell(hooks().back(), hooks().back().end);
}

// Nothing happens to lane 0: a turn of one cell by no position.
cald_status submit_nothing(cald_session* session, const cald_job_desc& in_place_of,
                           cald_model* model, cald_job** out, cald_error* err,
                           uint64_t deadline_ns) {
  cald_kv_desc nothing{};
  nothing.struct_size = sizeof nothing;
  nothing.op = CALD_KV_ROTATE;
  nothing.model = model;
  nothing.n = 1;
  nothing.job_seq = in_place_of.job_seq;
  nothing.deadline_ns = deadline_ns;
  nothing.on_complete = in_place_of.on_complete;
  nothing.user = in_place_of.user;
  return mock().kv_submit(session, &nothing, out, err);
}

void wrap_jobs(cald_driver_table* table) { table->submit = submit; }

}  // namespace calrt::defective
