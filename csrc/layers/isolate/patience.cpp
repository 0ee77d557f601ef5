// SPDX-License-Identifier: Apache-2.0
#include "layers/isolate/patience.h"

#include <cstdlib>
#include <cstring>

namespace calrt::isolate {
namespace {

thread_local const PatienceScope* innermost = nullptr;

Result<uint64_t> parse_seconds(const char* text, const char* what) {
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds >= 0.01 && seconds <= 86400))
    return fail(Status::INVALID_ARGUMENT, "%s is '%.40s': seconds from 0.01 to 86400 are due", what,
                text);
  return static_cast<uint64_t>(seconds * 1e9);
}

}  // namespace

Result<Patience> Patience::usual() {
  if (innermost != nullptr) return innermost->patience_;
  Patience patience;
  const auto read = [](const char* name, const char* what, uint64_t* ns) -> Result<void> {
    const char* text = std::getenv(name);
    if (text == nullptr || *text == '\0') return {};
    CALRT_TRY_ASSIGN(*ns, parse_seconds(text, what));
    return {};
  };
  CALRT_TRY(
      read("CALRT_ISOLATE_DEADLINE", "environment CALRT_ISOLATE_DEADLINE", &patience.entry_ns));
  CALRT_TRY(read("CALRT_ISOLATE_JOB_DEADLINE", "environment CALRT_ISOLATE_JOB_DEADLINE",
                 &patience.job_ns));
  return patience;
}

Result<bool> Patience::take(const char* key, const char* value) {
  if (key == nullptr) return false;
  if (value == nullptr) value = "";
  if (std::strcmp(key, "isolate_deadline") == 0) {
    CALRT_TRY_ASSIGN(entry_ns, parse_seconds(value, "option isolate_deadline"));
    return true;
  }
  if (std::strcmp(key, "isolate_job_deadline") == 0) {
    CALRT_TRY_ASSIGN(job_ns, parse_seconds(value, "option isolate_job_deadline"));
    return true;
  }
  return false;
}

PatienceScope::PatienceScope(const Patience& patience) : patience_(patience), outer_(innermost) {
  innermost = this;
}

PatienceScope::~PatienceScope() { innermost = outer_; }

}  // namespace calrt::isolate
