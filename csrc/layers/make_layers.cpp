// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <mutex>

#include "layers/fault.h"
#include "layers/layer.h"
#include "layers/record_layer.h"
#include "layers/replay_layer.h"
#include "layers/trace_layer.h"
#include "layers/validate.h"
#include "layers/words.h"

namespace calrt::layers {
namespace {

struct Known {
  std::mutex mutex;
  std::map<std::string, LayerFactory> factories{{"fault", make_fault_layer},
                                                {"record", make_record_layer},
                                                {"replay", make_replay_layer},
                                                {"trace", make_trace_layer},
                                                {"validate", make_validate_layer}};

  static Known& get() {
    static auto* known = new Known;
    return *known;
  }
  LayerFactory find(const std::string& name) {
    const std::scoped_lock lock(mutex);
    const auto found = factories.find(name);
    return found != factories.end() ? found->second : nullptr;
  }
  std::string names() {
    const std::scoped_lock lock(mutex);
    std::string all;
    for (const auto& [name, make] : factories) all += (all.empty() ? "" : ", ") + name;
    return all;
  }
};

}  // namespace

Result<std::vector<std::shared_ptr<Layer>>> make_layers(const std::string& spec) {
  std::vector<std::shared_ptr<Layer>> layers;
  for (const std::string& part : split_outside_quotes(spec, ';')) {
    const size_t colon = part.find(':');
    const std::string name(trimmed(std::string_view(part).substr(0, colon)));
    const LayerFactory make = Known::get().find(name);
    if (make == nullptr)
      return fail(Status::INVALID_ARGUMENT, "layers: there is no layer '%.64s'; known: %s",
                  name.c_str(), Known::get().names().c_str());
    CALRT_TRY_ASSIGN(std::shared_ptr<Layer> layer,
                     make(colon == std::string::npos ? "" : part.substr(colon + 1)));
    layers.push_back(std::move(layer));
  }
  return layers;
}

void register_layer(const std::string& name, LayerFactory make) {
  const std::scoped_lock lock(Known::get().mutex);
  Known::get().factories[name] = make;
}

}  // namespace calrt::layers
