// SPDX-License-Identifier: Apache-2.0
// From open files to the directory that the SDK wants.
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drivers/calrt076/model.h"

namespace calrt::calrt076 {
namespace {

// Where an open file lies now: the kernel's word for it, and a look that it is still the same file.
Result<std::string> path_of(const cald_artifact& artifact) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", artifact.fd);
  const ssize_t got = readlink(link, path, sizeof path - 1);
  if (got <= 0)
    return fail(Status::PACKAGE_NOT_FOUND,
                "%s: %s does not tell where the file lies; the SDK loads a directory, so /proc is "
                "needed",
                artifact.id, link);
  path[got] = '\0';
  struct stat open{}, there{};
  if (fstat(artifact.fd, &open) != 0 || stat(path, &there) != 0 || open.st_dev != there.st_dev ||
      open.st_ino != there.st_ino)
    return fail(Status::PACKAGE_CORRUPT,
                "%s: %.200s is gone or another file by now; leave a package as it is while it is "
                "loaded",
                artifact.id, path);
  return std::string(path);
}

}  // namespace

Result<std::string> package_directory(const cald_package& package) {
  std::string directory;
  for (uint32_t i = 0; i < package.n_artifacts; ++i) {
    const cald_artifact& artifact = *package.artifacts[i];
    if (artifact.fd < 0) continue;  // optional, and absent
    CALRT_TRY_ASSIGN(const std::string path, path_of(artifact));
    const std::string folder = path.substr(0, path.rfind('/'));
    if (directory.empty()) directory = folder;
    if (folder != directory)
      return fail(Status::PACKAGE_REJECTED,
                  "%s lies in %.120s, others in %.120s: the SDK loads one directory, so all files "
                  "of a package have to lie in it",
                  artifact.id, folder.c_str(), directory.c_str());
  }
  if (directory.empty())
    return fail(Status::PACKAGE_REJECTED,
                "the package has no file, so there is no directory that the SDK could load");
  return directory;
}

}  // namespace calrt::calrt076
