/* SPDX-License-Identifier: Apache-2.0
 * null's sessions and jobs: graph runs and KV operations alike end inside submit.
 *
 * A real driver queues the job and returns; a thread of its own runs the jobs of a session in
 * order: copy inputs in, infer, copy outputs out, on_complete exactly once, and only then the state
 * that job_wait sees. The bindings array is gone after submit (CALL), the buffers in it stay until
 * the end (UNTIL_DONE). */
#include "null_driver.h"

cald_status null_session_open(cald_device* device, uint32_t index, cald_session** out,
                              cald_error* err) {
  if (index != 0)
    return null_fail(err, CALD_OUT_OF_RANGE, "session_open", "session %u: there is 1", index);
  if (atomic_exchange(&device->session_open, 1))
    return null_fail(err, CALD_INVALID_STATE, "session_open", "session 0 is open already");
  cald_session* session = null_alloc(device, sizeof *session);
  if (session == NULL) {
    atomic_store(&device->session_open, 0);
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "session_open", "no memory for the session");
  }
  session->device = device;
  *out = session;
  return CALD_OK;
}

/* A real driver waits here for the running job and completes the queued ones as failed. */
void null_session_close(cald_session* session) {
  if (session == NULL) return;
  atomic_store(&session->device->session_open, 0);
  null_free(session->device, session);
}

/* ---- binding sets ------------------------------------------------------------------------- */

/* What need not be done again for each job is done here: checks, pinning, mapping, descriptors. */
cald_status null_binding_set_make(cald_model* model, uint32_t graph, const cald_binding* bindings,
                                  uint32_t n_bindings, cald_binding_set** out, cald_error* err) {
  if (graph >= model->info.n_graphs)
    return null_fail(err, CALD_OUT_OF_RANGE, "binding_set_make", "graph %u: the model has %u",
                     graph, model->info.n_graphs);
  const cald_status checked =
      null_check_bindings(model->device, bindings, n_bindings, "binding_set_make", err);
  if (checked != CALD_OK) return checked;
  cald_binding_set* set = null_alloc(model->device, sizeof *set);
  if (set == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "binding_set_make", "no memory for the set");
  set->model = model;
  set->graph = graph;
  *out = set;
  return CALD_OK;
}

void null_binding_set_free(cald_binding_set* set) {
  if (set != NULL) null_free(set->model->device, set);
}

/* ---- jobs --------------------------------------------------------------------------------- */

/* What graph runs and KV operations have in common: they are jobs. */
typedef struct null_work {
  uint64_t job_seq, deadline_ns;
  void (*on_complete)(void* user, const cald_completion* completion);
  void* user;
  const cald_binding* bindings;
  uint32_t n_bindings;
} null_work;

/* Host memory: what is bound has arrived. A driver that copies gives what its copies moved, or
 * CALD_BYTES_UNKNOWN if it cannot count. */
static void run(const null_work* work, cald_completion* end) {
  for (uint32_t i = 0; i < work->n_bindings; ++i) {
    const cald_binding* binding = &work->bindings[i];
    if (binding->role < CALD_ROLE_LOGITS) {
      end->bytes_in += binding->bytes;
    } else {
      end->bytes_out += binding->bytes;
      atomic_store_explicit(&binding->buffer->written_by, work->job_seq, memory_order_relaxed);
    }
  }
}

/* Makes the job and ends it. What every driver must see to: a job whose deadline has passed before
 * it began does not begin, and on_complete comes once, whatever the end. */
static cald_status run_at_once(cald_session* session, const null_work* work, cald_job** out,
                               cald_error* err) {
  cald_job* job = null_alloc(session->device, sizeof *job);
  if (job == NULL)
    return null_fail(err, CALD_OUT_OF_HOST_MEMORY, "submit", "no memory for the job");
  const uint64_t now = null_now(session->device);
  const int late = now >= work->deadline_ns;
  cald_completion end = {.struct_size = sizeof end,
                         .state = late ? CALD_JOB_FAILED : CALD_JOB_DONE,
                         .job_seq = work->job_seq,
                         .status = late ? CALD_EXECUTION_FAILED : CALD_OK};
  if (!late) run(work, &end);
  job->session = session;
  job->timing.submitted_ns = now;
  job->state = end.state;
  *out = job;
  null_trace_job(session->device, work->job_seq, now);
  if (work->on_complete != NULL) work->on_complete(work->user, &end); /* before submit returns */
  return CALD_OK;
}

cald_status null_submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                        cald_error* err) {
  if (desc->model->device != session->device)
    return null_fail(err, CALD_INVALID_HANDLE, "submit", "the model is another device's");
  if (desc->graph >= desc->model->info.n_graphs)
    return null_fail(err, CALD_OUT_OF_RANGE, "submit", "graph %u: the model has %u", desc->graph,
                     desc->model->info.n_graphs);
  /* A field that came with a later minor is there only if the caller's struct reaches so far. */
  const cald_binding_set* set =
      desc->struct_size >= offsetof(cald_job_desc, set) + sizeof desc->set ? desc->set : NULL;
  if (set != NULL && (set->model != desc->model || set->graph != desc->graph))
    return null_fail(err, CALD_INVALID_HANDLE, "submit", "the binding set is of graph %u, not %u",
                     set->graph, desc->graph);
  const cald_status checked =
      null_check_bindings(session->device, desc->bindings, desc->n_bindings, "submit", err);
  if (checked != CALD_OK) return checked;

  const null_work work = {desc->job_seq, desc->deadline_ns, desc->on_complete,
                          desc->user,    desc->bindings,    desc->n_bindings};
  return run_at_once(session, &work, out, err);
}

/* Cells that hold nothing are cleared and copied by doing nothing, truthfully. Reading them would
 * mean to make something up: READ, WRITE and ROTATE are not among the ops of null_kv_info. */
cald_status null_kv_submit(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                           cald_error* err) {
  cald_kv_info kv = {.struct_size = sizeof kv};
  (void)null_kv_info(desc->model, &kv, NULL);
  if (desc->op == 0 || (desc->op & (desc->op - 1)) != 0 || (desc->op & kv.ops) == 0)
    return null_fail(err, CALD_UNSUPPORTED, "kv_submit", "op %#x: null has the ops %#x, one a job",
                     desc->op, kv.ops);
  const int copies = desc->op != CALD_KV_CLEAR;
  if (desc->lane >= kv.lanes || (copies && desc->to_lane >= kv.lanes))
    return null_fail(err, CALD_OUT_OF_RANGE, "kv_submit", "lane %u to %u: the model has %u lanes",
                     desc->lane, desc->to_lane, kv.lanes);
  const uint64_t from = desc->op == CALD_KV_LANE_COPY ? 0 : desc->cell;
  const uint64_t to = desc->op == CALD_KV_RANGE_COPY ? desc->to_cell : from;
  if (from + desc->n > kv.cells || to + desc->n > kv.cells)
    return null_fail(err, CALD_OUT_OF_RANGE, "kv_submit",
                     "%u cells from %llu to %llu: a lane has %u", desc->n, (unsigned long long)from,
                     (unsigned long long)to, kv.cells);
  const null_work work = {desc->job_seq, desc->deadline_ns, desc->on_complete, desc->user, NULL, 0};
  return run_at_once(session, &work, out, err);
}

/* For a job that failed, `err` says why and the return value is still OK. */
cald_status null_job_query(cald_job* job, int32_t* state, cald_error* err) {
  *state = job->state;
  if (job->state == CALD_JOB_FAILED)
    (void)null_fail(err, CALD_EXECUTION_FAILED, "job", "its deadline had passed before it began");
  return CALD_OK;
}

/* OK in any terminal state; WAIT_TIMEOUT at the deadline, which changes nothing. */
cald_status null_job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  (void)job, (void)deadline_ns, (void)err;
  return CALD_OK;
}

cald_status null_job_cancel(cald_job* job, cald_error* err) {
  (void)job, (void)err;
  return CALD_OK; /* it has ended already; a cancel of an ended job is no error */
}

cald_status null_job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  (void)err;
  null_answer(out, &job->timing, sizeof job->timing);
  return CALD_OK;
}

void null_job_destroy(cald_job* job) {
  if (job != NULL) null_free(job->session->device, job);
}

/* For devices that move only when told, on virtual time. Leave it NULL if the device has its own
 * threads or hardware; it is here because null has every entry. */
cald_status null_poll(cald_session* session, uint64_t now_ns, uint64_t* next_ns, cald_error* err) {
  (void)session, (void)now_ns, (void)err;
  *next_ns = CALD_NO_DEADLINE;
  return CALD_OK;
}
