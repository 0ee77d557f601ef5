// SPDX-License-Identifier: Apache-2.0
// Gate A: paths (A02-A04), opening (A05-A07) and roles (A09).
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "calrt/package_files.h"

namespace calrt {
namespace {

constexpr size_t kMaxPath = 240;
constexpr size_t kMaxLevels = 8;

std::string lower(std::string_view path) {
  std::string out(path);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

// The code point that starts at `at`; the text is UTF-8, the JSON pass saw to that.
unsigned code_point(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  unsigned value = lead & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length && at + i < text.size(); ++i) {
    value = value << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3F);
  }
  return value;
}

// What is wrong with a path, "" if nothing (A02).
std::string path_problem(const std::string& path) {
  if (path.empty()) return "is empty";
  if (path[0] == '/') return "is absolute";
  if (path.size() > kMaxPath) return text("has %zu bytes, at most %zu", path.size(), kMaxPath);
  size_t levels = 0;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view name = std::string_view(path).substr(begin, end - begin);
    if (name == "..") return "leaves the package";
    if (name.empty()) return "has an empty part";
    if (name == ".") return "has a '.' part";
    if (name.back() == '.' || name.back() == ' ') return "has a part that ends in a dot or space";
    ++levels;
    begin = end + 1;
  }
  if (levels > kMaxLevels) return text("has %zu levels, at most %zu", levels, kMaxLevels);
  for (char c : path) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return "has a control character";
    if (c == '\\' || c == ':') return text("has '%c'", c);
  }
  return "";
}

bool check_path(const ManifestArtifact& artifact, const At& at, Findings* out) {
  const At where{at.field + "/path", artifact.id, at.file};
  for (size_t i = 0; i < artifact.path.size(); ++i) {
    if (static_cast<unsigned char>(artifact.path[i]) < 0x80) continue;
    out->reject(
        "A03", where,
        text("path has U+%04X at byte %zu: rename before packing", code_point(artifact.path, i), i),
        "", json_quote(artifact.path.substr(0, 1024)));
    return false;
  }
  const std::string problem = path_problem(artifact.path);
  if (problem.empty()) return true;
  out->reject("A02", where, text("path '%s' %s", shown(artifact.path).c_str(), problem.c_str()), "",
              json_quote(artifact.path.substr(0, 1024)));
  return false;
}

void check_collisions(const Manifest& manifest, Findings* out) {
  std::map<std::string, size_t> seen;
  const auto clash = [&](size_t a, size_t b, const char* how) {
    const ManifestArtifact& one = manifest.artifacts[a];
    const ManifestArtifact& two = manifest.artifacts[b];
    out->reject("A04", {"/artifacts/" + std::to_string(b) + "/path", two.id, two.path},
                text("paths '%s' (%s) and '%s' (%s) %s", shown(one.path).c_str(),
                     shown(one.id).c_str(), shown(two.path).c_str(), shown(two.id).c_str(), how));
  };
  for (size_t i = 0; i < manifest.artifacts.size(); ++i) {
    const auto [at, fresh] = seen.emplace(lower(manifest.artifacts[i].path), i);
    if (!fresh) clash(at->second, i, "are one file where case does not count");
  }
  for (const auto& [path, index] : seen) {
    for (size_t slash = path.find('/'); slash != std::string::npos && path.size() <= kMaxPath;
         slash = path.find('/', slash + 1)) {
      const auto folder = seen.find(path.substr(0, slash));
      if (folder != seen.end()) clash(folder->second, index, "are a file and its folder");
    }
  }
}

std::string size_text(const ManifestArtifact& artifact) {
  return artifact.bytes ? grouped(*artifact.bytes) + " bytes" : "size unknown";
}

void open_artifact(const ManifestArtifact& artifact, const At& at, int directory_fd,
                   PackageFiles* files, Findings* out) {
  int error = 0;
  PackageFile file;
  file.fd = open_beneath(directory_fd, artifact.path, false, &error);
  if (file.fd < 0 && error == ENOENT) {
    const std::string message = text("%s (role %s, %s) is missing", shown(artifact.path).c_str(),
                                     shown(artifact.role).c_str(), size_text(artifact).c_str());
    artifact.optional ? out->note("A07", at, message) : out->reject("A06", at, message);
    return;
  }
  struct stat info{};
  std::string problem;
  if (file.fd < 0) {
    problem = error == ELOOP   ? "is or goes through a symbolic link"
              : error == EXDEV ? "leaves the package"
                               : text("cannot be opened: %s", std::strerror(error));
  } else if (fstat(file.fd, &info) != 0) {
    problem = text("cannot be examined: %s", std::strerror(errno));
  } else if (!S_ISREG(info.st_mode)) {
    problem = S_ISDIR(info.st_mode)    ? "is a directory, not a file"
              : S_ISFIFO(info.st_mode) ? "is a FIFO, not a file"
                                       : "is not a regular file";
  }
  if (!problem.empty()) {
    const char* code = file.fd < 0 ? open_failure(error, "A05") : "A05";
    out->reject(code, at, text("%s %s", shown(artifact.path).c_str(), problem.c_str()));
    if (file.fd >= 0) close(file.fd);
    return;
  }
  file.bytes = static_cast<uint64_t>(info.st_size);
  if (!files->emplace(artifact.id, file).second) close(file.fd);  // C14 says that the id is double
}

// The role of an artifact somebody refers to must be one of `fits`.
class RoleCheck {
 public:
  RoleCheck(const Manifest& manifest, Findings* out) : out_(out) {
    for (const ManifestArtifact& artifact : manifest.artifacts) {
      roles_.emplace(artifact.id, artifact.role);
    }
  }
  template <class Fits>
  void wants(const std::string& id, const std::string& field, const char* wanted, Fits&& fits) {
    const auto role = roles_.find(id);
    if (id.empty() || role == roles_.end() || fits(role->second)) return;
    out_->reject("A09", {field, id, "manifest.json"},
                 text("artifact %s has role %s, %s wanted", shown(id).c_str(),
                      shown(role->second).c_str(), wanted),
                 json_quote(wanted), json_quote(role->second));
  }
  void wants(const std::string& id, const std::string& field, const char* wanted) {
    wants(id, field, wanted, [wanted](const std::string& role) { return role == wanted; });
  }
  void needs(const char* role) {
    for (const auto& [id, have] : roles_) {
      if (have == role) return;
    }
    out_->reject("A09", {.field = "/artifacts"}, text("role %s: 0 files, at least 1", role), "1",
                 "0");
  }

 private:
  std::map<std::string, std::string> roles_;
  Findings* out_;
};

void check_roles(const Manifest& manifest, Findings* out) {
  RoleCheck roles(manifest, out);
  if (manifest.has_weights || manifest.driver == "cpu") {
    roles.needs("weights");
  } else if (manifest.driver != "mock" && manifest.driver != "null") {
    roles.needs("calbin.graph");
  }
  roles.wants(manifest.weights_artifact, "/weights/artifact", "weights");
  if (manifest.tokenizer_kind == "gguf" || manifest.tokenizer_kind == "hf") {
    const char* role = manifest.tokenizer_kind == "gguf" ? "tokenizer.vocab" : "tokenizer.json";
    if (manifest.tokenizer_artifact.empty()) {
      roles.needs(role);
    } else {
      roles.wants(manifest.tokenizer_artifact, "/tokenizer/artifact", role);
    }
  }
  roles.wants(manifest.template_artifact, "/tokenizer/template", "tokenizer.template");
  const auto is_payload = [](const std::string& role) {
    return role.starts_with("calbin.") || role.starts_with("x-");
  };
  for (size_t g = 0; g < manifest.graphs.size(); ++g) {
    const ManifestGraph& graph = manifest.graphs[g];
    for (size_t i = 0; i < graph.artifacts.size(); ++i) {
      roles.wants(graph.artifacts[i], text("/graphs/%zu/artifacts/%zu", g, i), "calbin.*",
                  is_payload);
    }
  }
  for (size_t g = 0; g < manifest.golden.size(); ++g) {
    const ManifestGolden& golden = manifest.golden[g];
    for (size_t i = 0; i < golden.inputs.size(); ++i) {
      roles.wants(golden.inputs[i].artifact, text("/golden/%zu/inputs/%zu/artifact", g, i),
                  "golden.input");
    }
    for (size_t i = 0; i < golden.outputs.size(); ++i) {
      roles.wants(golden.outputs[i].artifact, text("/golden/%zu/outputs/%zu/artifact", g, i),
                  "golden.output");
    }
  }
}

}  // namespace

void check_inventory(const Manifest& manifest, int directory_fd, PackageFiles* files,
                     Findings* out) {
  for (size_t i = 0; i < manifest.artifacts.size(); ++i) {
    const ManifestArtifact& artifact = manifest.artifacts[i];
    const At at{"/artifacts/" + std::to_string(i), artifact.id, artifact.path};
    if (check_path(artifact, at, out)) open_artifact(artifact, at, directory_fd, files, out);
  }
  check_collisions(manifest, out);
  check_roles(manifest, out);
}

}  // namespace calrt
