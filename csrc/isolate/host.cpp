// SPDX-License-Identifier: Apache-2.0
// What the driver in the child is lent: memory that the parent sees, and a way to be heard.
#include <cstring>

#include "base/log.h"
#include "isolate/program.h"

namespace calrt::isolate {

thread_local std::vector<Told>* told_inside = nullptr;

namespace {

Program* the_program = nullptr;  // of on_complete and the log, whose callers know no other way

template <class Fill>
void tell(RingWriter& ring, Record kind, bool must, Fill&& fill) {
  unsigned char room[2 * kMostText + 256];
  Writer record(room, sizeof room);
  fill(record);
  ring.write(kind, {reinterpret_cast<const char*>(room), record.bytes()}, must);
}

void tell_log(Program& program, int32_t level, uint64_t job_seq, const char* component,
              const char* text) {
  tell(program.ring, Record::LOG, false, [&](Writer& record) {
    record.pod(level);
    record.pod(job_seq);
    record.text(component);
    record.text(text);
  });
}

Program& of(void* user) { return *static_cast<Program*>(user); }

}  // namespace

void on_complete(void* user, const cald_completion* completion) {
  cald_completion nothing{};  // what makes no sense is passed on, for calrt to say so
  nothing.struct_size = sizeof nothing;
  const Told told{reinterpret_cast<uintptr_t>(user),
                  completion != nullptr ? whole(*completion) : nothing};
  if (told_inside != nullptr && told_inside->size() < 8192) {
    told_inside->push_back(told);
    return;
  }
  tell(the_program->ring, Record::COMPLETION, true, [&](Writer& record) {
    record.pod(told.token);
    cald_completion copy = told.completion;
    carry(record, copy);
  });
}

void make_host(Program& program) {
  the_program = &program;
  cald_host& host = program.host;
  host.struct_size = sizeof host;
  host.abi_version = CALD_ABI_VERSION;
  host.user = &program;
  host.log = [](void* user, int32_t level, const char* component, const char* text) {
    tell_log(of(user), level, 0, component, text);
  };
  host.log_job = [](void* user, int32_t level, uint64_t job_seq, const char* component,
                    const char* text) { tell_log(of(user), level, job_seq, component, text); };
  host.trace = [](void* user, int32_t phase, const char* name, uint64_t id, uint64_t t_ns) {
    tell(of(user).ring, Record::TRACE, false, [&](Writer& record) {
      record.pod(phase);
      record.pod(id);
      record.pod(t_ns);
      record.text(name);
    });
  };
  host.alloc = [](void* user, uint64_t bytes, uint64_t align) {
    return of(user).arena.take(bytes, align);
  };
  host.free = [](void* user, void* pointer) {
    if (pointer != nullptr && !of(user).arena.give(pointer))
      tell_log(of(user), CALD_LOG_ERROR, 0, "isolate",
               "the driver freed a pointer that its host's alloc did not give, or twice");
  };
  host.now_ns = [](void*) { return now_ns(); };
  set_log_sink([](const LogRecord& record) {
    tell_log(*the_program, record.level, record.job_seq, record.component, record.text);
  });
}

}  // namespace calrt::isolate
