// SPDX-License-Identifier: Apache-2.0
#include "calrt/device_spec.h"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace calrt {

Result<DeviceSpec> DeviceSpec::parse(const std::string& text) {
  constexpr std::string_view kIsolate = "isolate:";
  DeviceSpec spec;
  spec.isolated = text.starts_with(kIsolate);
  const std::string plain = spec.isolated ? text.substr(kIsolate.size()) : text;
  const size_t from = plain.empty() || plain[0] != '/' ? 0 : plain.rfind('/');
  const size_t colon = plain.find(':', from);
  spec.driver = plain.substr(0, colon);
  if (colon != std::string::npos) spec.config = plain.substr(colon + 1);
  if (spec.driver.empty() || spec.driver == "isolate")
    return fail(Status::INVALID_ARGUMENT,
                "device '%s': expected a driver's name (\"cpu\", \"mock:bare\") or "
                "\"/path/libcald_vendor.so:0\", either also behind one \"isolate:\"",
                text.c_str());
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (!spec.config.empty() && std::all_of(spec.config.begin(), spec.config.end(), is_digit)) {
    const char* end = spec.config.data() + spec.config.size();
    if (std::from_chars(spec.config.data(), end, spec.index).ec != std::errc())
      return fail(Status::OUT_OF_RANGE, "device '%s': index %s is too large", text.c_str(),
                  spec.config.c_str());
    spec.config.clear();
  }
  return spec;
}

}  // namespace calrt
