// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "isolate/job_waiter.h"
#include "isolate/program.h"
#include "layers/isolate/child_process.h"
#include "layers/isolate/descriptors.h"

namespace calrt::isolate {

Program::Program(SharedMemory shared, int ring_event)
    : memory(std::move(shared)),
      arena(memory.arena(), memory.arena_bytes()),
      ring(&memory.control().ring, memory.ring(), ring_event) {}

std::vector<int> Program::take_parcel(uint64_t tag) {
  std::unique_lock lock(parcels_mutex);
  parcels_came.wait(lock, [&] { return parcels.contains(tag); });
  std::vector<int> fds = std::move(parcels[tag]);
  parcels.erase(tag);
  return fds;
}

namespace {

constexpr size_t kFirstEvent = 3;  // after the memory, the ring's event and the pulse's

// Until there is one, or the parent is gone. Who asks meanwhile whether this process lives is
// answered.
bool wait_for_parcel(Program& program, int pulse_event) {
  PulseState& pulse = program.memory.control().pulse;
  for (;;) {
    pollfd news[] = {{kChildSocket, POLLIN, 0}, {pulse_event, POLLIN, 0}};
    if (poll(news, 2, -1) < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    if (news[1].revents != 0) {
      clear_eventfd(pulse_event);
      pulse.answered.store(pulse.asked.load());
    }
    if (news[0].revents != 0) return true;
  }
}

int main_of(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(
        stderr,
        "calrt-isolate: runs a driver for calrt, which starts it: calrt.open(\"isolate:%s\")\n",
        argc > 1 ? argv[1] : "DRIVER");
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::to_string(getppid()) != argv[1]) return 2;  // it had died before
  syscall(SYS_close_range, kChildSocket + 1, ~0u, 0);  // the parent's, that it did not mean to pass
  signal(SIGPIPE, SIG_IGN);

  Parcel first;
  if (!receive_fds(kChildSocket, &first) || first.fds.size() != kFirstEvent + 2 * kChannels)
    return 2;
  auto memory = SharedMemory::attach(first.fds[0]);
  if (!memory.ok()) {
    std::fprintf(stderr, "calrt-isolate: %s\n", memory.error().message.c_str());
    return 2;
  }
  auto* program = new Program(std::move(*memory), first.fds[1]);  // as long as the process
  program->library = argv[2];
  make_host(*program);
  for (uint32_t i = 0; i < kChannels; ++i) {
    const int events[2] = {first.fds[kFirstEvent + 2 * i], first.fds[kFirstEvent + 1 + 2 * i]};
    const Channel channel(&program->memory.control().channels[i], program->memory.message(i),
                          events);
    std::thread([program, channel] { serve_channel(*program, channel); }).detach();
  }
  for (Parcel parcel;
       wait_for_parcel(*program, first.fds[2]) && receive_fds(kChildSocket, &parcel);) {
    const std::scoped_lock lock(program->parcels_mutex);
    program->parcels[parcel.tag] = std::move(parcel.fds);
    program->parcels_came.notify_all();
  }
  // The parent has closed the socket, or is gone: the end, at once, whatever the driver's threads
  // are doing and its destructors would do.
  syscall(SYS_exit_group, 0);
  return 0;
}

}  // namespace
}  // namespace calrt::isolate

int main(int argc, char** argv) { return calrt::isolate::main_of(argc, argv); }
