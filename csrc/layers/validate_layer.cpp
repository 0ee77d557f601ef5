// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <mutex>

#include "base/log.h"
#include "layers/answer.h"
#include "layers/completion_tap.h"
#include "layers/validate_arguments.h"

namespace calrt::layers {
namespace {

using Table = cald_driver_table;
constexpr size_t kAwaited = 1024;  // ended jobs whose second completion would still be seen

const char* rule_name(Rule rule) {
  static constexpr const char* kNames[] = {
#define CALRT_RULE(name, meaning) #name,
      CALRT_VALIDATE_RULES(CALRT_RULE)
#undef CALRT_RULE
  };
  return kNames[static_cast<int>(rule)];
}

bool terminal(int32_t state) { return state >= CALD_JOB_DONE && state <= CALD_JOB_CANCELLED; }

// How deep this thread is in the on_complete of its caller.
thread_local int completing = 0;

class ValidateLayer;

}  // namespace

// What is known of one job. Guarded by the layer's mutex.
struct ValidatedJob final : CompletionTap {
  void complete(const cald_completion& completion) override;

  std::weak_ptr<ValidateLayer> layer;
  std::weak_ptr<Handle> handle;
  HandleRef session;
  uint64_t job_seq = 0, call = 0;
  void (*on_complete)(void*, const cald_completion*) = nullptr;
  void* user = nullptr;
  bool accepted = false, refused = false, gone = false;
  bool is_untold = false, is_unsettled = false;  // as its session counts it
  int told = 0;
  int32_t told_state = 0, seen_state = 0;  // 0: not yet
  bool waited = false;                     // job_wait has said OK
  bool lost = false;  // job_wait fails otherwise than by its deadline: no end can be expected

  bool ended() const { return told > 0 || settled(); }
  // The driver itself has said that it is over, apart from telling it.
  bool settled() const { return waited || lost || terminal(seen_state); }
  // After each change: what it holds and how its session counts it.
  void changed() {
    const auto count = [](bool& counted, bool now, size_t& sum) {
      if (counted != now) now ? ++sum : --sum;
      counted = now;
    };
    const bool there = accepted && !gone;
    if (session != nullptr) {
      count(is_untold, there && !ended(), session->untold);
      count(is_unsettled, there && !settled(), session->unsettled);
    }
    const HandleRef own = handle.lock();
    if (ended() && own != nullptr) HandleTable::let_go(*own);
  }
};

namespace {

class ValidateLayer final : public Layer, public std::enable_shared_from_this<ValidateLayer> {
 public:
  const char* name() const override { return "validate"; }
  bool replace(Call& call) override;
  std::vector<std::pair<std::string, uint64_t>> counters() override {
    std::vector<std::pair<std::string, uint64_t>> all;
    for (int i = 0; i < kRules; ++i)
      all.emplace_back(rule_name(static_cast<Rule>(i)), counts_[static_cast<size_t>(i)].load());
    return all;
  }
  void completed(ValidatedJob& job, const cald_completion& completion);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using JobRef = std::shared_ptr<ValidatedJob>;

  [[gnu::format(printf, 5, 6)]] void note(Rule rule, const char* where, uint64_t number,
                                          const char* format, ...);
  void refuse(Call& call, uint64_t number, const Refusal& why);
  void end(Call& call, uint64_t number);
  std::optional<Refusal> begin_end(Call& call, uint64_t number, Kind kind, const void* pointer,
                                   std::vector<HandleRef>& lost);
  std::optional<Refusal> may_destroy(Call& call, const void* pointer);
  void made(Call& call, uint64_t number);
  void add(const Call& call, uint64_t number, Kind kind, const void* pointer, HandleRef parent);
  template <auto Member>
  void submit(Call& call, uint64_t number);
  void accepted(Call& call, uint64_t number, const HandleRef& handle, cald_job* given,
                size_t pending_before);
  void job_query(Call& call, uint64_t number);
  void job_wait(Call& call, uint64_t number);
  void device_info(Call& call);
  void retire(const JobRef& job);
  JobRef job_of(const void* pointer) const;

  std::array<std::atomic<uint64_t>, kRules> counts_{};
  std::atomic<uint64_t> calls_{0};
  mutable std::mutex mutex_;
  HandleTable handles_;
  std::deque<JobRef> past_;
};

void ValidateLayer::note(Rule rule, const char* where, uint64_t number, const char* format, ...) {
  ++counts_[static_cast<size_t>(rule)];
  char text[400];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  log_line(LOG_ERROR, "validate", "%s: %s (call %llu): %s", rule_name(rule), where,
           static_cast<unsigned long long>(number), text);
}

void ValidateLayer::refuse(Call& call, uint64_t number, const Refusal& why) {
  note(why.rule, entry_name(call.entry), number, "%s", why.text.c_str());
  if (!call.has_status) return;
  const bool handle = why.rule == Rule::unknown_handle || why.rule == Rule::stale_handle ||
                      why.rule == Rule::wrong_kind || why.rule == Rule::double_free;
  const cald_status status = handle ? CALD_INVALID_HANDLE : CALD_INVALID_ARGUMENT;
  answer(call, Answer{status, 0, false, ("validate: " + why.text).c_str()});
}

bool ValidateLayer::replace(Call& call) {
  const uint64_t number = ++calls_;
  if (completing > 0)
    note(Rule::entry_in_completion, entry_name(call.entry), number,
         "on_complete calls no driver entry");
  {
    Lock lock(mutex_);
    if (const auto wrong = check_arguments(call, handles_)) {
      lock.unlock();
      refuse(call, number, *wrong);
      return true;
    }
  }
  if (ends_handle(call.entry)) {
    end(call, number);
    return true;
  }
  switch (call.entry) {
    case Entry::submit:
      submit<&Table::submit>(call, number);
      break;
    case Entry::kv_submit:
      submit<&Table::kv_submit>(call, number);
      break;
    case Entry::job_query:
      job_query(call, number);
      break;
    case Entry::job_wait:
      job_wait(call, number);
      break;
    default:
      call.forward();
      if (call.status == CALD_OK) made(call, number);
      if (call.entry == Entry::device_info && call.status == CALD_OK) device_info(call);
  }
  if (call.has_status && (call.status < 0 || call.status >= kStatusCount))
    note(Rule::status_range, entry_name(call.entry), number, "the driver answered %d", call.status);
  return true;
}

// ---- handles -----------------------------------------------------------------------------------

void ValidateLayer::end(Call& call, uint64_t number) {
  std::optional<Refusal> wrong;
  std::vector<HandleRef> lost;
  visit_arguments(call, [&](auto&... arguments) {
    const auto begin = [&]<class T>(T* pointer) {
      if constexpr (HandleType<T>)
        if (pointer != nullptr)
          wrong = begin_end(call, number, HandleKind<T>::value, pointer, lost);
    };
    if constexpr (sizeof...(arguments) == 1) (begin(arguments), ...);
  });
  if (wrong) return refuse(call, number, *wrong);
  call.forward();
  const Lock lock(mutex_);  // a session tells its jobs while it closes, not later
  for (const HandleRef& handle : lost) retire(handle->job);
}

// The handle is dead before the driver is called: from then on its address may come again.
std::optional<Refusal> ValidateLayer::begin_end(Call& call, uint64_t number, Kind kind,
                                                const void* pointer, std::vector<HandleRef>& lost) {
  if (kind == Kind::JOB)
    if (auto wrong = may_destroy(call, pointer)) return wrong;
  const Lock lock(mutex_);
  const HandleRef handle = handles_.find(kind, pointer);
  if (handle == nullptr)
    return Refusal{Rule::double_free, std::string(kind_name(kind)) + " was closed meanwhile"};
  if (handle->holders > 0)
    return Refusal{Rule::still_held,
                   HandleTable::describe(*handle) + " is used by " +
                       std::to_string(handle->holders) +
                       " jobs that have not ended or binding sets; it is not given back"};
  if (handle->children > 0)
    note(Rule::children_alive, entry_name(call.entry), number, "%zu live, one is %s",
         handle->children, HandleTable::describe(*handles_.a_child(handle)).c_str());
  if (kind == Kind::DRIVER)
    for (const HandleRef& leak : handles_.leaks(handle))
      note(Rule::leaked, entry_name(call.entry), number, "%s",
           HandleTable::describe(*leak).c_str());
  if (kind == Kind::JOB) retire(handle->job);
  lost = handles_.close(handle);
  return {};
}

// Terminal jobs only. The driver is asked when it has not said so yet.
std::optional<Refusal> ValidateLayer::may_destroy(Call& call, const void* pointer) {
  const JobRef job = [&] {
    const Lock lock(mutex_);
    return job_of(pointer);
  }();
  if (job == nullptr) return {};
  {
    const Lock lock(mutex_);
    if (job->ended()) return {};
  }
  int32_t state = 0;
  auto* handle = static_cast<cald_job*>(const_cast<void*>(pointer));
  const cald_status asked = ask([&] { return call.driver.job_query(handle, &state, nullptr); });
  if (asked != CALD_OK || terminal(state)) return {};
  return Refusal{Rule::job_not_ended,
                 "job " + std::to_string(job->job_seq) + " has not ended; it is not destroyed"};
}

void ValidateLayer::made(Call& call, uint64_t number) {
  visit_arguments(call, [&](auto& first, auto&... others) {
    using First = std::remove_pointer_t<std::remove_reference_t<decltype(first)>>;
    HandleRef parent;
    if constexpr (HandleType<First>) {
      const Lock lock(mutex_);
      parent = handles_.find(HandleKind<First>::value, first);
    }
    [[maybe_unused]] const auto see = [&]<class T>(T argument) {
      using Out = std::remove_pointer_t<T>;
      if constexpr (std::is_pointer_v<Out> && HandleType<std::remove_pointer_t<Out>>) {
        if (*argument == nullptr)
          note(Rule::ok_without_handle, entry_name(call.entry), number, "OK without a handle");
        else
          add(call, number, HandleKind<std::remove_pointer_t<Out>>::value, *argument, parent);
      }
    };
    (see(others), ...);
  });
}

void ValidateLayer::add(const Call& call, uint64_t number, Kind kind, const void* pointer,
                        HandleRef parent) {
  auto handle = std::make_shared<Handle>();
  handle->kind = kind;
  handle->pointer = pointer;
  handle->call = number;
  handle->parent = std::move(parent);
  const Lock lock(mutex_);
  if (call.entry == Entry::buffer_alloc)
    handle->what = std::to_string(std::get<2>(call.of<&Table::buffer_alloc>())) + " bytes";
  if (call.entry == Entry::session_open)
    handle->what = "index " + std::to_string(std::get<1>(call.of<&Table::session_open>()));
  if (call.entry == Entry::binding_set_make) {
    const auto& [model, graph, bindings, n, out, error] = call.of<&Table::binding_set_make>();
    handle->what = "graph " + std::to_string(graph);
    for (const cald_buffer* buffer : buffers_of(bindings, n))
      if (const HandleRef held = handles_.find(Kind::BUFFER, buffer)) handles_.hold(handle, held);
  }
  if (const HandleRef before = handles_.add(handle))
    note(Rule::handle_lives, entry_name(call.entry), number, "it is %s",
         HandleTable::describe(*before).c_str());
}

void ValidateLayer::device_info(Call& call) {
  const auto& [device, info, error] = call.of<&Table::device_info>();
  const Lock lock(mutex_);
  if (const HandleRef handle = handles_.find(Kind::DEVICE, device)) {
    handle->depth = info->depth;
    handle->queue = info->queue;
  }
}

// ---- jobs --------------------------------------------------------------------------------------

ValidateLayer::JobRef ValidateLayer::job_of(const void* pointer) const {
  const HandleRef handle = handles_.find(Kind::JOB, pointer);
  return handle != nullptr ? handle->job : nullptr;
}

// What a driver tells of it from now on is a violation, seen as long as it is among the last.
void ValidateLayer::retire(const JobRef& job) {
  if (job == nullptr) return;
  job->gone = true;
  job->changed();
  past_.push_back(job);
  if (past_.size() > kAwaited) past_.pop_front();
}

template <auto Member>
void ValidateLayer::submit(Call& call, uint64_t number) {
  const auto& [session, desc, out, error] = call.of<Member>();
  const auto job = std::make_shared<ValidatedJob>();
  job->layer = weak_from_this();
  job->job_seq = desc->job_seq;
  job->call = number;
  job->on_complete = desc->on_complete;
  job->user = desc->user;
  const auto handle = std::make_shared<Handle>();
  handle->kind = Kind::JOB;
  handle->call = number;
  handle->what = "job_seq " + std::to_string(desc->job_seq);
  handle->job = job;
  job->handle = handle;
  size_t pending_before = 0;
  {
    const Lock lock(mutex_);
    handle->parent = handles_.find(Kind::SESSION, session);
    const auto hold = [&](Kind kind, const void* pointer) {
      if (const HandleRef held = handles_.find(kind, pointer)) handles_.hold(handle, held);
    };
    hold(Kind::MODEL, desc->model);
    if constexpr (std::is_same_v<decltype(desc), const cald_job_desc*&>) {
      for (const cald_buffer* buffer : buffers_of(desc->bindings, desc->n_bindings))
        hold(Kind::BUFFER, buffer);
      if (has_field(*desc, &cald_job_desc::set)) hold(Kind::BINDING_SET, desc->set);
    } else {
      hold(Kind::BUFFER, desc->buffer);
    }
    job->session = handle->parent;
    if (job->session != nullptr) pending_before = job->session->unsettled;
  }
  try {
    if (desc->on_complete != nullptr)
      job->forward<Member>(call);
    else
      call.forward();
  } catch (...) {
    const Lock lock(mutex_);
    HandleTable::let_go(*handle);
    throw;
  }
  accepted(call, number, handle, *out, pending_before);
}

void ValidateLayer::accepted(Call& call, uint64_t number, const HandleRef& handle, cald_job* given,
                             size_t pending_before) {
  const char* where = entry_name(call.entry);
  const Lock lock(mutex_);
  const HandleRef device = handle->parent != nullptr ? handle->parent->parent : nullptr;
  const uint64_t room = device != nullptr ? uint64_t{device->depth} + device->queue : 0;
  ValidatedJob& job = *handle->job;
  if (call.status != CALD_OK) {
    HandleTable::let_go(*handle);
    job.refused = true;
    if (job.told > 0)
      note(Rule::completed_refused, where, number, "job %llu was told before it was refused",
           static_cast<unsigned long long>(job.job_seq));
    retire(handle->job);
    if (call.status == CALD_QUEUE_FULL && room != 0 && pending_before < room)
      note(Rule::queue_full_early, where, number, "%zu jobs are there, depth %u and queue %u",
           pending_before, device->depth, device->queue);
    return;
  }
  if (given == nullptr) {
    HandleTable::let_go(*handle);
    return note(Rule::ok_without_handle, where, number, "OK without a job");
  }
  handle->pointer = given;
  if (const HandleRef before = handles_.add(handle))
    note(Rule::handle_lives, where, number, "it is %s", HandleTable::describe(*before).c_str());
  // As many as run may have ended already and be about to be told.
  job.accepted = true;
  job.changed();
  const size_t there = job.session != nullptr ? job.session->untold : 0;
  if (job.on_complete != nullptr && room != 0 && there > room + device->depth)
    note(Rule::queue_overrun, where, number, "%zu jobs are there, depth %u and queue %u", there,
         device->depth, device->queue);
}

void ValidateLayer::completed(ValidatedJob& job, const cald_completion& completion) {
  constexpr size_t kLeast = offsetof(cald_completion, reserved) + sizeof completion.reserved;
  const auto seq = static_cast<unsigned long long>(job.job_seq);
  const char* where = "on_complete";
  {
    const Lock lock(mutex_);
    const uint64_t number = job.call;
    if (job.refused)
      return note(Rule::completed_refused, where, number, "job %llu was refused", seq);
    if (job.gone) return note(Rule::completed_late, where, number, "job %llu is destroyed", seq);
    const bool readable = completion.struct_size >= kLeast;
    // Told under another number it is not this job's end: that may still come.
    if (readable && completion.job_seq != job.job_seq)
      note(Rule::completion_seq, where, number, "job %llu is told as %llu", seq,
           static_cast<unsigned long long>(completion.job_seq));
    else if (job.told++ > 0)
      return note(Rule::completed_twice, where, number, "job %llu, time %d", seq, job.told);
    if (!readable) {
      note(Rule::completion_size, where, number, "job %llu: struct_size is %u", seq,
           completion.struct_size);
    } else {
      job.told_state = completion.state;
      const bool done = completion.state == CALD_JOB_DONE;
      if (!terminal(completion.state) || done != (completion.status == CALD_OK))
        note(Rule::completion_state, where, number, "job %llu: state %d with status %d", seq,
             completion.state, completion.status);
      if (completion.status < 0 || completion.status >= kStatusCount)
        note(Rule::status_range, where, number, "job %llu: status %d", seq, completion.status);
    }
    job.changed();
  }
  ++completing;
  job.on_complete(job.user, &completion);
  --completing;
}

void ValidateLayer::job_query(Call& call, uint64_t number) {
  const auto& [handle, state, error] = call.of<&Table::job_query>();
  const auto [job, before] = [&, handle = handle] {
    const Lock lock(mutex_);
    const JobRef found = job_of(handle);
    return std::pair(found, found == nullptr ? 0
                            : found->waited && !terminal(found->seen_state)
                                ? static_cast<int32_t>(CALD_JOB_DONE)
                                : found->seen_state);
  }();
  call.forward();
  if (job == nullptr || call.status != CALD_OK) return;
  const Lock lock(mutex_);
  const int32_t now = *state;
  const auto seq = static_cast<unsigned long long>(job->job_seq);
  // Threads may ask side by side: what this one saw is compared with what was known before it.
  const bool back = terminal(before)
                        ? !terminal(now) || (terminal(job->seen_state) &&
                                             before == job->seen_state && now != before)
                        : now < before;
  if (now < CALD_JOB_QUEUED || now > CALD_JOB_CANCELLED || back)
    note(Rule::state_back, "job_query", number, "job %llu: state %d after %d", seq, now, before);
  else if (terminal(now) && terminal(job->told_state) && now != job->told_state)
    note(Rule::state_back, "job_query", number, "job %llu: state %d, told as %d", seq, now,
         job->told_state);
  if (now > job->seen_state) job->seen_state = now;
  job->changed();
}

void ValidateLayer::job_wait(Call& call, uint64_t number) {
  const auto& [handle, deadline, error] = call.of<&Table::job_wait>();
  const JobRef job = [&, handle = handle] {
    const Lock lock(mutex_);
    return job_of(handle);
  }();
  call.forward();
  if (job == nullptr || call.status == CALD_WAIT_TIMEOUT) return;
  const Lock lock(mutex_);
  (call.status == CALD_OK ? job->waited : job->lost) = true;
  if (call.status == CALD_OK && job->on_complete != nullptr && job->told == 0)
    note(Rule::waited_untold, "job_wait", number, "job %llu",
         static_cast<unsigned long long>(job->job_seq));
  job->changed();
}

}  // namespace

void ValidatedJob::complete(const cald_completion& completion) {
  if (const auto owner = layer.lock()) owner->completed(*this, completion);
}

Result<std::shared_ptr<Layer>> make_validate_layer(const std::string& config) {
  if (!config.empty())
    return fail(Status::INVALID_ARGUMENT, "layers: validate takes no configuration, not '%.64s'",
                config.c_str());
  return std::shared_ptr<Layer>(std::make_shared<ValidateLayer>());
}

}  // namespace calrt::layers
