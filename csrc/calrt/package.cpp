// SPDX-License-Identifier: Apache-2.0
#include "calrt/package.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <new>

#include "base/sha256.h"
#include "calrt/json_tape.h"
#include "calrt/manifest_read.h"
#include "calrt/package_checks.h"
#include "calrt/package_files.h"
#include "calrt/package_typed.h"
#include "calrt/schema_check.h"

namespace calrt {
namespace {

constexpr uint64_t kMaxManifest = 16 << 20;

class Stopwatch {
 public:
  double milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char out[32];
  return std::string(out, std::strftime(out, sizeof out, "%Y-%m-%dT%H:%M:%SZ", &parts));
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const size_t slash = path.rfind('/');
  return slash == std::string::npos || path.size() == 1 ? path : path.substr(slash + 1);
}

}  // namespace

// Builds one Package in the order of the specification: parse, schema, inventory, content, cross.
struct PackageBuilder {
  std::shared_ptr<Package> package;
  Findings findings;
  JsonTape tape;
  PackageFiles files;

  explicit PackageBuilder(const std::string& directory) : package(new Package) {
    package->directory_ = directory;
    Verdict& verdict = package->verdict_;
    verdict.mode = "fast";
    verdict.path = last_part(directory);
    verdict.started = utc_now();
    for (char gate : {'A', 'B', 'C', 'D'}) verdict.gates[gate] = "not_run";
    for (char gate : {'E', 'F'}) verdict.gates[gate] = "skipped";
  }

  // Runs one gate's checks and notes the time they took.
  template <class Checks>
  void gate(char name, Checks&& checks) {
    const Stopwatch watch;
    checks();
    package->verdict_.timing_ms[name] += watch.milliseconds();
    package->verdict_.gates[name] = "pass";
  }

  void run() {
    std::string source;
    bool parsed = false;
    gate('A', [&] { parsed = open_manifest(&source); });
    if (!parsed) return;
    bool readable = false;
    gate('C', [&] { readable = parse(source); });
    if (!readable) {
      package->verdict_.gates['A'] = "not_run";
      return;
    }
    const bool sound = findings.rejects() == 0;
    Manifest& manifest = package->manifest_;
    manifest = sound ? read_manifest(tape) : read_inventory(tape);
    package->verdict_.manifest_read = true;
    package->verdict_.minor = manifest.minor;
    package->verdict_.name = manifest.name;
    std::vector<ExpandedGraph> graphs;
    if (sound) graphs = expand_graphs(manifest);
    package->verdict_.graphs = graphs.size();
    const CheckContext context{manifest, graphs, files, findings};
    if (sound) {
      gate('C', [&] {
        check_names(context);
        check_architecture(context);
      });
    }
    const bool schema_passed = findings.rejects() == 0;
    gate('A', [&] { check_inventory(manifest, package->directory_fd_, &files, &findings); });
    gate('B', [&] {
      const ContentCounts counts = check_content(manifest, files, &findings);
      package->verdict_.files = counts.files;
      package->verdict_.bytes = counts.bytes;
      package->verdict_.hashed_bytes = counts.hashed_bytes;
    });
    if (!schema_passed) return;
    gate('D', [&] {
      check_references(context);
      check_graphs(context);
      check_kv(context);
      check_allowed(context);
      check_tensors(context);
    });
  }

  // A01 and C01.
  bool open_manifest(std::string* source) {
    const auto absent = [&](const std::string& why) {
      findings.reject("A01", {"", "", "."},
                      text("no manifest.json in %s%s: a package is a folder with one; a GGUF file "
                           "needs none, pass the file itself",
                           package->directory_.c_str(), why.c_str()));
      return false;
    };
    const auto unopened = [&](const char* what, int error) {
      if (error == ENOENT || error == ENOTDIR || error == ELOOP || error == EXDEV)
        return absent(error == ENOENT && *what != '\0' ? "" : text(" (%s)", std::strerror(error)));
      findings.reject(open_failure(error, "A05"), {"", "", "."},
                      text("%s%s cannot be opened: %s", package->directory_.c_str(), what,
                           std::strerror(error)));
      return false;
    };
    const int directory = open(package->directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return unopened("", errno);
    package->directory_fd_ = directory;
    int error = 0;
    const int fd = open_beneath(directory, "manifest.json", false, &error);
    if (fd < 0) return unopened("/manifest.json", error);
    struct stat info{};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd);
      return absent(" (it is not a regular file)");
    }
    const auto bytes = static_cast<uint64_t>(info.st_size);
    if (bytes == 0 || bytes > kMaxManifest) {
      close(fd);
      findings.reject("C01", {},
                      bytes == 0 ? "manifest.json is empty"
                                 : text("manifest.json has %s bytes, at most %s",
                                        grouped(bytes).c_str(), grouped(kMaxManifest).c_str()));
      return false;
    }
    Result<std::string> text_read = read_all(fd, kMaxManifest);
    close(fd);
    if (!text_read) {
      findings.reject("B09", {}, "manifest.json " + text_read.error().message);
      return false;
    }
    *source = *std::move(text_read);
    return true;
  }

  // False when nothing more can be read out of the manifest.
  bool parse(const std::string& source) {
    package->verdict_.package_id = sha256_hex(source.data(), source.size());
    package->manifest_json_ = source;
    return tape.parse(source, &findings) && check_schema(tape, &findings);
  }

  std::shared_ptr<const Package> finish() {
    Verdict& verdict = package->verdict_;
    verdict.rejects = findings.rejects();
    verdict.findings = findings.finish();
    bool warned = false;
    for (const Finding& finding : verdict.findings) {
      std::string& state = verdict.gates[finding.gate];
      if (finding.severity == 'R') {
        state = "reject";
      } else if (finding.severity == 'W') {
        warned = true;
        if (state == "pass") state = "warn";
      }
    }
    verdict.verdict = verdict.rejects > 0 ? "rejected" : warned ? "pass_with_warnings" : "pass";
    for (const auto& [id, file] : files) package->fds_[id] = file.fd;
    static const cald_package nothing{};
    package->typed_ = &nothing;
    if (!verdict.rejected()) {
      package->storage_ = Package::Typed::build(package->manifest_, verdict.package_id, files);
      package->typed_ = &package->storage_->package;
    }
    return package;
  }
};

Package::Package() = default;

Package::~Package() {
  for (const auto& [id, fd] : fds_) close(fd);
  if (directory_fd_ >= 0) close(directory_fd_);
}

std::shared_ptr<const Package> Package::open(const std::string& directory) {
  PackageBuilder builder(directory);
  try {
    builder.run();
  } catch (const std::bad_alloc&) {
    builder.findings.reject("C04", {}, "the manifest needs more memory than this host gives");
  }
  return builder.finish();
}

int Package::fd(const std::string& artifact_id) const {
  const auto found = fds_.find(artifact_id);
  return found == fds_.end() ? -1 : found->second;
}

Result<std::string> Package::read(const std::string& artifact_id, uint64_t limit) const {
  const int file = fd(artifact_id);
  if (file < 0) {
    return fail(Status::INVALID_ARGUMENT, "the package has no file for artifact '%s'",
                shown(artifact_id).c_str());
  }
  Result<std::string> bytes = read_all(file, limit);
  if (bytes.ok()) return bytes;
  Error error = bytes.error();
  error.message = "artifact '" + shown(artifact_id) + "' " + error.message;
  error.where = "package";
  return error;
}

}  // namespace calrt
