// SPDX-License-Identifier: Apache-2.0
// Sources and sinks of state blobs: memory and files.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/kv_state.h"

namespace calrt::engine {

namespace {

// What the caller can do about it.
const char* advice(int code) {
  switch (code) {
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    case EACCES:
    case EPERM:
    case EROFS:
      return "it needs other rights, or another path";
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return "make room, or take another path";
    case EMFILE:
    case ENFILE:
      return "close other files first";
    default:
      return "take another path";
  }
}

// Of the file as the caller named it.
Error file_error(const std::string& path, const char* what, int code) {
  const bool handles = code == EMFILE || code == ENFILE;
  return fail(handles ? Status::OUT_OF_HOST_MEMORY : Status::INVALID_ARGUMENT,
              "path: cannot %s '%s': %s; %s", what, path.c_str(), std::strerror(code),
              advice(code));
}

Error cannot_create(const std::string& path, int code) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (code == ENOENT && access(folder.c_str(), F_OK) != 0)
    return fail(Status::INVALID_ARGUMENT,
                "path: cannot create '%s': there is no folder '%s'; make it first", path.c_str(),
                folder.c_str());
  return file_error(path, "create", code);
}

Error outside(uint64_t offset, uint64_t n, uint64_t size) {
  return fail(Status::KV_INVALID_SEQUENCE,
              "state: %llu bytes at %llu are wanted, but there are only %llu",
              (unsigned long long)n, (unsigned long long)offset, (unsigned long long)size);
}

bool inside(uint64_t offset, uint64_t n, uint64_t size) {
  return offset <= size && n <= size - offset;
}

}  // namespace

Result<void> MemorySink::write_at(uint64_t offset, std::span<const unsigned char> bytes) {
  if (!inside(offset, bytes.size(), memory_.size()))
    return outside(offset, bytes.size(), memory_.size());
  std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
  return {};
}

Result<std::span<const unsigned char>> MemorySource::at(uint64_t offset, uint64_t n) {
  if (!inside(offset, n, memory_.size())) return outside(offset, n, memory_.size());
  return memory_.subspan(offset, n);
}

Result<FileSink> FileSink::open(std::string path) {
  static std::atomic<unsigned> files{0};
  struct stat known{};
  if (stat(path.c_str(), &known) == 0 && !S_ISREG(known.st_mode))  // a device would be replaced
    return fail(Status::INVALID_ARGUMENT, "path: '%s' is there and no regular file", path.c_str());
  std::string temporary =
      path + ".part-" + std::to_string(getpid()) + "-" + std::to_string(++files);
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return cannot_create(path, errno);
  return FileSink(std::move(path), std::move(temporary), fd);
}

FileSink::FileSink(FileSink&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)) {}

FileSink::~FileSink() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

Result<void> FileSink::write_at(uint64_t offset, std::span<const unsigned char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return file_error(path_, "write", n < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return {};
}

Result<void> FileSink::commit() {
  // The bytes are on the disk before the name is.
  if (fsync(fd_) != 0) return file_error(path_, "write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return file_error(path_, "write", errno);
  close(std::exchange(fd_, -1));
  return {};
}

Result<FileSource> FileSource::open(std::string path) {
  // Not to wait for a writer of what is no regular file.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT)
    return fail(Status::INVALID_ARGUMENT, "path: there is no file '%s': save a state there first",
                path.c_str());
  if (fd < 0) return file_error(path, "open", errno);
  struct stat facts{};
  if (fstat(fd, &facts) != 0 || !S_ISREG(facts.st_mode)) {
    close(fd);
    return fail(Status::INVALID_ARGUMENT, "path: '%s' is no regular file", path.c_str());
  }
  return FileSource(std::move(path), fd, static_cast<uint64_t>(facts.st_size));
}

FileSource::FileSource(FileSource&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      scratch_(std::move(other.scratch_)) {}

FileSource::~FileSource() {
  if (fd_ >= 0) close(fd_);
}

Result<std::span<const unsigned char>> FileSource::at(uint64_t offset, uint64_t n) {
  if (!inside(offset, n, size_)) return outside(offset, n, size_);
  if (scratch_.size() < n) scratch_.resize(n);
  for (uint64_t done = 0; done < n;) {
    const ssize_t got =
        pread(fd_, scratch_.data() + done, n - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(path_, "read", errno);
    if (got == 0)
      return fail(Status::KV_INVALID_SEQUENCE, "state: '%s' became shorter while it was read",
                  path_.c_str());
    done += static_cast<uint64_t>(got);
  }
  return std::span<const unsigned char>(scratch_.data(), n);
}

}  // namespace calrt::engine
