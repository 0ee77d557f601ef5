// SPDX-License-Identifier: Apache-2.0
// Makes sure that a poisoned lane works before it is given out again.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/ranked_mutex.h"
#include "base/result.h"
#include "kv/lanes.h"
#include "kv/moves.h"

namespace calrt {
class Model;
class Session;
}  // namespace calrt

namespace calrt::engine {

inline constexpr uint64_t kScrubTimeoutNs = 2'000'000'000;

// Thread-safe. Methods wait for jobs of the device, each for at most kScrubTimeoutNs.
class LaneScrubber {
 public:
  LaneScrubber(std::shared_ptr<Model> model, std::shared_ptr<Session> session,
               std::shared_ptr<kv::LaneTable> table);

  // Tries these lanes, as far as they are poisoned and nobody else tries them: the lane keeps what
  // is written to it, or where cells can't be read, a known token gives the logits that it gave
  // before. A lane that does is empty, and FREE or its owner's again; one that does not stays
  // POISONED, and is OFFLINE after the second time. A try whose job was lost goes on until the
  // driver has answered: nobody has the lane before. The numbers of those that work; nothing is
  // tried once the model or its device is closed.
  std::vector<uint32_t> scrub(const std::vector<uint32_t>& lanes);
  // The poisoned lanes that nobody owns, when there are any: a look costs no lock.
  void scrub_unowned();

 private:
  class Trial;
  Result<void> check(uint32_t lane, Trial& trial);
  Result<void> check_cells(uint32_t lane, uint64_t deadline_ns, Trial& trial);
  Result<void> check_token(uint32_t lane, uint64_t deadline_ns, Trial& trial);

  const std::shared_ptr<Model> model_;
  const std::shared_ptr<Session> session_;
  const std::shared_ptr<kv::LaneTable> table_;
  RankedMutex mutex_{LockRank::LEAF, "lane scrubber"};
  std::optional<std::array<uint8_t, 32>> known_;  // sum of the known token's logits
};

}  // namespace calrt::engine
