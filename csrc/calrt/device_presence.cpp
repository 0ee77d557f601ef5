// SPDX-License-Identifier: Apache-2.0
#include "calrt/device_presence.h"

#include <map>
#include <mutex>

#include "base/process.h"
#include "base/ranked_mutex.h"

namespace calrt {
namespace {

struct Count {
  uint32_t open = 0, closed = 0;
};

struct Devices {
  RankedMutex mutex{LockRank::LEAF, "devices"};
  RankedCondition changed;
  std::map<std::string, Count> counts;
};

std::string name_of(const std::string& driver, const std::string& id) { return driver + '\n' + id; }

}  // namespace

void DevicePresence::enter(const std::string& driver, const std::string& id) {
  name_ = name_of(driver, id);
  process_ = process_generation();
  Devices& devices = per_process<Devices>();
  const std::scoped_lock lock(devices.mutex);
  ++devices.counts[name_].open;
}

void DevicePresence::close() noexcept {
  if (name_.empty() || process_ != process_generation()) return;
  Devices& devices = per_process<Devices>();
  const std::scoped_lock lock(devices.mutex);
  if (closed_) return;
  closed_ = true;
  Count& count = devices.counts.find(name_)->second;
  --count.open;
  ++count.closed;
}

DevicePresence::~DevicePresence() {
  if (name_.empty() || process_ != process_generation()) return;
  Devices& devices = per_process<Devices>();
  const std::scoped_lock lock(devices.mutex);
  const auto found = devices.counts.find(name_);
  --(closed_ ? found->second.closed : found->second.open);
  if (found->second.open + found->second.closed == 0) devices.counts.erase(found);
  devices.changed.notify_all();
}

DevicePresence::Closed DevicePresence::await(const std::string& driver, const std::string& id,
                                             std::chrono::milliseconds patience) {
  const std::string name = name_of(driver, id);
  Devices& devices = per_process<Devices>();
  std::unique_lock lock(devices.mutex);
  const auto count = [&] {
    const auto found = devices.counts.find(name);
    return found == devices.counts.end() ? Count{} : found->second;
  };
  const Count now = count();
  if (now.open > 0 || now.closed == 0) return Closed::NONE;
  const bool gone = devices.changed.wait_for(lock, patience, [&] { return count().closed == 0; });
  return gone ? Closed::WENT : Closed::STAYS;
}

}  // namespace calrt
