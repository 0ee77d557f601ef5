// SPDX-License-Identifier: Apache-2.0
// Binding sets and jobs. What a job came to is known here: only what the driver alone can say is
// asked for.
#include <algorithm>

#include "layers/isolate/entries.h"
#include "layers/isolate/stub.h"

namespace calrt::isolate::own {
namespace {

using layers::Entry;

// From a job's deadline to the answer that says that its submit has not come back.
constexpr uint64_t kGraceNs = 800'000'000;

void put_bindings(Writer& out, const cald_binding* bindings, uint32_t count) {
  if (bindings == nullptr) count = 0;
  out.pod(count);
  for (uint32_t i = 0; i < count && out.good(); ++i) {
    out.pod(bindings[i].role);
    out.pod(bindings[i].reserved);
    out.pod(token_of(bindings[i].buffer));
    out.pod(bindings[i].offset);
    out.pod(bindings[i].bytes);
  }
}

// submit and kv_submit: `put_rest` writes what is special to either.
template <class Desc, class PutRest>
cald_status start(Entry entry, Object& session, const Desc& desc, cald_job** out, cald_error* error,
                  PutRest&& put_rest) {
  Remote& remote = *session.remote;
  const uint64_t now = now_ns();
  uint64_t until = now + remote.patience().entry_ns;
  if (!session.virtual_clock && desc.deadline_ns < until)
    until = std::min(until, std::max(desc.deadline_ns, now) + kGraceNs);
  Job* job =
      remote.jobs().add(&remote, desc.job_seq, desc.on_complete, desc.user, !session.virtual_clock);
  bool ran = false;
  cald_status status = CALD_OK;
  {
    // Before the call has its channel, as flush_released() waits for this one.
    const std::vector<uint64_t> released = remote.take_released();
    Call call(remote, entry, error, until);
    call.out().array(static_cast<uint32_t>(released.size()), released.data());
    call.out().pod(session.token);
    call.out().pod(job->token);
    call.out().pod(static_cast<uint8_t>(desc.on_complete != nullptr));
    put_rest(call.out());
    ran = call.run();
    remote.released();
    status = call.status();
    if (ran && status == CALD_OK && call.in().get<uint8_t>() == 0) {  // OK, and no handle
      remote.jobs().forget(job);
      return status;
    }
    // What ended before this one was accepted has been told, as the room that it left is known.
    if (ran && status == CALD_OK) remote.wait_taken(call.ring_position());
  }
  if (!ran && remote.jobs().refuse(job, remote.lost())) {
    *out = reinterpret_cast<cald_job*>(job);  // it has been told to have ended: so it was accepted
    return CALD_OK;
  }
  if (!ran) return status;
  if (status != CALD_OK) {
    remote.jobs().refuse(job, false);
    return status;
  }
  *out = reinterpret_cast<cald_job*>(job);
  remote.jobs().accept(job);
  remote.watch_jobs();
  return CALD_OK;
}

}  // namespace

cald_status binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                             uint32_t n_bindings, cald_binding_set** out, cald_error* error) {
  Object& on = *object_of(model);
  Call call(*on.remote, Entry::binding_set_make, error);
  call.out().pod(on.token);
  call.out().pod(graph);
  put_bindings(call.out(), bindings, n_bindings);
  if (!call.run()) return call.status();
  get(call.in(), on, out);
  return call.in().good() ? call.status() : call.nonsense();
}

cald_status submit(cald_session* session, const cald_job_desc* given, cald_job** out,
                   cald_error* error) {
  const cald_job_desc desc = whole(*given);
  return start(Entry::submit, *object_of(session), desc, out, error, [&](Writer& w) {
    w.pod(desc.struct_size);
    w.pod(desc.graph);
    w.pod(token_of(desc.model));
    w.pod(desc.job_seq);
    w.pod(desc.deadline_ns);
    w.pod(token_of(desc.set));
    put_bindings(w, desc.bindings, desc.n_bindings);
  });
}

cald_status kv_submit(cald_session* session, const cald_kv_desc* given, cald_job** out,
                      cald_error* error) {
  const cald_kv_desc desc = whole(*given);
  return start(Entry::kv_submit, *object_of(session), desc, out, error, [&](Writer& w) {
    w.pod(desc.struct_size);
    w.pod(desc.op);
    w.pod(token_of(desc.model));
    w.pod(desc.lane);
    w.pod(desc.to_lane);
    w.pod(desc.cell);
    w.pod(desc.to_cell);
    w.pod(desc.n);
    w.pod(desc.delta);
    w.pod(token_of(desc.buffer));
    w.pod(desc.offset);
    w.pod(desc.bytes);
    w.pod(desc.job_seq);
    w.pod(desc.deadline_ns);
  });
}

// Its end is known here, its beginning and the reason of a failure by the driver.
cald_status job_query(cald_job* handle, int32_t* state, cald_error* error) {
  Job& job = *job_of(handle);
  cald_completion end = job.remote->jobs().ending(&job);
  const bool ended = end.struct_size != 0;
  const bool failed = ended && end.state == CALD_JOB_FAILED;
  if (!ended || (failed && error != nullptr && !job.remote->lost())) {
    Call call(*job.remote, Entry::job_query, error);
    call.out().pod(job.token);
    call.out().pod(static_cast<uint8_t>(ended));
    if (call.run()) {
      const auto told = call.in().get<int32_t>();
      if (!call.in().good()) return call.nonsense();
      if (!ended) {  // its end, if the driver shows it by now, is told before it is shown here
        if (call.status() == CALD_OK && told > CALD_JOB_RUNNING)
          (void)job.remote->jobs().wait(&job, now_ns() + kGraceNs);
        end = job.remote->jobs().ending(&job);
        *state = end.struct_size != 0                                  ? end.state
                 : told == CALD_JOB_QUEUED || call.status() != CALD_OK ? told
                                                                       : CALD_JOB_RUNNING;
        return call.status();
      }
      *state = end.state;
      return CALD_OK;
    }
    if (!ended) {
      // Lost: its end is being told.
      if (!job.remote->jobs().wait(&job, now_ns() + kGraceNs)) return call.status();
      end = job.remote->jobs().ending(&job);
    }
  }
  *state = end.state;
  if (end.state != CALD_JOB_FAILED) return CALD_OK;
  cald_error why{};
  why.code = end.status;
  why.native_code = end.native_code;
  const bool lost = end.status == CALD_DEVICE_LOST && job.remote->lost();
  std::snprintf(why.message, sizeof why.message, "%s", lost ? job.remote->why().c_str() : "");
  std::snprintf(why.where, sizeof why.where, "%s", lost ? "job" : "");
  give_error(error, why);
  return CALD_OK;
}

cald_status job_wait(cald_job* handle, uint64_t deadline_ns, cald_error* error) {
  Job& job = *job_of(handle);
  if (job.remote->jobs().wait(&job, deadline_ns)) return CALD_OK;
  cald_error why{};
  why.code = CALD_WAIT_TIMEOUT;
  std::snprintf(why.message, sizeof why.message, "job %llu has not ended by the time given",
                static_cast<unsigned long long>(job.job_seq));
  std::snprintf(why.where, sizeof why.where, "job_wait");
  give_error(error, why);
  return CALD_WAIT_TIMEOUT;
}

cald_status job_cancel(cald_job* handle, cald_error* error) {
  Job& job = *job_of(handle);
  if (job.remote->jobs().ending(&job).struct_size != 0) return CALD_OK;  // nothing to cancel
  Call call(*job.remote, Entry::job_cancel, error);
  call.out().pod(job.token);
  (void)call.run();
  return call.status();
}

cald_status job_timing(cald_job* handle, cald_timing* out, cald_error* error) {
  Job& job = *job_of(handle);
  Call call(*job.remote, Entry::job_timing, error);
  call.out().pod(job.token);
  call.out().pod(static_cast<uint8_t>(job.remote->jobs().ending(&job).struct_size != 0));
  put(call.out(), out);
  if (!call.run()) return call.status();
  cald_timing filled{};
  carry(call.in(), filled);
  if (!call.in().good()) return call.nonsense();
  give(out, filled);
  return call.status();
}

// The child forgets it with the next submit, or before anything is closed.
void job_destroy(cald_job* handle) {
  if (handle == nullptr) return;
  Job& job = *job_of(handle);
  Remote& remote = *job.remote;
  const uint64_t token = job.token;
  remote.jobs().forget(&job);
  if (!remote.lost()) remote.release(token);
}

}  // namespace calrt::isolate::own
