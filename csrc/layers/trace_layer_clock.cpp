// SPDX-License-Identifier: Apache-2.0
#include "layers/trace_layer_clock.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace calrt::layers {
namespace {

constexpr size_t kMostPairs = 4096;  // then every second one is forgotten

double difference(uint64_t a, uint64_t b) {  // exact below 2^53 ns, a hundred days
  return static_cast<double>(static_cast<int64_t>(a - b));
}

}  // namespace

void DeviceClock::add(uint64_t device_ns, uint64_t host_ns, uint64_t residual_ns) {
  if (known() && (device_ns < pairs_.back().device || host_ns < pairs_.back().host)) return;
  ++seen_;
  residual_ns_ = std::max(residual_ns_, residual_ns);
  if (known() && device_ns == pairs_.back().device) return;  // a clock that stands: nothing new
  pairs_.push_back({device_ns, host_ns});
  if (pairs_.size() <= kMostPairs) return;
  size_t kept = 0;
  for (size_t i = 0; i < pairs_.size(); i += 2) pairs_[kept++] = pairs_[i];
  pairs_.resize(kept);
}

uint64_t DeviceClock::on_line(const Pair& from, const Pair& to, uint64_t device_ns) {
  const double span = difference(to.device, from.device);
  const double lag = difference(to.host, from.host) - span;
  const double after = difference(device_ns, from.device);
  const double host = after + (span > 0 ? after * (lag / span) : 0);
  return from.host + static_cast<uint64_t>(static_cast<int64_t>(std::llround(host)));
}

uint64_t DeviceClock::to_host(uint64_t device_ns) const {
  const Pair &first = pairs_.front(), &last = pairs_.back();
  if (device_ns <= first.device) return on_line(first, last, device_ns);
  if (device_ns >= last.device) {
    const Pair ahead{last.device + (last.device - first.device),
                     last.host + (last.host - first.host)};
    return on_line(last, ahead, device_ns);
  }
  const auto to = std::upper_bound(pairs_.begin(), pairs_.end(), device_ns,
                                   [](uint64_t t, const Pair& pair) { return t < pair.device; });
  return on_line(*(to - 1), *to, device_ns);
}

int64_t DeviceClock::offset_ns() const {
  return known() ? static_cast<int64_t>(pairs_.back().device - pairs_.back().host) : 0;
}

double DeviceClock::drift_ppm() const {
  if (!known()) return 0;
  const Pair &first = pairs_.front(), &last = pairs_.back();
  const double host = difference(last.host, first.host);
  return host > 0 ? (difference(last.device, first.device) / host - 1) * 1e6 : 0;
}

std::string DeviceClock::text() const {
  char text[192];
  std::snprintf(
      text, sizeof text, "device = host %+lld ns, drift %+.3f ppm, %llu readings, residual %llu ns",
      static_cast<long long>(offset_ns()), drift_ppm(), static_cast<unsigned long long>(seen_),
      static_cast<unsigned long long>(residual_ns_));
  return text;
}

}  // namespace calrt::layers
