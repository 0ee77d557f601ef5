// SPDX-License-Identifier: Apache-2.0
// A package: manifest-1 read once, checked, its files held open. The same code validates and loads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "calrt/driver.h"
#include "calrt/manifest.h"

namespace calrt {

struct LoadRequest;

struct Finding {
  char gate;         // 'A'..'F'
  std::string code;  // "A06"
  char severity;     // 'R' reject, 'W' warning, 'N' note
  std::string file, artifact, field, message;
  std::string expected, found;  // as JSON text, "" = null
};

struct Verdict {
  std::string verdict;                // "pass", "pass_with_warnings", "rejected"
  std::string mode;                   // "fast"
  std::map<char, std::string> gates;  // gate -> pass, warn, reject, skipped, not_run
  std::vector<Finding> findings;      // ordered by gate, code, file, field
  uint64_t files = 0, bytes = 0, hashed_bytes = 0;
  std::string package_id, name;
  std::string path;     // last part of the directory's name
  std::string started;  // RFC 3339 UTC
  bool manifest_read = false;
  uint64_t minor = 0, graphs = 0;
  uint64_t rejects = 0;              // all that were found, also those not listed
  std::map<char, double> timing_ms;  // gate -> time spent
  bool rejected() const { return verdict == "rejected"; }
  // What a load of this package answers, by its first reject: 8 to 11, or 13 (docs/packages.md).
  Error error() const;
  std::string to_json() const;  // calrt-validation-1
};

// Load options resolved against the package's allowed geometry.
struct ResolvedLoad {
  uint32_t lanes = 1, cells = 0;
  int32_t compute = 0, kv_dtype = 0, logits_dtype = 0;
  std::string parallel, placement;
  std::vector<uint32_t> profiles, chunks;
};

class Package {
 public:
  // Reads and checks the directory; never null: see verdict(). Immutable afterwards, thread-safe.
  static std::shared_ptr<const Package> open(const std::string& directory);
  ~Package();
  Package(const Package&) = delete;
  Package& operator=(const Package&) = delete;

  const Verdict& verdict() const { return verdict_; }
  const Manifest& manifest() const { return manifest_; }  // complete only if not rejected
  const std::string& directory() const { return directory_; }
  // Descriptor of an artifact, open until the Package dies; -1 if absent.
  int fd(const std::string& artifact_id) const;
  // The bytes of a small artifact (tokenizer, template), at most `limit`.
  Result<std::string> read(const std::string& artifact_id, uint64_t limit) const;

  // Options against `allowed`, by name, before any device call. Nothing is clamped.
  Result<ResolvedLoad> resolve(const LoadRequest& request) const;
  // The manifest's bytes as read; empty if they could not be.
  const std::string& manifest_json() const { return manifest_json_; }
  // The typed form for a driver; pointers live as long as this Package. Empty if rejected.
  const cald_package& typed() const { return *typed_; }

 private:
  friend struct PackageBuilder;
  friend struct PackageForTest;  // csrc/tests: packages without files
  Package();
  std::string directory_;
  int directory_fd_ = -1;
  std::string manifest_json_;
  Manifest manifest_;
  Verdict verdict_;
  std::map<std::string, int> fds_;
  struct Typed;  // owns what typed_ points to
  std::unique_ptr<Typed> storage_;
  const cald_package* typed_ = nullptr;
};

}  // namespace calrt
