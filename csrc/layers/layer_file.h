// SPDX-License-Identifier: Apache-2.0
// The file that a layer writes as it goes, and how a layer's configuration names it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace calrt::layers {

// "FILE word=number ...": FILE in "quotes" if it holds spaces or ';'. A word without a value is 1.
struct FileConfig {
  struct Word {
    const char* name;
    uint64_t usual, least, most;
  };
  std::string path;
  std::map<std::string, uint64_t> values;  // of every word that there is

  // INVALID_ARGUMENT or OUT_OF_RANGE naming `layer` and the part that has no meaning.
  static Result<FileConfig> parse(const char* layer, const std::string& config,
                                  const std::vector<Word>& words);
};

// Thread-safe. What is added stays whole: the file ends with a whole piece whenever the process
// dies, and lacks at most what waits (see create).
// In a fork's child nothing is written.
class LayerFile {
 public:
  // An existing file is replaced. A piece waits up to `wait_ms` to be written, and then for the
  // next one; 0 = not at all, for what a process that may be killed did last. INVALID_ARGUMENT if
  // it cannot be written, INVALID_STATE while another layer of any process writes it.
  static Result<std::unique_ptr<LayerFile>> create(const char* layer, const std::string& path,
                                                   uint64_t most_bytes, uint64_t wait_ms = 100);
  ~LayerFile();

  // What would make the file longer than `most_bytes` is left out and counted, as is what the disk
  // does not take.
  void add(std::string_view piece);
  // `tail` is added whatever the length; then the file is closed, and add() does nothing.
  void close(std::string_view tail);
  uint64_t bytes() const;
  uint64_t left_out() const;

 private:
  LayerFile(int fd, std::string path, uint64_t most_bytes, uint64_t wait_ms);
  void flush();

  mutable std::mutex mutex_;
  int fd_;
  const std::string path_;
  const uint64_t most_bytes_, wait_ns_;
  const uint32_t process_;
  std::string waiting_;
  uint64_t flushed_ns_ = 0, bytes_ = 0, left_out_ = 0;
};

// The text as a JSON string, quotes included; ill-formed UTF-8 is replaced.
std::string json_string(std::string_view text);
std::string json_string(const char* text);  // null is ""

uint64_t steady_ns();  // CLOCK_MONOTONIC, as the ABI's times

}  // namespace calrt::layers
