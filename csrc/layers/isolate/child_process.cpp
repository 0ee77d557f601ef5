// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/child_process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

extern char** environ;

namespace calrt::isolate {
namespace {

Error process_error(const char* what, int number) {
  return fail(Status::OUT_OF_HOST_MEMORY, "isolate: %s: %s", what, std::strerror(number));
}

// posix_spawn's two objects, freed whatever happens.
struct SpawnPlan {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  SpawnPlan() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~SpawnPlan() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
};

}  // namespace

void Fd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

Result<void> ChildProcess::start(const std::vector<std::string>& argv, int socket) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return process_error("no pipe for the child's output", errno);
  Fd output(ends[0]), input(ends[1]);
  fcntl(output.get(), F_SETFL, O_NONBLOCK);
  // Above what is put into place, so that no dup2 is of a descriptor onto itself.
  const Fd high_socket(fcntl(socket, F_DUPFD_CLOEXEC, 16));
  const Fd high_input(fcntl(input.get(), F_DUPFD_CLOEXEC, 16));
  if (!high_socket || !high_input) return process_error("no descriptor for the child", errno);

  SpawnPlan plan;
  posix_spawn_file_actions_addopen(&plan.files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&plan.files, high_input.get(), 1);
  posix_spawn_file_actions_adddup2(&plan.files, high_input.get(), 2);
  posix_spawn_file_actions_adddup2(&plan.files, high_socket.get(), kChildSocket);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&plan.attributes, &none);
  posix_spawnattr_setsigdefault(&plan.attributes, &all);
  posix_spawnattr_setpgroup(&plan.attributes, 0);
  posix_spawnattr_setflags(&plan.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const int failed =
      posix_spawn(&pid_, words[0], &plan.files, &plan.attributes, words.data(), environ);
  if (failed != 0) {
    pid_ = -1;
    return fail(Status::INTERNAL, "isolate: %s cannot be started: %s", words[0],
                std::strerror(failed));
  }
  // Nobody else reaps it, so the number is still its.
  pidfd_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  if (!pidfd_) return process_error("the kernel has no pidfd_open (Linux 5.3 is needed)", errno);
  output_ = std::move(output);
  return {};
}

void ChildProcess::kill() {
  if (pidfd_) (void)syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0);
}

std::string ChildProcess::reap() {
  int status = 0;
  pid_t answered = 0;
  while ((answered = waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  reaped_ = true;
  // Who ignores SIGCHLD, or waits for any child, has taken the answer.
  if (answered != pid_) return "has ended (somebody else has asked the system how)";
  if (WIFSIGNALED(status))
    return "was killed by signal " + std::to_string(WTERMSIG(status)) + " (" +
           strsignal(WTERMSIG(status)) + ")";
  return "ended with exit code " + std::to_string(WEXITSTATUS(status));
}

ChildProcess::~ChildProcess() {
  if (pid_ <= 0 || reaped_) return;
  if (pidfd_)
    kill();
  else
    ::kill(pid_, SIGKILL);
  (void)reap();
}

Result<std::string> find_program() {
  namespace fs = std::filesystem;
  Dl_info info{};
  std::error_code failed;
  fs::path folder;
  if (dladdr(reinterpret_cast<const void*>(&find_program), &info) != 0 && info.dli_fname != nullptr)
    folder = fs::canonical(info.dli_fname, failed).parent_path();
  const fs::path installed = folder / "bin" / "calrt-isolate";
  const fs::path built = folder.parent_path() / "bin" / "calrt-isolate";
  for (const fs::path& place : {installed, built})
    if (access(place.c_str(), X_OK) == 0) return place.string();
  return fail(Status::UNSUPPORTED,
              "isolate: the program calrt-isolate is missing: sought %s and %s; this installation "
              "is incomplete: install calrt anew, or open the device without \"isolate:\"",
              installed.c_str(), built.c_str());
}

}  // namespace calrt::isolate
