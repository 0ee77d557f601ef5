/* SPDX-License-Identifier: Apache-2.0
 * pebble: a whole calrt driver, for a made-up accelerator that is one thread behind one queue.
 * A cell keeps the token of its position; the logits of a row are a hash of its lane's cells up to
 * its own, in order: no sense in them, but each token matters, as in a language model. */
#define _POSIX_C_SOURCE 200809L /* -std=c11 alone hides pread and waits on CLOCK_MONOTONIC */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calrt/driver.h"
enum { kQueue = 4, kRunNs = 500000, kMostLanes = 256, kMostCells = 65536, kMostGraphs = 32 };
#define kPrime 0x100000001B3u /* of FNV-1a */
#define ENTRY static cald_status
enum { kTokens = 1, kPositions, kLanes, kValid, kPicked, kRoles, kLogits = 0 }; /* role % 32 */

/* One struct is device and session, the only one: a job may be asked for after its session. */
struct cald_session {
  const cald_host* host;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* a job came or ended, or the session closes */
  pthread_t worker;
  int open;               /* if not, what is queued does not begin */
  _Atomic uint32_t live;  /* jobs that have not ended */
  cald_job *first, *last; /* the first one runs, or is the next to */
};
struct cald_buffer {
  const void* device;
  char* data;
  uint64_t bytes;
};
typedef struct pebble_graph {
  cald_graph graph; /* points into what follows */
  const cald_io* list[kRoles];
  cald_io io[kRoles];
  char name[64];
} pebble_graph;
struct cald_model {
  const void* device;
  cald_model_info info;
  const cald_graph* list[kMostGraphs];
  pebble_graph graphs[kMostGraphs];
  uint64_t seed; /* what the weights come to */
  float kv[];    /* lanes x cells */
};
struct cald_job {
  cald_session* session;
  cald_job* next;     /* in the queue */
  cald_job_desc desc; /* without the bindings, which are CALL */
  const pebble_graph* graph;
  int32_t* at[kRoles]; /* what is bound */
  uint32_t rows;       /* of logits */
  _Atomic int32_t state, cancelled;
  cald_status status;
};
/* Fills the caller's error, which may be NULL. */
static cald_status fail(cald_error* err, cald_status code, const char* in, const char* text, ...) {
  if (err == NULL) return code;
  va_list args;
  va_start(args, text);
  vsnprintf(err->message, sizeof err->message, text, args);
  va_end(args);
  snprintf(err->where, sizeof err->where, "%s", in);
  err->native_code = 0;
  return err->code = code;
}
#define REFUSE(code, ...) return fail(err, CALD_##code, __func__, __VA_ARGS__)
#define NO_MEMORY REFUSE(OUT_OF_HOST_MEMORY, "host memory is exhausted")
/* The caller's struct may be shorter or longer than this driver's. */
static cald_status answer(void* out, const void* filled, size_t bytes) {
  const uint32_t room = *(uint32_t*)out;
  memcpy(out, filled, room < bytes ? room : bytes);
  *(uint32_t*)out = room;
  return CALD_OK;
}

ENTRY driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  *out = (cald_driver*)host; /* all that is kept */
  return CALD_OK;
}
static void driver_close(cald_driver* driver) {}
ENTRY device_count(cald_driver* driver, uint32_t* out, cald_error* err) {
  *out = 1;
  return CALD_OK;
}
ENTRY device_info(cald_device* device, cald_device_info* out, cald_error* err) {
  cald_device_info info = {sizeof info, 1, "pebble", "pebble-1", "", 1, 1, kQueue};
  info.id = "pebble:0";
  info.domains = CALD_DOMAIN_HOST; /* completion CALLBACK and clock REAL are 0 */
  return answer(out, &info, sizeof info);
}
ENTRY device_enumerate(cald_driver* driver, uint32_t index, cald_device_info* to, cald_error* err) {
  if (index != 0) REFUSE(OUT_OF_RANGE, "device %u of 1", index);
  return device_info(NULL, to, err);
}
ENTRY device_open(cald_driver* driver, const cald_device_options* options, cald_device** out,
                  cald_error* err) {
  if (options->index != 0) REFUSE(OUT_OF_RANGE, "device %u of 1", options->index);
  if (*options->config != '\0') REFUSE(INVALID_ARGUMENT, "no '%.64s'", options->config);
  if (options->n_options != 0) REFUSE(INVALID_ARGUMENT, "no '%.64s'", options->options->key);
  cald_session* session = calloc(1, sizeof *session);
  if (session == NULL) NO_MEMORY;
  session->host = (const cald_host*)driver;
  pthread_condattr_t monotonic; /* the clock of deadlines */
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&session->changed, &monotonic);
  pthread_mutex_init(&session->lock, NULL);
  *out = (cald_device*)session;
  return CALD_OK;
}
static void device_close(cald_device* device) { free(device); }
ENTRY device_caps(cald_device* device, cald_cap* out, uint32_t* n, cald_error* err) {
  static const char* const names[] = {
      "cancel",     "queue",        "load_cancel",  "explicit_positions",
      "logit_rows", "lane_map_any", "padding_rows", "n_valid"};
  const uint32_t have = sizeof names / sizeof *names, room = out != NULL ? *n : 0;
  for (uint32_t i = 0; i < have && i < room; ++i) {
    const cald_cap cap = {sizeof cap, 0, names[i], "proven by source: the device is pebble.c", 1};
    answer(&out[i], &cap, sizeof cap);
  }
  *n = have;
  return CALD_OK;
}

ENTRY buffer_alloc(cald_device* device, uint32_t domain, uint64_t bytes, uint64_t align,
                   cald_buffer** out, cald_error* err) {
  if (domain != CALD_DOMAIN_HOST) REFUSE(UNSUPPORTED, "domain %u: only host memory", domain);
  void* data;
  if (posix_memalign(&data, align < 64 ? 64 : align, bytes) != 0) NO_MEMORY;
  cald_buffer* buffer = malloc(sizeof *buffer);
  if (buffer == NULL) free(data);
  if (buffer == NULL) NO_MEMORY;
  *buffer = (cald_buffer){device, memset(data, 0, bytes), bytes};
  *out = buffer;
  return CALD_OK;
}
static void buffer_free(cald_buffer* buffer) { free(buffer ? buffer->data : NULL), free(buffer); }
ENTRY buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  *out = buffer->data;
  return CALD_OK;
}
static int inside(const cald_buffer* buffer, uint64_t offset, uint64_t bytes) {
  return offset <= buffer->bytes && bytes <= buffer->bytes - offset; /* cannot overflow */
}
ENTRY buffer_h2d(cald_buffer* to, uint64_t at, const void* from, uint64_t bytes, cald_error* err) {
  if (!inside(to, at, bytes)) REFUSE(OUT_OF_RANGE, "%llu bytes at %llu", bytes + 0ULL, at + 0ULL);
  memcpy(to->data + at, from, bytes);
  return CALD_OK;
}
ENTRY buffer_d2h(cald_buffer* from, uint64_t at, void* to, uint64_t bytes, cald_error* err) {
  if (!inside(from, at, bytes)) REFUSE(OUT_OF_RANGE, "%llu bytes at %llu", bytes + 0ULL, at + 0ULL);
  memcpy(to, from->data + at, bytes);
  return CALD_OK;
}

static int chosen(uint32_t value, const uint32_t* list, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i)
    if (list[i] == value) return 1;
  return 0;
}
/* The package's graph, with inputs and outputs as pebble wants them: row-major, 4 bytes each. */
static int keep_graph(pebble_graph* to, const cald_graph* from) {
  if (from->n_inputs >= kRoles || from->n_outputs != 1 || strlen(from->name) > 63) return 0;
  to->graph = *from;
  to->graph.struct_size = sizeof to->graph;
  for (uint32_t i = 0; i <= from->n_inputs; ++i) {
    const cald_io* theirs = i < from->n_inputs ? from->inputs[i] : from->outputs[0];
    if (theirs->role >= kRoles && theirs->role != CALD_ROLE_LOGITS) return 0; /* e.g. a mask */
    cald_io* io = &to->io[theirs->role % 32];
    *io = *theirs;
    io->struct_size = sizeof *io;
    io->layout = (cald_layout){.n_axes = io->rank, .bytes = 4};
    for (uint32_t dim = io->rank; dim-- > 0; io->layout.bytes *= io->shape[dim])
      io->layout.axes[dim] = (cald_axis){dim, 0, 1, 0, io->shape[dim], io->layout.bytes};
    io->dtype = io->role == CALD_ROLE_LOGITS ? CALD_F32 : CALD_I32;
    io->domains = CALD_DOMAIN_HOST;
    io->align = 4;
    to->list[i] = io;
  }
  to->graph.name = strcpy(to->name, from->name);
  to->graph.share_group = "pebble"; /* all graphs use the one arena */
  to->graph.inputs = to->list;
  to->graph.outputs = to->list + from->n_inputs;
  return to->io[kTokens].role && to->io[kPositions].role && to->io[kLanes].role;
}
static void model_unload(cald_model* model) { free(model); }
ENTRY model_info(cald_model* model, cald_model_info* out, cald_error* err) {
  return answer(out, &model->info, sizeof model->info);
}
ENTRY model_load(cald_device* device, const cald_package* package, const cald_load_options* options,
                 cald_model** out, cald_error* err) {
  if (options->compute != CALD_COMPUTE_F32 || options->kv_dtype != CALD_F32 ||
      options->logits_dtype != CALD_F32 || strcmp(options->parallel, "none") != 0 ||
      (strcmp(options->placement, "any") != 0 && strcmp(options->placement, "chip:0") != 0))
    REFUSE(UNSUPPORTED, "pebble has F32 and one chip");
  if (options->lanes - 1 >= kMostLanes || options->cells - 1 >= kMostCells) /* nor 0 */
    REFUSE(OUT_OF_RANGE, "at most %d lanes of %d cells", kMostLanes, kMostCells);
  if (package->weights < 0) REFUSE(UNSUPPORTED, "a package without weights");
  const cald_artifact* file = package->artifacts[package->weights];
  unsigned char piece[4096];
  uint64_t seed = 0; /* a hash of the weights stands for them: with others it is another model */
  for (uint64_t at = 0, got;; at += got) {
    if (options->progress != NULL && options->progress(options->user, at, file->bytes) != 0)
      REFUSE(CANCELLED, "at byte %llu of the weights", at + 0ULL);
    if (at >= file->bytes) break;
    got = (uint64_t)pread(file->fd, piece, sizeof piece, (off_t)at);
    if (got - 1 >= sizeof piece) REFUSE(PACKAGE_CORRUPT, "the weights end at byte %llu", at + 0ULL);
    for (uint64_t i = 0; i < got; ++i) seed = (seed ^ piece[i]) * kPrime;
  }
  const uint64_t kv_bytes = (uint64_t)options->lanes * options->cells * sizeof(float);
  cald_model* model = calloc(1, sizeof *model + kv_bytes);
  if (model == NULL) NO_MEMORY;
  model->device = device;
  model->seed = seed;
  uint32_t n = 0;
  for (uint32_t i = 0; i < package->n_graphs && n < kMostGraphs; ++i) {
    const cald_graph* graph = package->graphs[i];
    if (graph->chunk == 0 ? chosen(graph->batch, options->profiles, options->n_profiles)
                          : chosen(graph->chunk, options->chunks, options->n_chunks)) {
      model->list[n] = &model->graphs[n].graph;
      n += (uint32_t)keep_graph(&model->graphs[n], graph);
    }
  }
  const int all = n != 0 && n == options->n_profiles + options->n_chunks;
  if (!all) model_unload(model);
  if (!all) REFUSE(UNSUPPORTED, "%u of the graphs that were asked for can be run", n);
  model->info =
      (cald_model_info){sizeof model->info, n, model->list, options->lanes, options->cells};
  model->info.vocab = package->arch->vocab;
  model->info.compute = CALD_COMPUTE_F32;
  model->info.kv_dtype = model->info.logits_dtype = CALD_F32;
  model->info.weight_bytes = sizeof seed;
  model->info.kv_bytes = kv_bytes;
  *out = model;
  return CALD_OK;
}

/* Of cells 0 to `position`, in this order and no other: the same cells give the same bits. */
static void compute(const cald_model* model, uint64_t lane, uint32_t position, float* logits) {
  const float* cells = model->kv + lane * model->info.cells;
  uint64_t hash = model->seed;
  for (uint32_t c = 0; c <= position; ++c) hash = (hash ^ (uint64_t)cells[c] ^ hash >> 29) * kPrime;
  for (uint32_t t = 0; t < model->info.vocab; ++t) {
    hash = (hash ^ t ^ hash >> 29) * kPrime;
    logits[t] = (float)(hash >> 40) / (1 << 20); /* 0 to 16, exactly */
  }
}
/* All is checked before a cell is written: a job that fails leaves its lanes as they were. */
static cald_status run(const cald_job* job) {
  cald_model* model = job->desc.model;
  const cald_model_info* info = &model->info;
  const int32_t *token = job->at[kTokens], *position = job->at[kPositions], *lane = job->at[kLanes];
  const int32_t* picked = job->at[kPicked];
  const int decode = job->graph->graph.kind == CALD_GRAPH_DECODE; /* a lane for each row */
  const uint32_t most = decode ? job->graph->graph.batch : job->graph->graph.chunk;
  const uint32_t n = job->at[kValid] != NULL ? (uint32_t)*job->at[kValid] : most;
  int bad = n < 1 || n > most;
  for (uint32_t i = 0; i < n && !bad; ++i) /* of padding, token and position may be anything */
    bad = lane[i * decode] != -1 &&
          ((uint32_t)lane[i * decode] >= info->lanes || (uint32_t)token[i] >= info->vocab ||
           (uint32_t)position[i] >= info->cells);
  for (uint32_t r = 0; picked != NULL && r < job->rows; ++r) bad |= (uint32_t)picked[r] >= n;
  if (bad) return CALD_OUT_OF_RANGE;
  for (uint32_t i = 0; i < n; ++i)
    if (lane[i * decode] != -1)
      model->kv[(uint64_t)lane[i * decode] * info->cells + (uint32_t)position[i]] = (float)token[i];
  for (uint32_t r = 0; r < job->rows; ++r) {
    const uint32_t i = picked != NULL ? (uint32_t)picked[r] : decode ? r : n - 1;
    if (i < n && lane[i * decode] != -1)
      compute(model, (uint64_t)lane[i * decode], (uint32_t)position[i],
              (float*)job->at[kLogits] + (uint64_t)r * info->vocab);
  }
  return CALD_OK;
}
/* The session's thread. Each job has its turn, and ends here and nowhere else. */
static void* work(void* arg) {
  cald_session* session = arg;
  pthread_mutex_lock(&session->lock);
  for (;;) {
    while (session->first == NULL && session->open)
      pthread_cond_wait(&session->changed, &session->lock);
    cald_job* job = session->first;
    if (job == NULL) break;
    const int late =
        !session->open || session->host->now_ns(session->host->user) >= job->desc.deadline_ns;
    job->status = job->cancelled ? CALD_CANCELLED : late ? CALD_EXECUTION_FAILED : CALD_OK;
    if (job->status == CALD_OK) {
      job->state = CALD_JOB_RUNNING;
      pthread_mutex_unlock(&session->lock);
      nanosleep(&(struct timespec){0, kRunNs}, NULL); /* the work of real hardware */
      job->status = run(job);
      pthread_mutex_lock(&session->lock);
    }
    cald_completion end = {sizeof end, CALD_JOB_FAILED, job->desc.job_seq, job->status};
    if (job->status == CALD_OK) end.state = CALD_JOB_DONE;
    if (job->status == CALD_CANCELLED) end.state = CALD_JOB_CANCELLED;
    end.bytes_in = end.bytes_out = CALD_BYTES_UNKNOWN;
    session->first = job->next;
    --session->live;
    if (job->desc.on_complete != NULL) job->desc.on_complete(job->desc.user, &end);
    job->state = end.state; /* only now does job_wait see it */
    pthread_cond_broadcast(&session->changed);
  }
  pthread_mutex_unlock(&session->lock);
  return NULL;
}
ENTRY session_open(cald_device* device, uint32_t index, cald_session** out, cald_error* err) {
  cald_session* session = (cald_session*)device;
  if (index != 0) REFUSE(OUT_OF_RANGE, "session %u of 1", index);
  if (session->open) REFUSE(INVALID_STATE, "the session is open");
  session->open = 1;
  if (pthread_create(&session->worker, NULL, work, session) != 0) session->open = 0;
  if (!session->open) NO_MEMORY;
  *out = session;
  return CALD_OK;
}
static void session_close(cald_session* session) {
  if (session == NULL) return;
  pthread_mutex_lock(&session->lock);
  session->open = 0; /* the worker ends what is queued, then itself */
  pthread_cond_broadcast(&session->changed);
  pthread_mutex_unlock(&session->lock);
  pthread_join(session->worker, NULL);
}
ENTRY submit(cald_session* session, const cald_job_desc* desc, cald_job** out, cald_error* err) {
  const cald_model* model = desc->model;
  if (session != model->device) REFUSE(INVALID_HANDLE, "a model of another device");
  if (desc->graph >= model->info.n_graphs) REFUSE(OUT_OF_RANGE, "no graph %u", desc->graph);
  if (session->live == 1 + kQueue) REFUSE(QUEUE_FULL, "%d jobs have not ended", 1 + kQueue);
  const pebble_graph* graph = &model->graphs[desc->graph];
  uint64_t bytes[kRoles] = {0};
  cald_job new = {session, .desc = {sizeof new.desc}, .graph = graph, .state = CALD_JOB_QUEUED};
  for (uint32_t i = 0; i < desc->n_bindings; ++i) {
    const cald_binding* binding = &desc->bindings[i];
    const int32_t role = binding->role, slot = role % 32;
    if (slot < 0 || slot >= kRoles || role != graph->io[slot].role || new.at[slot] != NULL)
      REFUSE(INVALID_ARGUMENT, "role %d: not of this graph, or bound twice", role);
    if (binding->buffer->device != session || binding->offset % 4 != 0 ||
        !inside(binding->buffer, binding->offset, binding->bytes) ||
        (slot != kLogits && slot != kPicked && binding->bytes < graph->io[slot].layout.bytes))
      REFUSE(OUT_OF_RANGE, "role %d: %llu bytes do not fit", role, binding->bytes + 0ULL);
    new.at[slot] = (int32_t*)(void*)(binding->buffer->data + binding->offset);
    bytes[slot] = binding->bytes;
  }
  for (int32_t slot = 0; slot < kRoles; ++slot)
    if (graph->io[slot].role != 0 && !graph->io[slot].optional && new.at[slot] == NULL)
      REFUSE(INVALID_ARGUMENT, "role %d is not bound", graph->io[slot].role);
  new.rows = new.at[kPicked] != NULL ? (uint32_t)(bytes[kPicked] / 4) : graph->graph.batch;
  if (new.rows == 0 || bytes[kLogits] / 4 / model->info.vocab < new.rows)
    REFUSE(SHAPE_MISMATCH, "%llu bytes for %u rows of logits", bytes[kLogits] + 0ULL, new.rows);
  answer(&new.desc, desc, desc->struct_size);
  cald_job* job = malloc(sizeof *job);
  if (job == NULL) NO_MEMORY;
  *job = new;
  pthread_mutex_lock(&session->lock);
  *(session->first != NULL ? &session->last->next : &session->first) = job;
  session->last = *out = job;
  ++session->live;
  pthread_cond_broadcast(&session->changed);
  pthread_mutex_unlock(&session->lock);
  return CALD_OK;
}
ENTRY job_query(cald_job* job, int32_t* state, cald_error* err) {
  *state = job->state;
  if (*state == CALD_JOB_FAILED) (void)fail(err, job->status, "job", "out of range, or too late");
  return CALD_OK;
}
ENTRY job_wait(cald_job* job, uint64_t deadline_ns, cald_error* err) {
  const struct timespec until = {deadline_ns / 1000000000, deadline_ns % 1000000000};
  pthread_mutex_lock(&job->session->lock);
  for (int late = 0; job->state < CALD_JOB_DONE && !late;)
    late = pthread_cond_timedwait(&job->session->changed, &job->session->lock, &until);
  pthread_mutex_unlock(&job->session->lock);
  if (job->state < CALD_JOB_DONE) REFUSE(WAIT_TIMEOUT, "the job has not ended");
  return CALD_OK;
}
ENTRY job_cancel(cald_job* job, cald_error* err) {
  job->cancelled = 1; /* seen when its turn comes: one that runs is not stopped */
  return CALD_OK;
}
static void job_destroy(cald_job* job) { free(job); }

#define E(entry) .entry = entry
static const cald_driver_table table = {
    sizeof table,    CALD_ABI_VERSION, "pebble",        "1.0.0",
    E(driver_open),  E(driver_close),  E(device_count), E(device_enumerate),
    E(device_open),  E(device_close),  E(device_info),  E(device_caps),
    E(session_open), E(session_close), E(buffer_alloc), E(buffer_free),
    E(buffer_map),   E(buffer_h2d),    E(buffer_d2h),   E(model_load),
    E(model_unload), E(model_info),    E(submit),       E(job_query),
    E(job_wait),     E(job_cancel),    E(job_destroy)};
cald_status cald_driver_entry(const cald_host* host, uint32_t abi, const cald_driver_table** out) {
  if (abi >> 16 != CALD_ABI_MAJOR) return CALD_VERSION_MISMATCH;
  *out = &table;
  return CALD_OK;
}
