// SPDX-License-Identifier: Apache-2.0
// The files of a package: opened so that no path or link leads out of it, kept open, compared with
// what the manifest says of them. Checks A02-A07, A09 and B01, B02, B09.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/result.h"
#include "calrt/findings.h"
#include "calrt/manifest.h"

namespace calrt {

struct PackageFile {
  int fd = -1;
  uint64_t bytes = 0;  // on disk
};
using PackageFiles = std::map<std::string, PackageFile>;  // by artifact id; who holds it closes

// Opens `path` below the directory read-only, following no link of any kind; -1 and errno in
// *error. With `walk` it goes component by component, as on kernels without openat2.
int open_beneath(int directory_fd, const std::string& path, bool walk, int* error);

// The code of an open that failed with this errno: A10 if it is the host that has nothing left,
// such as descriptors, and `unreadable` if it is the file's fault.
const char* open_failure(int error, const char* unreadable);

// Reads the whole file from its start; fails when it is longer than `limit` or cannot be read.
Result<std::string> read_all(int fd, uint64_t limit);

// Opens every artifact whose path is sound.
void check_inventory(const Manifest& manifest, int directory_fd, PackageFiles* files,
                     Findings* out);

struct ContentCounts {
  uint64_t files = 0, bytes = 0, hashed_bytes = 0;
};
ContentCounts check_content(const Manifest& manifest, const PackageFiles& files, Findings* out);

}  // namespace calrt
