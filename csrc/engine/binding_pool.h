// SPDX-License-Identifier: Apache-2.0
// Binding sets of one graph, reused: a set comes back when its job and every view of it are gone.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "calrt/model.h"

namespace calrt::engine {

// Thread-safe. A lease may outlive the pool: its set is then freed with it.
class BindingPool : public std::enable_shared_from_this<BindingPool> {
 public:
  static std::shared_ptr<BindingPool> make(std::shared_ptr<Model> model, uint32_t graph);

  // A set nobody uses. BUFFER_POOL_EXHAUSTED when kMost are in use: outputs are being hoarded.
  Result<std::shared_ptr<BindingSet>> acquire();
  // Frees the sets nobody uses; those in use are freed when they come back.
  void close();

 private:
  static constexpr uint32_t kMost = 256;  // in use at once
  static constexpr uint32_t kIdle = 4;    // kept for reuse

  BindingPool(std::shared_ptr<Model> model, uint32_t graph);
  std::shared_ptr<BindingSet> lease(std::unique_ptr<BindingSet> set);
  void give_back(BindingSet* set) noexcept;

  std::mutex mutex_;
  std::shared_ptr<Model> model_;
  const uint32_t graph_;
  bool closed_ = false;
  uint32_t used_ = 0;
  std::vector<std::unique_ptr<BindingSet>> idle_;
};

}  // namespace calrt::engine
