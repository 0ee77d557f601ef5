// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/call.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace calrt::isolate {

void give_error(cald_error* to, const cald_error& from) {
  if (to == nullptr) return;
  const uint32_t size = to->struct_size;
  std::memcpy(static_cast<void*>(to), &from, std::min<size_t>(size, sizeof from));
  to->struct_size = size;
}

Call::Call(Remote& remote, layers::Entry entry, cald_error* error, uint64_t deadline_ns)
    : remote_(remote),
      what_(layers::entry_name(entry)),
      error_(error),
      kind_(Kind::ENTRY),
      pool_(&remote.strings()),
      in_({}, pool_) {
  begin(deadline_ns);
  out_.pod(static_cast<uint32_t>(entry));
  out_.pod(static_cast<uint8_t>(error != nullptr));
}

Call::Call(Remote& remote, Kind kind, const char* what, cald_error* error)
    : remote_(remote),
      what_(what),
      error_(error),
      kind_(kind),
      pool_(&remote.strings()),
      in_({}, pool_) {
  begin(0);
}

void Call::begin(uint64_t deadline_ns) {
  begun_ns_ = now_ns();
  deadline_ns_ = deadline_ns != 0 ? deadline_ns : begun_ns_ + remote_.patience().entry_ns;
  channel_ = remote_.take_channel(deadline_ns_, what_);
  if (channel_ >= 0) {
    out_ = Writer(remote_.channels_[channel_].message(), kMessageBytes);
    returned_ = true;
  }
}

Call::~Call() {
  if (channel_ >= 0 && returned_) remote_.give_back(channel_);
}

cald_status Call::refuse(cald_status status, const char* format, ...) {
  cald_error error{};
  error.code = status_ = status;
  va_list args;
  va_start(args, format);
  std::vsnprintf(error.message, sizeof error.message, format, args);
  va_end(args);
  std::snprintf(error.where, sizeof error.where, "%s", what_);
  give_error(error_, error);
  return status;
}

bool Call::lost() {
  (void)refuse(CALD_DEVICE_LOST, "%s", remote_.why().c_str());
  return false;
}

cald_status Call::nonsense() {
  remote_.lose(std::string("gave an answer to ") + what_ + " that makes no sense, and was killed");
  (void)lost();
  return status_;
}

bool Call::run() {
  const auto late = [&] {
    char text[96];
    std::snprintf(text, sizeof text, "did not return within %.1f s and was killed",
                  static_cast<double>(now_ns() - begun_ns_) / 1e9);
    remote_.lose(text);
    return lost();
  };
  if (channel_ < 0) return remote_.lost() ? lost() : late();
  if (!out_.good()) {
    (void)refuse(CALD_OUT_OF_RANGE,
                 "%s: its arguments are more than the %llu bytes that another process is sent at "
                 "once, or a struct_size is wrong",
                 what_, static_cast<unsigned long long>(kMessageBytes));
    return false;
  }
  Channel& channel = remote_.channels_[channel_];
  returned_ = false;
  channel.give(Turn::CHILD, kind_, static_cast<uint32_t>(out_.bytes()));
  for (;;) {
    switch (channel.wait_parent(deadline_ns_, remote_.lost_)) {
      case Channel::Wait::TURN:
        break;
      case Channel::Wait::LATE:
        return late();
      case Channel::Wait::STOPPED:
        return lost();
    }
    const Kind kind = channel.kind();
    const uint32_t bytes = channel.bytes();
    if (bytes > kMessageBytes) return nonsense(), false;
    reply_.assign(reinterpret_cast<const char*>(channel.message()), bytes);
    in_ = Reader(reply_, pool_);
    if (kind == Kind::REPLY) {
      returned_ = true;
      return take_reply();
    }
    if (kind != Kind::PROGRESS || !progress_) return nonsense(), false;
    const auto done = in_.get<uint64_t>(), total = in_.get<uint64_t>();
    if (!in_.good()) return nonsense(), false;
    Writer answer(channel.message(), kMessageBytes);
    answer.pod(static_cast<uint8_t>(progress_(done, total)));
    deadline_ns_ = now_ns() + remote_.patience().entry_ns;
    remote_.load_progressed();
    channel.give(Turn::CHILD, Kind::GO_ON, static_cast<uint32_t>(answer.bytes()));
  }
}

bool Call::take_reply() {
  in_.pod(status_);
  if (in_.get<uint8_t>() != 0) {
    cald_error error{};
    carry(in_, error);
    if (in_.good()) give_error(error_, error);
  }
  in_.pod(ring_position_);
  // Jobs that ended inside of the entry are told of on this thread, as the driver itself would.
  for (auto left = in_.get<uint32_t>(); left > 0 && in_.good(); --left) {
    const auto token = in_.get<uint64_t>();
    cald_completion completion{};
    carry(in_, completion);
    if (in_.good() && !remote_.jobs().end(token, completion))
      remote_.log(CALD_LOG_ERROR, completion.job_seq, "isolate",
                  "the driver told of the end of a job that does not run: dropped");
  }
  if (!in_.good()) (void)nonsense();
  return in_.good();
}

}  // namespace calrt::isolate
