// SPDX-License-Identifier: Apache-2.0
// The verdict as an error and as calrt-validation-1.
#include <algorithm>
#include <cinttypes>

#include "base/sha256.h"
#include "calrt/findings.h"
#include "calrt/package.h"

namespace calrt {
namespace {

const char* severity_name(char severity) {
  return severity == 'R' ? "reject" : severity == 'W' ? "warning" : "note";
}

std::string nullable(const std::string& value) {
  return value.empty() ? "null" : json_quote(value);
}

std::string finding_json(const Finding& finding) {
  return text(
      "{\"gate\":\"%c\",\"code\":%s,\"severity\":\"%s\",\"file\":%s,\"artifact\":%s,\"field\":%s,"
      "\"message\":%s,\"expected\":%s,\"found\":%s}",
      finding.gate, json_quote(finding.code).c_str(), severity_name(finding.severity),
      nullable(finding.file).c_str(), nullable(finding.artifact).c_str(),
      nullable(finding.field).c_str(), json_quote(finding.message).c_str(),
      finding.expected.empty() ? "null" : finding.expected.c_str(),
      finding.found.empty() ? "null" : finding.found.c_str());
}

Status status_of(const std::string& code) {
  if (code == "A01") return Status::PACKAGE_NOT_FOUND;
  if (code == "C06" || code == "F02") return Status::VERSION_MISMATCH;
  if (code == "A10") return Status::OUT_OF_HOST_MEMORY;  // descriptors, or what the kernel needs
  if (code == "F03") return Status::OUT_OF_DEVICE_MEMORY;
  if (code[0] == 'A' || code[0] == 'B' || (code >= "C01" && code <= "C05")) {
    return Status::PACKAGE_CORRUPT;
  }
  return Status::PACKAGE_REJECTED;
}

}  // namespace

Error Verdict::error() const {
  const auto first = std::find_if(findings.begin(), findings.end(),
                                  [](const Finding& finding) { return finding.severity == 'R'; });
  if (first == findings.end()) {
    return Error{Status::INTERNAL, 0, "the package was not rejected", "package"};
  }
  std::string message = first->code + ": " + first->message;
  if (!first->field.empty()) message += " (" + first->field + ")";
  if (rejects > 1) message += text(" (and %" PRIu64 " more)", rejects - 1);
  return Error{status_of(first->code), 0, std::move(message), "package"};
}

std::string Verdict::to_json() const {
  std::string gates_json, findings_json, timing_json, not_run;
  uint64_t warnings = 0, notes = 0;
  double total = 0;
  for (const auto& [gate, state] : gates) {
    const char* comma = gates_json.empty() ? "" : ",";
    gates_json += text("%s\"%c\":\"%s\"", comma, gate, state.c_str());
    const auto spent = timing_ms.find(gate);
    timing_json += spent == timing_ms.end() ? text(",\"%c\":null", gate)
                                            : text(",\"%c\":%.1f", gate, spent->second);
    if (spent != timing_ms.end()) total += spent->second;
    if (state == "not_run") not_run += text("%s\"%c\"", not_run.empty() ? "" : ",", gate);
  }
  for (const Finding& finding : findings) {
    if (!findings_json.empty()) findings_json += ',';
    findings_json += finding_json(finding);
    warnings += finding.severity == 'W';
    notes += finding.severity == 'N';
  }
  std::string out = "{\"schema\":\"calrt-validation-1\",\"verdict\":" + json_quote(verdict) +
                    ",\"mode\":" + json_quote(mode);
  out += ",\"package\":{\"path\":" + json_quote(path) +
         ",\"id\":" + (package_id.empty() ? "null" : json_quote("sha256:" + package_id)) +
         ",\"name\":" + nullable(name) +
         ",\"manifest\":" + (manifest_read ? "\"manifest-1\"" : "null") +
         ",\"minor\":" + (manifest_read ? std::to_string(minor) : "null") + "}";
  out += ",\"gates\":{" + gates_json + "},\"findings\":[" + findings_json + "]";
  out += text(",\"counts\":{\"files\":%" PRIu64 ",\"bytes\":%" PRIu64 ",\"graphs\":%" PRIu64
              ",\"reject\":%" PRIu64 ",\"warning\":%" PRIu64 ",\"note\":%" PRIu64
              ",\"hashed_bytes\":%" PRIu64 ",\"edge_bytes\":0}",
              files, bytes, graphs, rejects, warnings, notes, hashed_bytes);
  out += text(",\"timing_ms\":{\"total\":%.1f", total) + timing_json + "}";
  out += ",\"tool\":{\"calrt\":\"" CALRT_PROJECT_VERSION
         "\",\"validator\":1,\"driver\":null,\"runtime\":null,\"driver_sha256\":null}";
#if defined(__x86_64__)
  const char* arch = "x86_64";
#elif defined(__aarch64__)
  const char* arch = "aarch64";
#else
  const char* arch = "other";
#endif
  out += text(",\"host\":{\"os\":\"linux\",\"arch\":\"%s\",\"sha\":\"%s\"}", arch,
              detail::sha256_ni_available() ? "sha-ni" : "portable");
  out +=
      ",\"started\":" + json_quote(started) + ",\"not_run\":[" + not_run + "],\"complete\":true}";
  return out;
}

}  // namespace calrt
