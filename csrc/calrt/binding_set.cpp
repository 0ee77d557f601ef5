// SPDX-License-Identifier: Apache-2.0
// The buffers of one graph: made where the graph wants them, bound whole or by rows.
#include <algorithm>

#include "calrt/model.h"
#include "layout/roles.h"

namespace calrt {
namespace {

// Of the domains a binding may lie in, the one that suits the host best; 0 if none is known.
uint32_t pick_domain(uint32_t allowed) {
  for (const uint32_t domain :
       {CALD_DOMAIN_HOST_PINNED, CALD_DOMAIN_HOST, CALD_DOMAIN_SHARED, CALD_DOMAIN_DEVICE})
    if ((allowed & domain) != 0) return domain;
  return 0;
}

// Bytes of one row when rows (dim 0) are the slowest plain axis; 0 when they are not.
uint64_t row_bytes(const cald_layout& layout) {
  if (layout.undetermined != 0 || layout.n_axes == 0 || layout.n_axes > CALD_MAX_AXES) return 0;
  for (uint32_t i = 1; i < layout.n_axes; ++i)
    if (layout.axes[i].dim == 0) return 0;
  const cald_axis& first = layout.axes[0];
  return first.dim == 0 && first.divisor <= 1 && first.modulus == 0 ? first.stride : 0;
}

}  // namespace

Result<std::unique_ptr<BindingSet>> Model::make_bindings(uint32_t index) {
  CALRT_TRY(check_open());
  if (index >= info_.n_graphs)
    return fail(Status::OUT_OF_RANGE, "graph %u: this model has %u", index, info_.n_graphs);
  const cald_graph& of = graph(index);
  std::unique_ptr<BindingSet> set(new BindingSet);
  set->model_ = shared_from_this();
  set->graph_ = index;
  const auto add = [&](const cald_io* io, bool by_rows) -> Result<void> {
    const uint32_t domain = pick_domain(io->domains);
    if (domain == 0)
      return fail(Status::UNSUPPORTED,
                  "graph %s, %s: the domains are %s, of which calrt knows none", of.name,
                  role_name(io->role), domains_text(io->domains).c_str());
    const uint64_t align = std::max<uint64_t>(io->align, 64);
    CALRT_TRY_ASSIGN(auto buffer, device_->alloc(io->layout.bytes, domain, align,
                                                 {role_name(io->role), generation_}));
    const uint64_t row = by_rows ? row_bytes(io->layout) : 0;
    set->places_.push_back({std::move(buffer), io->role, io->layout.bytes, row});
    return {};
  };
  for (uint32_t i = 0; i < of.n_inputs; ++i) {
    const bool rows = of.inputs[i]->role == CALD_ROLE_LOGIT_ROWS;
    if (of.inputs[i]->optional != 0 && !rows) continue;
    if (rows) set->max_rows_ = static_cast<uint32_t>(of.inputs[i]->shape[0]);
    CALRT_TRY(add(of.inputs[i], rows));
  }
  for (uint32_t i = 0; i < of.n_outputs; ++i) CALRT_TRY(add(of.outputs[i], set->max_rows_ != 0));
  set->bind_rows(set->max_rows_);  // whole: jobs bind these buffers, perhaps in part
  CALRT_TRY_ASSIGN(set->known_, make_known(index, set->bindings_));
  set->bind_rows(0);
  return set;
}

void BindingSet::bind_rows(uint32_t rows) {
  rows_ = rows;
  bindings_.clear();
  for (const Place& place : places_) {
    if (place.role == CALD_ROLE_LOGIT_ROWS && rows == 0) continue;
    uint64_t bytes = place.bytes;
    if (place.row_bytes != 0)
      bytes = std::min<uint64_t>(
          bytes, place.row_bytes * std::clamp<uint64_t>(rows, 1, std::max(max_rows_, 1u)));
    bindings_.push_back({place.role, 0, place.buffer->handle(), 0, bytes});
  }
}

Result<void> BindingSet::rebind(int32_t role, std::shared_ptr<Buffer> buffer) {
  if (busy())
    return fail(Status::INVALID_STATE, "bind %s: a job holds this binding set", role_name(role));
  const cald_graph& of = model_->graph(graph_);
  const cald_io* io = nullptr;
  for (uint32_t i = 0; i < of.n_inputs; ++i)
    if (of.inputs[i]->role == role) io = of.inputs[i];
  for (uint32_t i = 0; i < of.n_outputs; ++i)
    if (of.outputs[i]->role == role) io = of.outputs[i];
  const auto place = std::find_if(places_.begin(), places_.end(),
                                  [&](const Place& each) { return each.role == role; });
  if (io == nullptr || place == places_.end())
    return fail(Status::INVALID_ARGUMENT, "bind: graph %s has no %s to bind", of.name,
                role_name(role));
  if (buffer->device() != model_->device())
    return fail(Status::INVALID_HANDLE, "bind %s: the buffer is of another device",
                role_name(role));
  if ((io->domains & buffer->domain()) == 0 || buffer->align() < io->align ||
      buffer->bytes() < place->bytes)
    return fail(
        Status::INVALID_ARGUMENT,
        "bind %s: the buffer has %llu bytes aligned to %llu in domain %s; %llu aligned to %llu in "
        "domain %s are due",
        role_name(role), (unsigned long long)buffer->bytes(), (unsigned long long)buffer->align(),
        domains_text(buffer->domain()).c_str(), (unsigned long long)place->bytes,
        (unsigned long long)io->align, domains_text(io->domains).c_str());
  known_.reset();
  buffer->note_use(use_);
  place->buffer = std::move(buffer);
  bind_rows(rows_);
  return {};
}

void BindingSet::count_exports(ExportCensus* census) const {
  for (const Place& place : places_) census->add(*place.buffer);
}

std::shared_ptr<Buffer> BindingSet::share(int32_t role) const {
  for (const Place& place : places_)
    if (place.role == role) return place.buffer;
  return nullptr;
}

Buffer* BindingSet::buffer(int32_t role) const {
  for (const Place& place : places_)
    if (place.role == role) return place.buffer.get();
  return nullptr;
}

int32_t* BindingSet::ints(int32_t role) const {
  const Buffer* of = buffer(role);
  return of != nullptr ? static_cast<int32_t*>(of->data()) : nullptr;
}

}  // namespace calrt
