// SPDX-License-Identifier: Apache-2.0
#include "layers/layer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include "base/log.h"
#include "base/process.h"
#include "base/utf8.h"
#include "layers/words.h"

namespace calrt::layers {
namespace {

constexpr size_t kFlushBytes = 32 * 1024;

std::string unquoted(std::string text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
    return text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

uint64_t steady_ns() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : clean_utf8(std::string(text).c_str(), text.size())) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", c);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string json_string(const char* text) {
  return json_string(std::string_view(text != nullptr ? text : ""));
}

Result<FileConfig> FileConfig::parse(const char* layer, const std::string& config,
                                     const std::vector<Word>& words) {
  FileConfig parsed;
  for (const Word& word : words) parsed.values[word.name] = word.usual;
  const auto parts = split_outside_quotes(config, ' ');
  if (parts.empty() || unquoted(parts[0]).empty())
    return fail(Status::INVALID_ARGUMENT, "layers: %s needs a file: \"%s:FILE\"", layer, layer);
  parsed.path = unquoted(parts[0]);
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    const std::string name = parts[i].substr(0, equals);
    const std::string value = equals == std::string::npos ? "1" : parts[i].substr(equals + 1);
    const Word* known = nullptr;
    std::string all;
    for (const Word& word : words) {
      if (name == word.name) known = &word;
      all += std::string(all.empty() ? "" : ", ") + word.name;
    }
    if (known == nullptr)
      return fail(Status::INVALID_ARGUMENT,
                  "layers: %s has no word '%.64s' after its file (put a file's name with spaces in "
                  "\"quotes\"); known: %s",
                  layer, name.c_str(), all.c_str());
    uint64_t number = 0;
    const char* const end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number);
    if (error != std::errc() || at != end || number < known->least || number > known->most)
      return fail(Status::OUT_OF_RANGE, "layers: %s: %s=%.32s, expected %llu to %llu", layer,
                  known->name, value.c_str(), static_cast<unsigned long long>(known->least),
                  static_cast<unsigned long long>(known->most));
    parsed.values[name] = number;
  }
  return parsed;
}

LayerFile::LayerFile(int fd, std::string path, uint64_t most_bytes, uint64_t wait_ms)
    : fd_(fd),
      path_(std::move(path)),
      most_bytes_(most_bytes),
      wait_ns_(wait_ms * 1'000'000),
      process_(process_generation()) {}

Result<std::unique_ptr<LayerFile>> LayerFile::create(const char* layer, const std::string& path,
                                                     uint64_t most_bytes, uint64_t wait_ms) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0)
    return fail(Status::INVALID_ARGUMENT, "layers: %s cannot write '%.200s': %s", layer,
                path.c_str(), std::strerror(errno));
  std::unique_ptr<LayerFile> file(new LayerFile(fd, path, most_bytes, wait_ms));
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return fail(Status::INVALID_STATE,
                "layers: '%.200s' is being written by the layer of another open device: give %s a "
                "file of its own, or close that device",
                path.c_str(), layer);
  if (::ftruncate(fd, 0) != 0 && errno != EINVAL)  // EINVAL: a pipe or a device, has no length
    return fail(Status::INVALID_ARGUMENT, "layers: %s cannot empty '%.200s': %s", layer,
                path.c_str(), std::strerror(errno));
  return file;
}

LayerFile::~LayerFile() { close(""); }

void LayerFile::add(std::string_view piece) {
  const std::scoped_lock lock(mutex_);
  if (fd_ < 0 || process_ != process_generation()) return;
  if (bytes_ + piece.size() > most_bytes_) {
    ++left_out_;
    return;
  }
  waiting_ += piece;
  bytes_ += piece.size();
  if (waiting_.size() >= kFlushBytes || steady_ns() - flushed_ns_ >= wait_ns_) flush();
}

void LayerFile::flush() {
  flushed_ns_ = steady_ns();
  for (size_t done = 0; done < waiting_.size();) {
    const ssize_t wrote = ::write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) {
      log_line(LOG_ERROR, "layers", "cannot write '%.200s': %s; the rest is left out",
               path_.c_str(), std::strerror(errno));
      ++left_out_;
      ::close(std::exchange(fd_, -1));
      break;
    }
    done += static_cast<size_t>(wrote);
  }
  waiting_.clear();
}

void LayerFile::close(std::string_view tail) {
  const std::scoped_lock lock(mutex_);
  if (fd_ < 0) return;
  if (process_ == process_generation()) {
    waiting_ += tail;
    bytes_ += tail.size();
    flush();
  }
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

uint64_t LayerFile::bytes() const {
  const std::scoped_lock lock(mutex_);
  return bytes_;
}

uint64_t LayerFile::left_out() const {
  const std::scoped_lock lock(mutex_);
  return left_out_;
}

}  // namespace calrt::layers
