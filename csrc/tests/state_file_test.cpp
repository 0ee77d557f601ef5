// SPDX-License-Identifier: Apache-2.0
// Files of states: whole or not there, and what is said of those that cannot be had.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/kv_state.h"
#include "tests/check.h"

using namespace calrt;
using namespace calrt::engine;

namespace {

struct Folder {
  std::string path = std::filesystem::temp_directory_path() / "calrt-state-XXXXXX";
  Folder() { CHECK(mkdtemp(path.data()) != nullptr); }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string file(const char* name) const { return path + "/" + name; }
  size_t files() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& one : std::filesystem::directory_iterator(path)) ++n;
    return n;
  }
};

const std::vector<unsigned char> kBytes = {1, 2, 3, 4, 5, 6, 7};

template <class T>
bool refused(const Result<T>& got, Status code, const std::string& says) {
  return !got.ok() && got.error().code == code &&
         got.error().message.find(says) != std::string::npos;
}

}  // namespace

TEST(a_file_is_there_once_it_is_whole) {
  const Folder folder;
  const std::string path = folder.file("state");
  {
    auto sink = FileSink::open(path);
    CHECK(sink.ok() && sink->write_at(3, kBytes).ok() && folder.files() == 1);
    CHECK(!std::filesystem::exists(path));
  }
  CHECK(folder.files() == 0);  // not committed
  auto sink = FileSink::open(path);
  FileSink moved = std::move(*sink);
  CHECK(moved.write_at(0, kBytes).ok() && moved.commit().ok() && folder.files() == 1);
  struct stat facts{};
  CHECK(stat(path.c_str(), &facts) == 0 && facts.st_size == 7);
  CHECK((facts.st_mode & 0777) == 0600);  // what somebody wrote is his
  auto source = FileSource::open(path);
  CHECK(source.ok() && source->size() == 7);
  const auto part = source->at(2, 3);
  CHECK(part.ok() && std::vector<unsigned char>(part->begin(), part->end()) ==
                         std::vector<unsigned char>({3, 4, 5}));
  CHECK(refused(source->at(5, 3), Status::KV_INVALID_SEQUENCE, "there are only 7"));
  CHECK(refused(source->at(UINT64_MAX, 2), Status::KV_INVALID_SEQUENCE, "there are only 7"));
  CHECK(truncate(path.c_str(), 4) == 0);
  CHECK(refused(source->at(2, 3), Status::KV_INVALID_SEQUENCE, "became shorter"));
}

TEST(what_cannot_be_opened_is_named_as_the_caller_did) {
  const Folder folder;
  const std::string none = folder.file("none"), deep = folder.file("no/file");
  CHECK(refused(FileSource::open(none), Status::INVALID_ARGUMENT,
                "there is no file '" + none + "': save a state there first"));
  CHECK(refused(FileSink::open(deep), Status::INVALID_ARGUMENT, "there is no folder"));
  CHECK(refused(FileSource::open(folder.path), Status::INVALID_ARGUMENT, "is no regular file"));
  CHECK(refused(FileSink::open(folder.path), Status::INVALID_ARGUMENT, "no regular file"));
  const std::string below = folder.file("plain") + "/below";
  std::ofstream(folder.file("plain")) << "x";
  CHECK(refused(FileSource::open(below), Status::INVALID_ARGUMENT, "check the path"));
  CHECK(refused(FileSink::open(below), Status::INVALID_ARGUMENT, "check the path"));
  // Nobody waits for a writer, and nothing takes the place of a pipe.
  const std::string pipe = folder.file("pipe");
  CHECK(mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(refused(FileSource::open(pipe), Status::INVALID_ARGUMENT, "is no regular file"));
  CHECK(refused(FileSink::open(pipe), Status::INVALID_ARGUMENT, "no regular file"));
  CHECK(folder.files() == 2);
}

TEST(without_descriptors_it_is_the_hosts_want_and_not_the_paths) {
  const Folder folder;
  const std::string path = folder.file("state");
  std::ofstream(path) << "x";
  rlimit before{};
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  close(next);
  const rlimit none{static_cast<rlim_t>(next), before.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  const auto source = FileSource::open(path);
  const auto sink = FileSink::open(path);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(refused(source, Status::OUT_OF_HOST_MEMORY, "close other files first"));
  CHECK(refused(sink, Status::OUT_OF_HOST_MEMORY, "close other files first"));
}
