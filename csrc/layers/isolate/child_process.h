// SPDX-License-Identifier: Apache-2.0
// One child process: started with a program and a socket, watched through its pidfd, killed and
// reaped. It dies with the thread that started it, at the latest when this process does.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <string>
#include <vector>

#include "base/result.h"

namespace calrt::isolate {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

inline constexpr int kChildSocket = 3;  // descriptor of the socket in the child

class ChildProcess {
 public:
  ChildProcess() = default;
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;
  ~ChildProcess();  // kills what has not been reaped

  // argv[0] is the program. It gets `socket` as kChildSocket, /dev/null as input, a process group
  // of its own, so that a terminal's Ctrl-C is for this process alone, and no blocked signals.
  Result<void> start(const std::vector<std::string>& argv, int socket);

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }    // readable once it has ended
  int output() const { return output_.get(); }  // its stdout and stderr; does not block
  void close_output() { output_.reset(); }
  void kill();  // at any time, from any thread
  // How it ended, once pidfd() is readable: "was killed by signal 11 (Segmentation fault)".
  std::string reap();

 private:
  pid_t pid_ = -1;
  Fd pidfd_, output_;
  bool reaped_ = false;
};

// The program `calrt-isolate`: in bin/ beside libcalrt's folder, or in it. NOT found: an error that
// names the places.
Result<std::string> find_program();

}  // namespace calrt::isolate
