// SPDX-License-Identifier: Apache-2.0
#include "engine/binding_pool.h"

#include <utility>

namespace calrt::engine {

BindingPool::BindingPool(std::shared_ptr<Model> model, uint32_t graph)
    : model_(std::move(model)), graph_(graph) {
  idle_.reserve(kIdle);
}

std::shared_ptr<BindingPool> BindingPool::make(std::shared_ptr<Model> model, uint32_t graph) {
  return std::shared_ptr<BindingPool>(new BindingPool(std::move(model), graph));
}

Result<std::shared_ptr<BindingSet>> BindingPool::acquire() {
  std::shared_ptr<Model> model;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return fail(Status::MODEL_UNLOADED, "the model is closed");
    if (used_ >= kMost)
      return fail(
          Status::BUFFER_POOL_EXHAUSTED,
          "%u outputs of graph %s are still held: copy what you keep (to_f32()) and drop the "
          "rest",
          used_, model_->graph(graph_).name);
    ++used_;
    if (!idle_.empty()) {
      std::unique_ptr<BindingSet> set = std::move(idle_.back());
      idle_.pop_back();
      return lease(std::move(set));
    }
    model = model_;
  }
  auto made = model->make_bindings(graph_);
  if (!made.ok()) {
    std::lock_guard lock(mutex_);
    --used_;
    return std::move(made).error();
  }
  return lease(*std::move(made));
}

std::shared_ptr<BindingSet> BindingPool::lease(std::unique_ptr<BindingSet> set) {
  return std::shared_ptr<BindingSet>(set.release(),
                                     [pool = weak_from_this()](BindingSet* returned) {
                                       if (auto alive = pool.lock())
                                         alive->give_back(returned);
                                       else
                                         delete returned;
                                     });
}

void BindingPool::give_back(BindingSet* set) noexcept {
  std::unique_ptr<BindingSet> owned(set);  // freed outside the lock if it is not kept
  std::lock_guard lock(mutex_);
  --used_;
  if (!closed_ && idle_.size() < kIdle) idle_.push_back(std::move(owned));
}

void BindingPool::close() {
  std::vector<std::unique_ptr<BindingSet>> idle;
  std::shared_ptr<Model> model;
  std::lock_guard lock(mutex_);
  closed_ = true;
  idle.swap(idle_);
  model.swap(model_);
}

}  // namespace calrt::engine
