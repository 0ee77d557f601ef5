// SPDX-License-Identifier: Apache-2.0
#include "calrt/package_files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

#include "base/sha256.h"

namespace calrt {
namespace {

constexpr uint64_t kHashWhole = 1 << 20;      // fast mode: files up to this size ...
constexpr uint64_t kHashTogether = 64 << 20;  // ... and this much of them in all
// O_NONBLOCK: a FIFO must not hold the open; O_NOFOLLOW and RESOLVE_* keep links out.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW;

int walk_beneath(int directory_fd, const std::string& path, int* error) {
  int at = directory_fd;
  size_t begin = 0;
  for (;;) {
    const size_t slash = path.find('/', begin);
    const bool last = slash == std::string::npos;
    const std::string name = path.substr(begin, last ? std::string::npos : slash - begin);
    int next = -1;
    if (name.empty() || name == "." || name == "..") {
      errno = EXDEV;
    } else {
      next = openat(at, name.c_str(), last ? kOpenFlags : kOpenFlags | O_DIRECTORY);
    }
    *error = errno;
    if (at != directory_fd) close(at);
    if (next < 0 || last) return next;
    at = next;
    begin = slash + 1;
  }
}

Result<std::string> digest_of(int fd, uint64_t bytes) {
  Sha256 hash;
  char piece[64 * 1024];
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t want = std::min<uint64_t>(sizeof piece, bytes - at);
    const ssize_t got = pread(fd, piece, want, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return fail(Status::PACKAGE_CORRUPT, "%s at byte %" PRIu64, std::strerror(errno), at);
    }
    if (got == 0) {
      return fail(Status::PACKAGE_CORRUPT, "ends at byte %" PRIu64 " of %" PRIu64, at, bytes);
    }
    hash.update(piece, static_cast<size_t>(got));
    at += static_cast<uint64_t>(got);
  }
  return hex(hash.digest());
}

void check_artifact_content(const ManifestArtifact& artifact, const At& at, const PackageFile& file,
                            ContentCounts* counts, Findings* out) {
  if (artifact.bytes && *artifact.bytes != file.bytes) {
    const bool shorter = file.bytes < *artifact.bytes;
    const uint64_t difference =
        shorter ? *artifact.bytes - file.bytes : file.bytes - *artifact.bytes;
    out->reject("B01", {at.field + "/bytes", at.artifact, at.file},
                text("%s: %s bytes declared, %s on disk (%s%s)", shown(artifact.path).c_str(),
                     grouped(*artifact.bytes).c_str(), grouped(file.bytes).c_str(),
                     shorter ? "−" : "+", grouped(difference).c_str()),
                std::to_string(*artifact.bytes), std::to_string(file.bytes));
    return;
  }
  if (!artifact.sha256 || file.bytes > kHashWhole ||
      counts->hashed_bytes + file.bytes > kHashTogether) {
    return;
  }
  counts->hashed_bytes += file.bytes;
  Result<std::string> digest = digest_of(file.fd, file.bytes);
  if (!digest) {
    out->reject("B09", at,
                text("%s cannot be read: %s", shown(artifact.path).c_str(),
                     digest.error().message.c_str()));
  } else if (*digest != *artifact.sha256) {
    out->reject("B02", {at.field + "/sha256", at.artifact, at.file},
                text("%s: SHA-256 %s… declared, %s… found", shown(artifact.path).c_str(),
                     shown(artifact.sha256->substr(0, 12)).c_str(), digest->substr(0, 12).c_str()),
                json_quote(*artifact.sha256), json_quote(*digest));
  }
}

}  // namespace

int open_beneath(int directory_fd, const std::string& path, bool walk, int* error) {
  if (!walk) {
    open_how how{};
    how.flags = kOpenFlags;
    how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
    for (int attempt = 0; attempt < 8; ++attempt) {
      const long fd = syscall(SYS_openat2, directory_fd, path.c_str(), &how, sizeof how);
      if (fd >= 0) return static_cast<int>(fd);
      *error = errno;
      // EAGAIN: something was renamed meanwhile and the kernel could not be sure.
      if (*error != EAGAIN && *error != EINTR) break;
    }
    // Sandboxes answer EPERM for calls they do not know.
    if (*error != ENOSYS && *error != EPERM) return -1;
  }
  return walk_beneath(directory_fd, path, error);
}

const char* open_failure(int error, const char* unreadable) {
  const bool ran_out = error == EMFILE || error == ENFILE || error == ENOMEM;
  return ran_out ? "A10" : unreadable;
}

Result<std::string> read_all(int fd, uint64_t limit) {
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    return fail(Status::PACKAGE_CORRUPT, "cannot be read: %s", std::strerror(errno));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > limit) {
    return fail(Status::OUT_OF_RANGE, "has %" PRIu64 " bytes, at most %" PRIu64 " are read", size,
                limit);
  }
  std::string out(size, '\0');
  for (uint64_t at = 0; at < size;) {
    const ssize_t got = pread(fd, out.data() + at, size - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      return fail(Status::PACKAGE_CORRUPT, "cannot be read: %s at byte %" PRIu64,
                  got < 0 ? std::strerror(errno) : "the file ended", at);
    }
    at += static_cast<uint64_t>(got);
  }
  return out;
}

ContentCounts check_content(const Manifest& manifest, const PackageFiles& files, Findings* out) {
  ContentCounts counts;
  for (size_t i = 0; i < manifest.artifacts.size(); ++i) {
    const ManifestArtifact& artifact = manifest.artifacts[i];
    const auto file = files.find(artifact.id);
    if (file == files.end()) continue;
    ++counts.files;
    counts.bytes += file->second.bytes;
    check_artifact_content(artifact,
                           {"/artifacts/" + std::to_string(i), artifact.id, artifact.path},
                           file->second, &counts, out);
  }
  return counts;
}

}  // namespace calrt
