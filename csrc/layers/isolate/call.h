// SPDX-License-Identifier: Apache-2.0
// One call in the child: takes a channel, is filled, runs, and is read. One thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layers/isolate/remote.h"
#include "layers/isolate/wire_structs.h"

namespace calrt::isolate {

class Call {
 public:
  // `error`: the caller's, may be null. `deadline_ns`: 0 = what the Remote's patience says.
  Call(Remote& remote, layers::Entry entry, cald_error* error, uint64_t deadline_ns = 0);
  Call(Remote& remote, Kind kind, const char* what, cald_error* error);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  Writer& out() { return out_; }  // the arguments, in order
  // Called for each sign of life of a load; false ends it.
  void on_progress(std::function<bool(uint64_t done, uint64_t total)> progress) {
    progress_ = std::move(progress);
  }
  // True: the entry has returned, status() is what it answered and in() what it gave. False: it was
  // not called or did not return, and status() says so. The error is filled either way.
  bool run();
  cald_status status() const { return status_; }
  Reader& in() { return in_; }
  // What was given made no sense: the child is lost.
  cald_status nonsense();
  // Where the ring stood when the entry had returned.
  uint64_t ring_position() const { return ring_position_; }
  cald_status refuse(cald_status status, const char* format, ...)
      __attribute__((format(printf, 3, 4)));

 private:
  void begin(uint64_t deadline_ns);
  bool lost();
  bool take_reply();

  Remote& remote_;
  const char* const what_;
  cald_error* const error_;
  const Kind kind_;
  uint64_t begun_ns_ = 0, deadline_ns_ = 0;
  int channel_ = -1;
  bool returned_ = false;  // the channel is the parent's again
  Pool pool_;
  std::string reply_;
  Writer out_{nullptr, 0};
  Reader in_;
  std::function<bool(uint64_t, uint64_t)> progress_;
  cald_status status_ = CALD_OK;
  uint64_t ring_position_ = 0;
};

// Fills a caller's error, which may be null, or of another version.
void give_error(cald_error* to, const cald_error& from);

}  // namespace calrt::isolate
