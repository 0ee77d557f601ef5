// SPDX-License-Identifier: Apache-2.0
#include "calrt/device_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/process.h"
#include "base/ranked_mutex.h"

namespace calrt {
namespace fs = std::filesystem;
namespace {

constexpr int kAttempts = 16;  // against files and locks that come and go meanwhile

// The locks of this process. Closing any descriptor of a file frees the process's record lock on
// it, so there is one descriptor per file, and it is closed under the mutex.
struct HeldLock {
  int fd = -1;
  int count = 0;
};
// A fork's child gets a new, empty one; the descriptors it inherited stay open there, for to close
// one would free a lock that the child has taken itself.
struct Locks {
  RankedMutex mutex{LockRank::LEAF, "device locks"};
  std::map<std::string, HeldLock> held;
};

Result<std::string> folder() {
  const char* chosen = std::getenv("CALRT_LOCK_DIR");
  std::error_code failed;
  const fs::path wanted =
      chosen != nullptr && *chosen != '\0' ? fs::path(chosen) : fs::temp_directory_path(failed);
  const fs::path real = failed ? fs::path() : fs::canonical(wanted, failed);
  if (failed)
    return fail(Status::INVALID_ARGUMENT,
                "device lock: folder '%s': %s; CALRT_LOCK_DIR names the folder for locks",
                wanted.c_str(), failed.message().c_str());
  return real.string();
}

// A file name that says which device; what could mean something to the file system does not pass.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text.substr(0, 64)) {
    const bool kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_' || c == '.';
    char hex[4];
    std::snprintf(hex, sizeof hex, "%%%02x", static_cast<unsigned char>(c));
    out += kept ? std::string(1, c) : hex;
  }
  return out;
}

Error unusable(const std::string& path, const char* why) {
  return fail(
      Status::INVALID_ARGUMENT,
      "device lock: %s: %s; CALRT_LOCK_DIR names another folder, the same for all processes "
      "that use the device",
      path.c_str(), why);
}

// The file, made if need be, open to everybody. Not O_CREAT on a file that is there: systems refuse
// that in folders for temporary files when the file is another user's.
Result<int> open_file(const std::string& path) {
  constexpr int kFlags = O_RDWR | O_CLOEXEC | O_NOFOLLOW;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    int fd = ::open(path.c_str(), kFlags);
    if (fd < 0 && errno == ENOENT) {
      fd = ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666);
      if (fd >= 0) (void)::fchmod(fd, 0666);  // whatever the umask; this very file is new and ours
    }
    if (fd < 0 && errno == EEXIST) continue;
    if (fd < 0) return unusable(path, errno == ELOOP ? "is a symbolic link" : std::strerror(errno));
    struct stat is{};
    if (::fstat(fd, &is) == 0 && S_ISREG(is.st_mode)) return fd;
    ::close(fd);
    return unusable(path, "is no plain file");
  }
  return unusable(path, "comes and goes");
}

// True while `path` is the file that `fd` has open: else somebody has removed it meanwhile.
bool still_there(int fd, const std::string& path) {
  struct stat open{}, named{};
  return ::fstat(fd, &open) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

Result<int> lock_file(const std::string& path, const std::string& driver, const std::string& id) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    CALRT_TRY_ASSIGN(const int fd, open_file(path));
    struct flock whole{};
    whole.l_type = F_WRLCK;
    whole.l_whence = SEEK_SET;
    struct flock other = whole;
    if (::fcntl(fd, F_SETLK, &whole) == 0) {
      if (still_there(fd, path)) return fd;
      ::close(fd);
      continue;
    }
    const int why = errno;
    const bool asked = ::fcntl(fd, F_GETLK, &other) == 0;
    ::close(fd);
    if (why != EACCES && why != EAGAIN) return unusable(path, std::strerror(why));
    if (!asked || other.l_type == F_UNLCK) continue;  // it was freed meanwhile
    const std::string holder = other.l_pid > 0 ? "process " + std::to_string(other.l_pid)
                                               : "a process that is not visible from here";
    return fail(Status::DEVICE_UNHEALTHY,
                "device '%.64s' of driver %.64s is exclusive and held by %s: end that process or "
                "use another device",
                id.c_str(), driver.c_str(), holder.c_str());
  }
  return unusable(path, "its lock comes and goes");
}

}  // namespace

Result<DeviceLock> DeviceLock::take(const std::string& driver, const std::string& id) {
  CALRT_TRY_ASSIGN(const std::string in, folder());
  DeviceLock lock;
  const std::string path = in + "/calrt-" + plain(driver) + "-" + plain(id) + ".lock";
  Locks& locks = per_process<Locks>();
  const std::scoped_lock guard(locks.mutex);
  HeldLock& held = locks.held[path];
  if (held.count == 0) {
    auto fd = lock_file(path, driver, id);
    if (!fd.ok()) {
      locks.held.erase(path);
      return std::move(fd).error();
    }
    held.fd = *fd;
  }
  ++held.count;
  lock.path_ = path;
  lock.process_ = process_generation();
  return lock;
}

void DeviceLock::release() noexcept {
  if (!held()) return;
  const std::string path = std::exchange(path_, {});
  if (process_ != process_generation()) return;
  Locks& locks = per_process<Locks>();
  const std::scoped_lock guard(locks.mutex);
  const auto found = locks.held.find(path);
  if (found == locks.held.end() || --found->second.count > 0) return;
  ::close(found->second.fd);
  locks.held.erase(found);
}

}  // namespace calrt
