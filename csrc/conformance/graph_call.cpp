// SPDX-License-Identifier: Apache-2.0
#include "conformance/graph_call.h"

#include <algorithm>

#include "layout/layout.h"
#include "layout/roles.h"

namespace calrt::conformance {
namespace {

constexpr uint64_t kGuardBytes = 256;
constexpr uint8_t kGuard = 0xA7;

uint32_t pick_domain(uint32_t allowed) {
  for (const uint32_t domain :
       {CALD_DOMAIN_HOST, CALD_DOMAIN_HOST_PINNED, CALD_DOMAIN_DEVICE, CALD_DOMAIN_SHARED})
    if ((allowed & domain) != 0) return domain;
  return 0;
}

// Bytes of one row when rows lie one behind the other, else 0: then the whole is bound.
uint64_t row_bytes(const cald_layout& layout) {
  if (layout.n_axes == 0) return 0;
  for (uint32_t i = 1; i < layout.n_axes; ++i)
    if (layout.axes[i].dim == 0) return 0;
  const cald_axis& first = layout.axes[0];
  return first.dim == 0 && first.divisor <= 1 && first.modulus == 0 ? first.stride : 0;
}

}  // namespace

GuardedBuffer::GuardedBuffer(Kit& kit, uint32_t domain, uint64_t bytes, uint64_t align)
    : kit_(&kit), domain_(domain), bytes_(bytes) {
  align = kit.aligned(domain, std::max<uint64_t>(align, 64));
  offset_ = (kGuardBytes + align - 1) / align * align;
  whole_ = kit.padded(domain, offset_ + bytes + kGuardBytes);
  cald_device* device = kit.device();
  cald_buffer* made = nullptr;
  kit.ok("buffer_alloc", [&](cald_error* err) {
    return kit.table().buffer_alloc(device, domain, whole_, align, &made, err);
  });
  REQUIRE(made != nullptr, "buffer_alloc answered OK and gave no handle");
  handle_ = BufferHandle({made, &kit.table()});
  const Bytes guards(whole_, kGuard);
  kit.ok("buffer_h2d", [&](cald_error* err) {
    return kit.table().buffer_h2d(made, 0, guards.data(), whole_, err);
  });
  fill(0);
}

void GuardedBuffer::write(const void* from, uint64_t at, uint64_t bytes) {
  kit_->ok("buffer_h2d", [&](cald_error* err) {
    return kit_->table().buffer_h2d(handle(), offset_ + at, from, bytes, err);
  });
}

void GuardedBuffer::fill(uint8_t byte) {
  const Bytes filled(bytes_, byte);
  write(filled.data(), 0, bytes_);
}

Bytes GuardedBuffer::read_whole() const {
  Bytes all(whole_);
  kit_->ok("buffer_d2h", [&](cald_error* err) {
    return kit_->table().buffer_d2h(handle(), 0, all.data(), whole_, err);
  });
  return all;
}

Bytes GuardedBuffer::read() const {
  const Bytes all = read_whole();
  const auto first = all.begin() + static_cast<ptrdiff_t>(offset_);
  return Bytes(first, first + static_cast<ptrdiff_t>(bytes_));
}

std::string GuardedBuffer::damage() const {
  const Bytes all = read_whole();
  for (uint64_t i = 0; i < all.size(); ++i) {
    if ((i >= offset_ && i < offset_ + bytes_) || all[i] == kGuard) continue;
    const auto away = static_cast<long long>(i) - static_cast<long long>(offset_);
    return "byte " + std::to_string(away) + " of " + std::to_string(bytes_) + " bound";
  }
  return {};
}

GraphCall::GraphCall(Kit& kit, uint32_t index)
    : kit_(&kit), index_(index), graph_(kit.model_info().graphs[index]) {
  const uint32_t most = kit.info().domains;
  const auto add = [&](const cald_io* io) {
    const uint32_t domain = pick_domain(most == 0 ? io->domains : io->domains & most);
    if (domain == 0)
      broken_rule("LOAD-04", "%s binds %s in domains %#x, the device has %#x", graph_->name,
                  role_name(io->role), io->domains, most);
    places_.push_back({io, GuardedBuffer(kit, domain, io->layout.bytes, io->align)});
  };
  for (uint32_t i = 0; i < graph_->n_inputs; ++i) add(graph_->inputs[i]);
  for (uint32_t i = 0; i < graph_->n_outputs; ++i) add(graph_->outputs[i]);
  if (io(CALD_ROLE_LOGIT_ROWS) == nullptr)
    rows_ = graph_->kind == CALD_GRAPH_DECODE ? graph_->batch : 1;
  bind_rows({});
}

const cald_io* GraphCall::io(int32_t role) const {
  for (const Place& place : places_)
    if (place.io->role == role) return place.io;
  return nullptr;
}

GuardedBuffer& GraphCall::buffer(int32_t role) {
  for (Place& place : places_)
    if (place.io->role == role) return place.buffer;
  broken("%s has no role %s", graph_->name, role_name(role));
}

void GraphCall::set(int32_t role, const std::vector<int32_t>& values) {
  const cald_io* const to = io(role);
  if (to == nullptr) return;
  GuardedBuffer& buffer = this->buffer(role);
  for (uint64_t i = 0; i < values.size() && i < to->shape[0]; ++i)
    buffer.write(&values[i], layout_offset(to->layout, &i), sizeof values[i]);
}

void GraphCall::bind_rows(const std::vector<int32_t>& rows) {
  const bool by_rows = io(CALD_ROLE_LOGIT_ROWS) != nullptr;
  if (by_rows) {
    set(CALD_ROLE_LOGIT_ROWS, rows);
    rows_ = std::max<uint32_t>(1, static_cast<uint32_t>(rows.size()));
  }
  bindings_.clear();
  for (const Place& place : places_) {
    uint64_t bytes = place.buffer.bytes();
    const bool is_rows = place.io->role == CALD_ROLE_LOGIT_ROWS;
    if (place.io->optional != 0 && (!is_rows || rows.empty())) continue;
    const bool sized = is_rows || (by_rows && place.io->role == CALD_ROLE_LOGITS);
    if (const uint64_t row = row_bytes(place.io->layout); sized && row != 0)
      bytes = std::min(bytes, row * rows_);
    bindings_.push_back({place.io->role, 0, place.buffer.handle(), place.buffer.offset(), bytes});
  }
}

cald_binding& GraphCall::binding(int32_t role) {
  for (cald_binding& binding : bindings_)
    if (binding.role == role) return binding;
  broken("%s has no binding of %s", graph_->name, role_name(role));
}

cald_job_desc GraphCall::desc(const JobAsk& ask, Told* told) {
  cald_job_desc desc{};
  desc.struct_size = sizeof desc;
  desc.graph = index_;
  desc.model = kit_->model();
  desc.n_bindings = static_cast<uint32_t>(bindings_.size());
  desc.bindings = bindings_.data();
  desc.job_seq = ask.job_seq;
  desc.deadline_ns =
      ask.deadline_ns != 0 ? ask.deadline_ns : kit_->now_ns() + uint64_t{600} * 1'000'000'000;
  if (ask.tell && kit_->calls_back()) {
    desc.on_complete = Told::on_complete;
    desc.user = told;
  }
  return desc;
}

Job GraphCall::submit(const JobAsk& ask) {
  Told* told = Told::make();
  const cald_job_desc asked = desc(ask, told);
  cald_session* on = kit_->session();
  cald_job* made = nullptr;
  kit_->ok("submit", [&](cald_error* err) { return kit_->table().submit(on, &asked, &made, err); });
  if (made == nullptr) broken_rule("JOB-01", "submit answered OK and gave no job");
  return Job(*kit_, made, told, ask.job_seq);
}

void GraphCall::run(const JobAsk& ask) {
  Job job = submit(ask);
  job.expect(CALD_JOB_DONE, graph_->name);
  check_guards();
}

void GraphCall::check_guards() {
  for (const Place& place : places_) {
    const std::string damage = place.buffer.damage();
    if (!damage.empty())
      broken_rule("DATA-02", "%s wrote outside of what was bound as %s: %s", graph_->name,
                  role_name(place.io->role), damage.c_str());
  }
}

Bytes GraphCall::row(uint32_t index) {
  const cald_io* const logits = io(CALD_ROLE_LOGITS);
  const uint32_t size = dtype_size(logits->dtype);
  const Bytes all = buffer(CALD_ROLE_LOGITS).read();
  const uint64_t vocab = logits->shape[logits->rank - 1];
  Bytes out(vocab * size);
  for (uint64_t v = 0; v < vocab; ++v) {
    const uint64_t at[] = {index, v};
    std::memcpy(&out[v * size], &all[layout_offset(logits->layout, at)], size);
  }
  return out;
}

Bytes GraphCall::last_row(uint32_t n) {
  const cald_io* const logits = io(CALD_ROLE_LOGITS);
  const bool each = io(CALD_ROLE_LOGIT_ROWS) == nullptr && logits->shape[0] == graph_->chunk;
  return row(each ? n - 1 : 0);
}

}  // namespace calrt::conformance
