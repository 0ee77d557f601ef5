// SPDX-License-Identifier: Apache-2.0
// What stands behind Kv.
#pragma once

#include <memory>

#include "bind/objects.h"

namespace calrt::bind {

struct PyKv {  // "Kv"
  std::shared_ptr<engine::GraphRunner> runner;
  ~PyKv() { drop_without_gil(runner); }
  kv::LaneTable& table() const { return *runner->queue()->table(); }
  ErrorContext context() const { return ErrorContext(*runner->model()); }
};

}  // namespace calrt::bind
