// SPDX-License-Identifier: Apache-2.0
#include "calrt/session.h"

#include <algorithm>

#include "calrt/device.h"
#include "calrt/driver_host.h"
#include "calrt/job_control.h"
#include "calrt/session_pump.h"

namespace calrt {

SessionCore::~SessionCore() {
  if (handle.get().inherited()) return;  // the parent's, as its slot
  handle.reset();
  slot->vacate();
}

Result<std::shared_ptr<Session>> Session::open(std::shared_ptr<Device> device, uint32_t index,
                                               Slot<Session>* slot) {
  auto core = std::make_shared<SessionCore>();
  core->slot = slot;
  core->device = std::move(device);
  Device& of = *core->device;
  CALRT_TRY_ASSIGN(const DeviceInfo info, of.info());
  const bool polled = info.completion == CALD_COMPLETION_POLL;
  if (polled && CALRT_DRIVER_ENTRY(of.table(), poll) == nullptr)
    return fail(Status::INTERNAL,
                "driver %s says that its device is to be polled, but has no entry 'poll'",
                of.table().name);
  cald_session* handle = nullptr;
  CALRT_TRY(of.call_alone("session_open", [&](cald_error* detail) {
    return of.table().session_open(of.handle(), index, &handle, detail);
  }));
  if (handle == nullptr)
    return Error{Status::INTERNAL, 0, "the driver answered OK and gave no handle", "session_open"};
  core->handle = SessionHandle({handle, &of.table()});

  std::shared_ptr<Session> session(new Session);
  session->depth_ = info.depth;
  session->virtual_ = polled && info.clock == CALD_CLOCK_VIRTUAL;
  if (info.completion == CALD_COMPLETION_WAIT || (polled && !session->virtual_))
    session->pump_ = std::make_shared<SessionPump>(
        polled ? SessionPump::Kind::POLL : SessionPump::Kind::WAIT, core);
  session->core_ = std::move(core);
  slot->set(session);
  return session;
}

Session::~Session() {
  if (pump_ != nullptr && !core_->handle.get().inherited()) pump_->close();
}

uint64_t Session::now_ns() const { return virtual_ ? virtual_now_.load() : monotonic_ns(); }

Result<uint64_t> Session::poll(uint64_t now_ns) {
  if (!virtual_)
    return fail(Status::UNSUPPORTED, "poll: the device '%s' has no virtual clock",
                device()->spec().c_str());
  CALRT_TRY(device()->check_open());
  uint64_t next = CALD_NO_DEADLINE;
  {
    const std::scoped_lock one_at_a_time(serial());
    now_ns = std::max(now_ns, virtual_now_.load());
    virtual_now_.store(now_ns);
    CALRT_TRY(device()->heeded(call_driver("poll", [&](cald_error* detail) {
      return device()->table().poll(handle(), now_ns, &next, detail);
    })));
  }
  JobSupervisor::get().lose_overdue(*this);
  return next;
}

}  // namespace calrt
