// SPDX-License-Identifier: Apache-2.0
// A record layer's file, read back: what each call and each job came to. Data stays in the file.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "layers/layer.h"
#include "layers/record_json.h"

namespace calrt::layers {

// A failed answer, or a throw, as recorded.
struct RecordedAnswer {
  uint64_t line = 0;
  cald_status status = CALD_OK;
  int64_t native = 0;
  bool unmapped = false, threw = false;
  std::string text;
};

struct RecordedEnd {  // a completion
  uint64_t line = 0, offset = 0, length = 0;
  cald_completion completion{};  // job_seq is what is to be added
};

struct RecordedJobEnd {
  RecordedAnswer submit;
  std::vector<RecordedEnd> ends;      // none: it never ended
  std::optional<RecordedAnswer> why;  // as job_query told it
};
using RecordedRef = std::shared_ptr<const RecordedJobEnd>;

// The order of taking is the caller's: not thread-safe. output() is.
class ReplayFile {
 public:
  // INVALID_ARGUMENT naming the line that is none; a last line that was cut off is left out.
  static Result<std::unique_ptr<ReplayFile>> open(const std::string& path);
  ~ReplayFile();

  // The next job that had these inputs, in the order of recording; null if none is left.
  RecordedRef take(const std::string& key);
  // How the nth call of an entry (from 1) failed or threw; null if it did not.
  const RecordedAnswer* failure(Entry entry, uint64_t nth) const;
  // How many calls of it were recorded.
  uint64_t calls(Entry entry) const;
  // The outputs of an end: items with "sha256" and perhaps "hex".
  JsonValue outputs(const RecordedEnd& end) const;
  size_t left() const;

 private:
  explicit ReplayFile(int fd) : fd_(fd) {}
  Result<void> read(const std::string& path);
  bool read_line(const JsonValue& line, uint64_t number, uint64_t offset, uint64_t length);

  const int fd_;
  std::map<uint64_t, std::shared_ptr<RecordedJobEnd>> jobs_;
  std::map<std::string, std::deque<uint64_t>> by_key_;
  std::map<Entry, uint64_t> calls_;
  std::map<std::pair<Entry, uint64_t>, RecordedAnswer> failures_;
};

}  // namespace calrt::layers
