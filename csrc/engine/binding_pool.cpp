// SPDX-License-Identifier: Apache-2.0
#include "engine/binding_pool.h"

#include <string>
#include <utility>

namespace calrt::engine {

std::shared_ptr<BindingPool> make_binding_pool(std::shared_ptr<Model> model, uint32_t graph) {
  BindingPool::Settings settings;
  settings.capacity = kMostBindings;
  settings.keep = kIdleBindings;
  settings.things = std::string("outputs of graph ") + model->graph(graph).name;
  settings.advice = "copy what you keep (to_f32()) and drop the rest";
  settings.closed = fail(Status::MODEL_UNLOADED, "the model is closed");
  return BindingPool::make(std::move(settings), [model = std::move(model), graph] {
    return model->make_bindings(graph);
  });
}

}  // namespace calrt::engine
