// SPDX-License-Identifier: Apache-2.0
// What this process has: its children, and what a child may leave behind.
#pragma once

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "calrt/driver_host.h"

namespace calrt {

// Sets a variable of the environment, which a child is born with; back at the end.
struct Environment {
  std::string name;
  Environment(const char* of, const std::string& value) : name(of) { setenv(of, value.c_str(), 1); }
  ~Environment() { unsetenv(name.c_str()); }
};

inline size_t entries_of(const char* folder) {
  size_t count = 0;
  DIR* dir = opendir(folder);
  while (dir != nullptr && readdir(dir) != nullptr) ++count;
  if (dir != nullptr) closedir(dir);
  return count;
}

// Children of this process, zombies too.
inline std::vector<pid_t> children() {
  std::vector<pid_t> all;
  DIR* dir = opendir("/proc/self/task");
  for (dirent* task = nullptr; dir != nullptr && (task = readdir(dir)) != nullptr;) {
    std::ifstream file(std::string("/proc/self/task/") + task->d_name + "/children");
    for (pid_t pid = 0; file >> pid;) all.push_back(pid);
  }
  if (dir != nullptr) closedir(dir);
  return all;
}

// Waits until `done`, a second at the most; a minute is what a machine that stands still is given.
template <class Done>
bool soon(Done&& done, int seconds = 20) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  while (!done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

struct Belongings {
  size_t fds = 0, threads = 0, processes = 0, maps = 0;
  static Belongings now() {
    Belongings have;
    have.fds = entries_of("/proc/self/fd");
    have.threads = entries_of("/proc/self/task");
    have.processes = children().size();
    std::ifstream maps("/proc/self/maps");
    // Heaps of threads come and go with the allocator: what is shared is what a child leaves.
    for (std::string line; std::getline(maps, line);)
      have.maps += line.find("calrt-isolate") != std::string::npos;
    return have;
  }
  bool operator==(const Belongings&) const = default;
};

}  // namespace calrt
