// SPDX-License-Identifier: Apache-2.0
#include "layers/replay_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace calrt::layers {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 40;  // as much as the record layer may write

// A pipe or a device may give bytes for ever, or none.
Result<void> check_file(int fd, const std::string& path) {
  struct stat about{};
  if (::fstat(fd, &about) != 0)
    return fail(Status::INVALID_ARGUMENT, "layers: replay cannot read '%.200s': %s", path.c_str(),
                std::strerror(errno));
  if (!S_ISREG(about.st_mode))
    return fail(Status::INVALID_ARGUMENT,
                "layers: replay: '%.200s' is a folder, a pipe or a device: a file of the record "
                "layer is due",
                path.c_str());
  if (static_cast<uint64_t>(about.st_size) > kMostBytes)
    return fail(Status::INVALID_ARGUMENT,
                "layers: replay: '%.200s' has %llu bytes; the record layer writes %llu at most",
                path.c_str(), static_cast<unsigned long long>(about.st_size),
                static_cast<unsigned long long>(kMostBytes));
  return {};
}

std::optional<Entry> entry_named(const std::string& name) {
  for (int i = 0; i < kEntryCount; ++i)
    if (name == entry_name(static_cast<Entry>(i))) return static_cast<Entry>(i);
  return {};
}

RecordedAnswer answer_of(const JsonValue& line, uint64_t number) {
  const JsonValue& why = line["why"];
  RecordedAnswer answer;
  answer.line = number;
  answer.status = static_cast<cald_status>(line["status"].integer());
  answer.native = why["native"].integer();
  answer.unmapped = (why["flags"].count() & CALD_ERROR_UNMAPPED) != 0;
  answer.threw = line["threw"].truth();
  answer.text = why["text"].text();
  return answer;
}

}  // namespace

ReplayFile::~ReplayFile() { ::close(fd_); }

Result<std::unique_ptr<ReplayFile>> ReplayFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return fail(Status::INVALID_ARGUMENT, "layers: replay cannot read '%.200s': %s", path.c_str(),
                std::strerror(errno));
  std::unique_ptr<ReplayFile> file(new ReplayFile(fd));
  CALRT_TRY(check_file(fd, path));
  CALRT_TRY(file->read(path));
  return file;
}

Result<void> ReplayFile::read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text;
  uint64_t number = 0, offset = 0;
  for (;;) {
    const int begin = in.peek();
    // What is no record is not read on: a hole of a file has no end of line.
    const bool object = begin == '{';
    if (begin == std::ifstream::traits_type::eof() || (object && !std::getline(in, text))) break;
    const auto line = object ? JsonValue::parse(text) : std::nullopt;
    if (!line && in.eof()) break;  // the process died while it wrote
    ++number;
    const bool head = number == 1;
    if (head &&
        (!line || (*line)["format"].text() != "calrt-record" || (*line)["version"].integer() != 1))
      return fail(Status::INVALID_ARGUMENT,
                  "layers: replay: '%.200s' was not written by the record layer, version 1",
                  path.c_str());
    if (!line || (!head && !read_line(*line, number, offset, text.size())))
      return fail(Status::INVALID_ARGUMENT, "layers: replay: '%.200s', line %llu: no record",
                  path.c_str(), static_cast<unsigned long long>(number));
    offset += text.size() + 1;
  }
  if (number == 0)
    return fail(Status::INVALID_ARGUMENT, "layers: replay: '%.200s' is empty", path.c_str());
  return {};
}

bool ReplayFile::read_line(const JsonValue& line, uint64_t number, uint64_t offset,
                           uint64_t length) {
  std::shared_ptr<RecordedJobEnd> job;
  if (!line["job"].is_null()) {
    job = jobs_.try_emplace(line["job"].count(), std::make_shared<RecordedJobEnd>()).first->second;
    if (line["call"].is_null()) {
      if (line["state"].is_null()) {
        job->why = answer_of(line, number);
        job->why->status = static_cast<cald_status>(line["why"]["code"].integer());
        return true;
      }
      RecordedEnd end{number, offset, length, {}};
      end.completion.struct_size = sizeof end.completion;
      end.completion.state = static_cast<int32_t>(line["state"].integer());
      end.completion.status = static_cast<cald_status>(line["status"].integer());
      end.completion.job_seq = static_cast<uint64_t>(line["off"].integer());
      end.completion.bytes_in = line["bytes_in"].count();
      end.completion.bytes_out = line["bytes_out"].count();
      end.completion.native_code = line["native"].integer();
      end.completion.flags = static_cast<uint32_t>(line["flags"].count());
      job->ends.push_back(end);
      return true;
    }
    job->submit = answer_of(line, number);
    by_key_[line["key"].text()].push_back(line["job"].count());
  }
  const auto entry = entry_named(line["entry"].text());
  if (!entry) return false;
  const uint64_t nth = ++calls_[*entry];
  RecordedAnswer answer = answer_of(line, number);
  if (job == nullptr && (answer.threw || answer.status != CALD_OK))
    failures_[{*entry, nth}] = std::move(answer);
  return true;
}

RecordedRef ReplayFile::take(const std::string& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end() || found->second.empty()) return nullptr;
  const uint64_t job = found->second.front();
  found->second.pop_front();
  return jobs_.at(job);
}

const RecordedAnswer* ReplayFile::failure(Entry entry, uint64_t nth) const {
  const auto found = failures_.find({entry, nth});
  return found != failures_.end() ? &found->second : nullptr;
}

uint64_t ReplayFile::calls(Entry entry) const {
  const auto found = calls_.find(entry);
  return found != calls_.end() ? found->second : 0;
}

JsonValue ReplayFile::outputs(const RecordedEnd& end) const {
  std::string text(end.length, ' ');
  const ssize_t got = ::pread(fd_, text.data(), text.size(), static_cast<off_t>(end.offset));
  if (got != static_cast<ssize_t>(text.size())) return {};
  const auto line = JsonValue::parse(text);
  return line ? (*line)["outputs"] : JsonValue();
}

size_t ReplayFile::left() const {
  size_t n = 0;
  for (const auto& [key, jobs] : by_key_) n += jobs.size();
  return n;
}

}  // namespace calrt::layers
