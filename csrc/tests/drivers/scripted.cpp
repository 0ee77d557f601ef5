// SPDX-License-Identifier: Apache-2.0
#include "tests/drivers/scripted.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

using scripted::Ends;
using scripted::Script;

Script* scripted_script() {
  static auto* script = new Script;
  return script;
}

struct cald_driver {
  const cald_host* host;
};
struct cald_device {
  cald_driver* driver;
  std::atomic<int> children{0};
};
struct cald_session {
  cald_device* device;
  std::atomic<int> jobs{0};
};
struct cald_buffer {
  cald_device* device;
  void* data;
  uint64_t bytes;
};
struct cald_model {
  cald_device* device;
  cald_model_info info;
};
struct cald_job {
  uint64_t job_seq;
  void (*on_complete)(void* user, const cald_completion* completion);
  void* user;
  cald_session* session;
  int32_t state;
  bool in_callback;
  int settle;
  uint64_t due_ns;  // by poll; 0: not polled yet
};

namespace {

Script& script() { return *scripted_script(); }
std::map<uint64_t, cald_job*>& waiting() {
  static auto* jobs = new std::map<uint64_t, cald_job*>;
  return *jobs;
}

// Counts the call; what the script wants instead of the entry's work, or OK.
cald_status begin(const char* entry, cald_error* err) {
  Script& s = script();
  std::unique_lock lock(s.mutex);
  ++s.calls[entry];
  if (auto hook = s.on_entry) {
    lock.unlock();
    hook(entry);
    lock.lock();
  }
  if (const auto kind = s.throws.find(entry); kind != s.throws.end()) {
    if (kind->second == 1) throw std::runtime_error("thrown by the scripted driver");
    throw 42;
  }
  const auto wanted = s.answers.find(entry);
  if (wanted == s.answers.end()) return CALD_OK;
  if (err != nullptr) {
    std::snprintf(err->message, sizeof err->message, "%s", s.messages[entry].c_str());
    err->native_code = s.end_native;
  }
  return wanted->second;
}

void lives(const char* kind) {
  const std::scoped_lock lock(script().mutex);
  ++script().alive[kind];
}

void dies(const char* kind, const char* entry) {
  const std::scoped_lock lock(script().mutex);
  --script().alive[kind];
  script().order.push_back(entry);
}

void wrong(const std::string& what) {
  const std::scoped_lock lock(script().mutex);
  script().wrong.push_back(what);
}

#define BEGIN(entry) \
  if (const cald_status answer = begin(entry, err); answer != CALD_OK) return answer

cald_status driver_open(const cald_host* host, cald_driver** out, cald_error* err) {
  BEGIN("driver_open");
  *out = new cald_driver{host};
  lives("driver");
  return CALD_OK;
}
void driver_close(cald_driver* driver) {
  if (driver != nullptr) dies("driver", "driver_close");
  delete driver;
}
cald_status device_count(cald_driver*, uint32_t* out, cald_error* err) {
  BEGIN("device_count");
  *out = 2;
  return CALD_OK;
}
cald_status device_open(cald_driver* driver, const cald_device_options* options, cald_device** out,
                        cald_error* err) {
  BEGIN("device_open");
  if (std::strcmp(options->config, "no-handle") == 0) return CALD_OK;
  if (script().one_device && script().living("device") > 0) return CALD_DEVICE_UNHEALTHY;
  *out = new cald_device{driver};
  lives("device");
  return CALD_OK;
}
void device_close(cald_device* device) {
  if (device == nullptr) return;
  if (device->children != 0) wrong("device_close before its children");
  dies("device", "device_close");
  delete device;
}
cald_status device_info(cald_device*, cald_device_info* out, cald_error* err) {
  BEGIN("device_info");
  out->chips = 1;
  out->name = "scripted device";
  out->device_class = script().device_class;
  out->runtime = script().runtime;
  out->sessions = 2;
  out->depth = 1;
  out->queue = 8;
  out->memory_free = script().memory_free;
  out->completion = script().completion;
  out->clock = script().clock;
  return CALD_OK;
}
cald_status device_enumerate(cald_driver*, uint32_t, cald_device_info* out, cald_error* err) {
  return device_info(nullptr, out, err);
}
cald_status device_caps(cald_device*, cald_cap* out, uint32_t* count, cald_error* err) {
  BEGIN("device_caps");
  const uint32_t room = out != nullptr ? *count : 0;
  *count = 3;
  for (uint32_t i = 0; i < std::min(room, 3u); ++i) {
    if (out[i].struct_size != sizeof(cald_cap)) wrong("device_caps: struct_size not set");
    out[i].level = static_cast<int32_t>(i);
    out[i].name = i == 0 ? "one" : i == 1 ? "two" : nullptr;  // a null text must not crash calrt
    out[i].source = "\xff\xc3\xa9";                           // an ill-formed byte, then e-acute
    out[i].value = 7;
  }
  return CALD_OK;
}
cald_status session_open(cald_device* device, uint32_t, cald_session** out, cald_error* err) {
  BEGIN("session_open");
  *out = new cald_session{device};
  ++device->children;
  lives("session");
  return CALD_OK;
}
void session_close(cald_session* session) {
  if (session == nullptr) return;
  if (const auto hook = script().hook()) hook("session_close");
  if (session->jobs != 0) wrong("session_close before its jobs are destroyed");
  --session->device->children;
  dies("session", "session_close");
  delete session;
}
cald_status buffer_alloc(cald_device* device, uint32_t, uint64_t bytes, uint64_t align,
                         cald_buffer** out, cald_error* err) {
  BEGIN("buffer_alloc");
  const cald_host* host = device->driver->host;
  *out = new cald_buffer{device, host->alloc(host->user, bytes, align), bytes};
  ++device->children;
  lives("buffer");
  return CALD_OK;
}
void buffer_free(cald_buffer* buffer) {
  if (buffer == nullptr) return;
  const cald_host* host = buffer->device->driver->host;
  host->free(host->user, buffer->data);
  --buffer->device->children;
  dies("buffer", "buffer_free");
  delete buffer;
}
cald_status buffer_map(cald_buffer* buffer, void** out, cald_error* err) {
  BEGIN("buffer_map");
  *out = buffer->data;
  return CALD_OK;
}
cald_status buffer_h2d(cald_buffer* buffer, uint64_t offset, const void* src, uint64_t bytes,
                       cald_error* err) {
  BEGIN("buffer_h2d");
  std::memcpy(static_cast<char*>(buffer->data) + offset, src, bytes);
  return CALD_OK;
}
cald_status buffer_d2h(cald_buffer* buffer, uint64_t offset, void* dst, uint64_t bytes,
                       cald_error* err) {
  BEGIN("buffer_d2h");
  std::memcpy(dst, static_cast<char*>(buffer->data) + offset, bytes);
  return CALD_OK;
}
cald_status model_footprint(cald_device*, const cald_package*, const cald_load_options*,
                            cald_footprint* out, cald_error* err) {
  BEGIN("model_footprint");
  out->host_bytes = script().footprint_host;
  out->device_bytes = script().footprint_device;
  return CALD_OK;
}
cald_status model_load(cald_device* device, const cald_package* package,
                       const cald_load_options* options, cald_model** out, cald_error* err) {
  BEGIN("model_load");
  if (options->progress != nullptr) {
    script().progress_answer = options->progress(options->user, 1, 2);
    if (script().progress_answer != 0) return CALD_CANCELLED;
  }
  auto* model = new cald_model{device, {}};
  model->info.struct_size = sizeof model->info;
  model->info.n_graphs = package->n_graphs;  // static in the tests: need not be copied
  model->info.graphs = package->graphs;
  model->info.lanes = options->lanes;
  model->info.cells = options->cells;
  model->info.vocab = package->arch->vocab;
  *out = model;
  ++device->children;
  lives("model");
  return CALD_OK;
}
void model_unload(cald_model* model) {
  if (model == nullptr) return;
  --model->device->children;
  dies("model", "model_unload");
  delete model;
}
cald_status model_info(cald_model* model, cald_model_info* out, cald_error* err) {
  BEGIN("model_info");
  *out = model->info;
  return CALD_OK;
}

// The job's end, once or as often as the script says; only then is it terminal for job_wait.
void end(cald_job* job) {
  Script& s = script();
  const cald_job was = *job;
  cald_completion told{};
  int times = 0;
  {
    const std::scoped_lock lock(s.mutex);
    told.struct_size = s.told_size;
    told.state = s.end_state;
    told.job_seq = was.job_seq + s.wrong_seq;
    told.status = s.end_status;
    told.bytes_in = s.bytes_in;
    told.bytes_out = s.bytes_out;
    told.native_code = s.told_native;
    told.flags = s.told_flags;
    times = was.on_complete != nullptr ? s.completions : 0;
    job->in_callback = true;
  }
  for (int i = 0; i < times; ++i) was.on_complete(was.user, &told);
  const std::scoped_lock lock(s.mutex);
  job->in_callback = false;
  job->settle = s.settle_polls;
  job->state = told.state;
}

bool finish(uint64_t job_seq) {
  cald_job* job = nullptr;
  {
    const std::scoped_lock lock(script().mutex);
    const auto found = waiting().find(job_seq);
    if (found == waiting().end()) return false;
    job = found->second;
    waiting().erase(found);
    std::erase(script().held, job_seq);
    script().runs.erase(job_seq);
  }
  end(job);
  return true;
}

template <class Desc>
cald_status begin_job(cald_session* session, const Desc* desc, cald_job** out, cald_error* err,
                      std::unique_lock<std::recursive_mutex>& lock) {
  Script& s = script();
  if (waiting().size() >= s.queue_limit) {
    std::snprintf(err->message, sizeof err->message, "%zu jobs wait", waiting().size());
    return CALD_QUEUE_FULL;
  }
  auto* job = new cald_job{
      desc->job_seq, desc->on_complete, desc->user, session, CALD_JOB_RUNNING, false, 0, 0};
  ++session->jobs;
  lives("job");
  *out = job;
  if (s.ends == Ends::INSIDE) {
    lock.unlock();
    end(job);
    return CALD_OK;
  }
  waiting()[desc->job_seq] = job;
  s.held.push_back(desc->job_seq);
  if (s.ends == Ends::THREAD) std::thread(finish, desc->job_seq).detach();
  return CALD_OK;
}

cald_status submit(cald_session* session, const cald_job_desc* desc, cald_job** out,
                   cald_error* err) {
  BEGIN("submit");
  std::unique_lock lock(script().mutex);
  script().bound.assign(desc->bindings, desc->bindings + desc->n_bindings);
  script().last = *desc;
  if (script().ends != Ends::INSIDE) {
    script().runs[desc->job_seq] = {desc->graph, script().bound};
  }
  return begin_job(session, desc, out, err, lock);
}
cald_status kv_info(cald_model* model, cald_kv_info* out, cald_error* err) {
  BEGIN("kv_info");
  out->ops = script().kv_ops;
  out->lanes = model->info.lanes;
  out->cells = model->info.cells;
  out->dtype = CALD_BF16;
  out->n_layers = 2;
  out->bytes_per_cell = 32;
  return CALD_OK;
}
cald_status kv_submit(cald_session* session, const cald_kv_desc* desc, cald_job** out,
                      cald_error* err) {
  BEGIN("kv_submit");
  std::unique_lock lock(script().mutex);
  script().last_kv = *desc;
  return begin_job(session, desc, out, err, lock);
}
cald_status poll(cald_session* session, uint64_t now_ns, uint64_t* next_ns, cald_error* err) {
  BEGIN("poll");
  Script& s = script();
  std::vector<uint64_t> due;
  *next_ns = CALD_NO_DEADLINE;
  {
    const std::scoped_lock lock(s.mutex);
    s.polls.push_back(now_ns);
    for (const auto& [job_seq, job] : waiting()) {
      if (job->session != session || s.ends != Ends::POLLED) continue;
      if (job->due_ns == 0) job->due_ns = now_ns + s.duration_ns;
      if (job->due_ns <= now_ns)
        due.push_back(job_seq);
      else
        *next_ns = std::min(*next_ns, job->due_ns);
    }
  }
  for (const uint64_t job_seq : due) finish(job_seq);
  return CALD_OK;
}
cald_status job_query(cald_job* job, int32_t* state, cald_error* err) {
  BEGIN("job_query");
  const std::scoped_lock lock(script().mutex);
  *state = job->state;
  if (err != nullptr && job->state == CALD_JOB_FAILED) {
    std::snprintf(err->message, sizeof err->message, "%s", script().end_text.c_str());
    err->code = script().end_status;
    err->native_code = script().end_native;
    err->flags = script().told_flags;
  }
  return CALD_OK;
}
bool hangs() {
  const std::scoped_lock lock(script().mutex);
  return script().wait_hangs;
}
cald_status job_wait(cald_job* job, uint64_t, cald_error* err) {
  BEGIN("job_wait");
  while (hangs()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::scoped_lock lock(script().mutex);
  if (job->state < CALD_JOB_DONE) return CALD_WAIT_TIMEOUT;
  return job->settle-- > 0 ? CALD_WAIT_TIMEOUT : CALD_OK;
}
cald_status job_cancel(cald_job* job, cald_error* err) {
  BEGIN("job_cancel");
  script().set([](Script& now) { now.end_state = CALD_JOB_CANCELLED; });
  finish(job->job_seq);
  return CALD_OK;
}
cald_status job_timing(cald_job* job, cald_timing* out, cald_error* err) {
  BEGIN("job_timing");
  if (job->state < CALD_JOB_DONE) wrong("job_timing of a running job");
  out->infer_ns = 1234;
  return CALD_OK;
}
void job_destroy(cald_job* job) {
  if (job == nullptr) return;
  if (job->state < CALD_JOB_DONE) wrong("job_destroy of a running job");
  if (job->in_callback) wrong("job_destroy inside on_complete");
  --job->session->jobs;
  dies("job", "job_destroy");
  delete job;
}

cald_driver_table make_table() {
  cald_driver_table table{};
  table.struct_size = sizeof table;
  table.abi_version = CALD_ABI_VERSION;
  table.name = "scripted";
  table.version = "1";
#define ENTRY(entry) table.entry = entry
  ENTRY(driver_open), ENTRY(driver_close), ENTRY(device_count), ENTRY(device_enumerate);
  ENTRY(device_open), ENTRY(device_close), ENTRY(device_info), ENTRY(device_caps);
  ENTRY(session_open), ENTRY(session_close), ENTRY(buffer_alloc), ENTRY(buffer_free);
  ENTRY(buffer_map), ENTRY(buffer_h2d), ENTRY(buffer_d2h), ENTRY(model_footprint);
  ENTRY(model_load), ENTRY(model_unload), ENTRY(model_info), ENTRY(submit), ENTRY(job_query);
  ENTRY(job_wait), ENTRY(job_cancel), ENTRY(job_timing), ENTRY(job_destroy);
  ENTRY(poll), ENTRY(kv_info), ENTRY(kv_submit);
#ifdef BARE  // without what is optional
  table.job_cancel = nullptr;
  table.job_timing = nullptr;
  table.poll = nullptr;
  table.kv_info = nullptr;
  table.kv_submit = nullptr;
#endif
  return table;
}

}  // namespace

extern "C" CALD_EXPORT cald_status cald_driver_entry(const cald_host*, uint32_t,
                                                     const cald_driver_table** out) {
  static const cald_driver_table table = make_table();
  script().finish = finish;
  *out = &table;
  return CALD_OK;
}
