// SPDX-License-Identifier: Apache-2.0
// The child's half of entries_jobs.cpp.
#include "isolate/job_waiter.h"
#include "isolate/served_own.h"

namespace calrt::isolate {
namespace {

constexpr uint64_t kSettleNs = 10'000'000'000;  // from a job's end to the driver's own view of it

// An end may be told a moment before the driver is through with the job.
bool settled(Program& program, cald_job* job) {
  return program.table->job_wait(job, program.host.now_ns(nullptr) + kSettleNs, nullptr) !=
         CALD_WAIT_TIMEOUT;
}

template <class T>
T* handle(Request& r) {
  return static_cast<T*>(r.program.handles.find(r.in.get<uint64_t>()));
}

std::vector<cald_binding> bindings_of(Request& r) {
  const auto count = r.in.get<uint32_t>();
  r.in.check(count <= kMessageBytes / sizeof(cald_binding));
  std::vector<cald_binding> bindings(r.in.good() ? count : 0);
  for (cald_binding& binding : bindings) {
    r.in.pod(binding.role);
    r.in.pod(binding.reserved);
    binding.buffer = handle<cald_buffer>(r);
    r.in.pod(binding.offset);
    r.in.pod(binding.bytes);
  }
  return bindings;
}

// submit and kv_submit: `call` reads what is special to either.
template <class Desc, class Read, class Entry>
cald_status start(Request& r, cald_error* error, Read&& read, Entry&& entry) {
  release(r.program, r.in);
  const auto session_token = r.in.get<uint64_t>(), token = r.in.get<uint64_t>();
  auto* session = static_cast<cald_session*>(r.program.handles.find(session_token));
  (void)r.in.get<uint8_t>();
  Desc desc{};
  desc.struct_size = std::min(r.in.get<uint32_t>(), static_cast<uint32_t>(sizeof desc));
  read(desc);
  if (!r.in.good()) return refuse_malformed(error);
  JobWaiter* waiter = nullptr;
  {
    const std::scoped_lock lock(r.program.waiters_mutex);
    const auto known = r.program.waiters.find(session_token);
    if (known != r.program.waiters.end()) waiter = known->second.get();
  }
  if (waiter == nullptr) {
    desc.on_complete = on_complete;
    desc.user = reinterpret_cast<void*>(token);
  }
  cald_job* job = nullptr;
  const cald_status status = entry(session, &desc, &job);
  if (job != nullptr && status == CALD_OK) {
    r.program.handles.add_job(token, job);
    if (waiter != nullptr) waiter->add(token, desc.job_seq, job);
  }
  r.out.pod(static_cast<uint8_t>(job != nullptr));
  return status;
}

}  // namespace

void release(Program& program, Reader& in) {
  for (auto left = in.get<uint32_t>(); left > 0 && in.good(); --left) {
    const auto token = in.get<uint64_t>();
    cald_job* job = program.handles.find_job(token);
    if (job == nullptr) continue;
    program.handles.forget_job(token);
    if (settled(program, job))
      program.table->job_destroy(job);
    else
      program.host.log(&program, CALD_LOG_ERROR, "isolate",
                       "a job has been told to have ended and job_wait does not say so: it is "
                       "kept for ever");
  }
}

namespace served {

cald_status binding_set_make(Request& r, cald_error* error) {
  auto* model = handle<cald_model>(r);
  const auto graph = r.in.get<uint32_t>();
  const std::vector<cald_binding> bindings = bindings_of(r);
  if (!r.in.good()) return refuse_malformed(error);
  cald_binding_set* set = nullptr;
  const cald_status status = r.program.table->binding_set_make(
      model, graph, bindings.data(), static_cast<uint32_t>(bindings.size()), &set, error);
  r.out.pod(r.program.handles.add(set));
  return status;
}

cald_status submit(Request& r, cald_error* error) {
  std::vector<cald_binding> bindings;
  return start<cald_job_desc>(
      r, error,
      [&](cald_job_desc& desc) {
        r.in.pod(desc.graph);
        desc.model = handle<cald_model>(r);
        r.in.pod(desc.job_seq);
        r.in.pod(desc.deadline_ns);
        desc.set = handle<cald_binding_set>(r);
        bindings = bindings_of(r);
        desc.n_bindings = static_cast<uint32_t>(bindings.size());
        desc.bindings = bindings.data();
      },
      [&](cald_session* session, const cald_job_desc* desc, cald_job** out) {
        return r.program.table->submit(session, desc, out, error);
      });
}

cald_status kv_submit(Request& r, cald_error* error) {
  return start<cald_kv_desc>(
      r, error,
      [&](cald_kv_desc& desc) {
        r.in.pod(desc.op);
        desc.model = handle<cald_model>(r);
        r.in.pod(desc.lane);
        r.in.pod(desc.to_lane);
        r.in.pod(desc.cell);
        r.in.pod(desc.to_cell);
        r.in.pod(desc.n);
        r.in.pod(desc.delta);
        desc.buffer = handle<cald_buffer>(r);
        r.in.pod(desc.offset);
        r.in.pod(desc.bytes);
        r.in.pod(desc.job_seq);
        r.in.pod(desc.deadline_ns);
      },
      [&](cald_session* session, const cald_kv_desc* desc, cald_job** out) {
        return r.program.table->kv_submit(session, desc, out, error);
      });
}

cald_status job_query(Request& r, cald_error* error) {
  cald_job* job = r.program.handles.find_job(r.in.get<uint64_t>());
  const bool ended = r.in.get<uint8_t>() != 0;
  if (!r.in.good() || job == nullptr) return refuse_malformed(error);
  if (ended) (void)settled(r.program, job);
  int32_t state = 0;
  const cald_status status = r.program.table->job_query(job, &state, error);
  r.out.pod(state);
  return status;
}

cald_status job_cancel(Request& r, cald_error* error) {
  cald_job* job = r.program.handles.find_job(r.in.get<uint64_t>());
  if (!r.in.good() || job == nullptr) return refuse_malformed(error);
  return r.program.table->job_cancel(job, error);
}

cald_status job_timing(Request& r, cald_error* error) {
  cald_job* job = r.program.handles.find_job(r.in.get<uint64_t>());
  const bool ended = r.in.get<uint8_t>() != 0;
  Held<cald_timing*> out(r, error);
  if (!r.in.good() || job == nullptr) return refuse_malformed(error);
  if (ended) (void)settled(r.program, job);
  const cald_status status = r.program.table->job_timing(job, out.argument(), error);
  out.reply(r);
  return status;
}

cald_status job_wait(Request&, cald_error* error) { return refuse_malformed(error); }
cald_status job_destroy(Request&, cald_error* error) { return refuse_malformed(error); }

}  // namespace served
}  // namespace calrt::isolate
