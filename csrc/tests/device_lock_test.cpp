// SPDX-License-Identifier: Apache-2.0
// One process at a time: held, shared within a process, freed by its end, safe in a shared folder.
#include "calrt/device_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>

#include "calrt/device.h"
#include "tests/check.h"

using namespace calrt;
namespace fs = std::filesystem;

namespace {

struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "calrt-lock-XXXXXX").string();
    path = mkdtemp(name.data());
    setenv("CALRT_LOCK_DIR", path.c_str(), 1);
  }
  ~Folder() {
    unsetenv("CALRT_LOCK_DIR");
    fs::remove_all(path);
  }
};

// Runs `work` in a forked process; its answer is the exit code.
int in_child(const std::function<int()>& work) {
  const pid_t child = fork();
  if (child == 0) _exit(work());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool names(const Error& error, pid_t holder) {
  const std::string words = "held by process " + std::to_string(holder);
  return error.code == Status::DEVICE_UNHEALTHY && error.message.find(words) != std::string::npos;
}

// A process that holds the lock until it is ended.
struct Holder {
  pid_t pid = 0;
  explicit Holder(const char* id) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid = fork();
    if (pid == 0) {
      const auto lock = DeviceLock::take("driver", id);
      char byte = lock.ok() ? 'y' : 'n';
      (void)!write(ready[1], &byte, 1);
      for (;;) pause();
    }
    char byte = 0;
    CHECK(read(ready[0], &byte, 1) == 1 && byte == 'y');
    ::close(ready[0]), ::close(ready[1]);
  }
  void end(int signal) {
    kill(pid, signal);
    waitpid(pid, nullptr, 0);
  }
};

}  // namespace

TEST(held_by_one_process_and_named) {
  const Folder folder;
  Holder holder("bus 7/0");
  auto refused = DeviceLock::take("driver", "bus 7/0");
  CHECK(!refused.ok() && names(refused.error(), holder.pid));
  CHECK(DeviceLock::take("driver", "other").ok() && DeviceLock::take("driver2", "bus 7/0").ok());
  holder.end(SIGKILL);
  auto taken = DeviceLock::take("driver", "bus 7/0");
  CHECK(taken.ok() && taken->held());
}

TEST(shared_within_a_process_and_freed_with_the_last) {
  const Folder folder;
  const auto other_gets_it = [] { return DeviceLock::take("driver", "0").ok() ? 1 : 0; };
  auto first = DeviceLock::take("driver", "0"), second = DeviceLock::take("driver", "0");
  CHECK(first.ok() && second.ok() && first->path() == second->path());
  CHECK(in_child(other_gets_it) == 0);
  *first = DeviceLock();
  CHECK(in_child(other_gets_it) == 0);
  DeviceLock moved = *std::move(second);
  CHECK(moved.held() && in_child(other_gets_it) == 0);
  moved = DeviceLock();
  CHECK(in_child(other_gets_it) == 1);
  CHECK(DeviceLock::take("driver", "0").ok());
}

TEST(a_forks_child_has_no_part_in_it) {
  const Folder folder;
  auto lock = *DeviceLock::take("driver", "0");
  const pid_t parent = getpid();
  CHECK(in_child([&] {  // it is refused, and to drop its copy frees nothing
          auto own = DeviceLock::take("driver", "0");
          lock = DeviceLock();
          return !own.ok() && names(own.error(), parent) ? 7 : 0;
        }) == 7);
  CHECK(in_child([] { return DeviceLock::take("driver", "0").ok() ? 1 : 0; }) == 0);
  // Once the parent lets go, a child may take it; the inherited copy does not disturb.
  int go[2];
  CHECK(pipe(go) == 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    (void)!read(go[0], &byte, 1);
    auto own = DeviceLock::take("driver", "0");
    lock = DeviceLock();
    const pid_t self = getpid();
    const int others = in_child([&] {
      auto theirs = DeviceLock::take("driver", "0");
      return !theirs.ok() && names(theirs.error(), self) ? 7 : 0;
    });
    _exit(own.ok() && others == 7 ? 7 : 0);
  }
  lock = DeviceLock();
  CHECK(write(go[1], "x", 1) == 1);
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

TEST(the_file_is_everybodys_and_plain) {
  const Folder folder;
  const mode_t mask = umask(077);
  auto lock = *DeviceLock::take("dri/ver", "../../id");
  umask(mask);
  CHECK(fs::path(lock.path()).parent_path() == fs::canonical(folder.path));
  struct stat is{};
  CHECK(stat(lock.path().c_str(), &is) == 0 && (is.st_mode & 0777) == 0666);
}

TEST(files_that_are_no_lock_files_are_refused) {
  const Folder folder;
  const fs::path victim = folder.path / "victim", link = folder.path / "calrt-driver-0.lock";
  std::ofstream(victim) << "untouched";
  fs::create_symlink(victim, link);
  auto refused = DeviceLock::take("driver", "0");
  CHECK(!refused.ok() && refused.error().code == Status::INVALID_ARGUMENT);
  CHECK(refused.error().message.find("symbolic link") != std::string::npos);
  fs::remove(link);
  fs::create_directory(link);
  refused = DeviceLock::take("driver", "0");
  CHECK(!refused.ok() && refused.error().message.find("CALRT_LOCK_DIR") != std::string::npos);
  fs::remove(link);
  CHECK(mkfifo(link.c_str(), 0666) == 0);
  refused = DeviceLock::take("driver", "0");
  CHECK(!refused.ok() && refused.error().message.find("no plain file") != std::string::npos);
  setenv("CALRT_LOCK_DIR", "/no/such/folder", 1);
  refused = DeviceLock::take("driver", "0");
  CHECK(!refused.ok() && refused.error().message.find("/no/such/folder") != std::string::npos);
}

TEST(a_device_takes_it_when_it_says_exclusive_or_is_asked_to) {
  const Folder folder;
  const auto free_for_others = [] { return DeviceLock::take("null", "null:0").ok() ? 1 : 0; };
  const auto open = [](const char* layers, std::optional<bool> exclusive) {
    return Device::open("null", {}, {std::string(layers), exclusive});
  };
  {
    auto shared = open("", {});
    CHECK(shared.ok() && in_child(free_for_others) == 1);
    auto asked = open("", true);
    CHECK(asked.ok() && in_child(free_for_others) == 0);
    CHECK(open("", true).ok());  // again in this process
  }
  CHECK(in_child(free_for_others) == 1);
  {
    auto says = open("fault:device_info exclusive=1", {});
    CHECK(says.ok() && in_child(free_for_others) == 0);
  }
  {
    auto overruled = open("fault:device_info exclusive=1", false);
    CHECK(overruled.ok() && in_child(free_for_others) == 1);
  }
  {
    auto named = open("fault:device_info exclusive=1 id=bus7", {});
    CHECK(named.ok() && in_child(free_for_others) == 1);
    CHECK(in_child([] { return DeviceLock::take("null", "bus7").ok() ? 1 : 0; }) == 0);
  }
}

TEST(a_device_held_elsewhere_is_not_opened) {
  const Folder folder;
  int ready[2];
  CHECK(pipe(ready) == 0);
  const pid_t holder = fork();
  if (holder == 0) {
    const auto device = Device::open("null", {}, {"", true});
    (void)!write(ready[1], "x", 1);
    for (;;) pause();
  }
  char byte = 0;
  CHECK(read(ready[0], &byte, 1) == 1);
  auto refused = Device::open("null", {}, {"", true});
  CHECK(!refused.ok() && names(refused.error(), holder));
  CHECK(Device::open("null", {}, {"", {}}).ok());
  kill(holder, SIGKILL);
  waitpid(holder, nullptr, 0);
  CHECK(Device::open("null", {}, {"", true}).ok());
}
