// SPDX-License-Identifier: Apache-2.0
#include "conformance/kv_call.h"

#include <algorithm>

namespace calrt::conformance {

KvCall::KvCall(Kit& kit) : kit_(&kit) {
  NEEDS_ENTRY(kit, kv_info);
  NEEDS_ENTRY(kit, kv_submit);
  cald_model* model = kit.model();
  info_.struct_size = sizeof info_;
  kit.ok("kv_info", [&](cald_error* err) { return kit.table().kv_info(model, &info_, err); });
}

void KvCall::needs(uint32_t ops) const {
  if ((info_.ops & ops) != ops)
    skip("the model has the operations %#x, %#x are needed", info_.ops, ops);
}

cald_kv_desc KvCall::desc(const KvAsk& ask, const JobAsk& job, Told* told) {
  cald_kv_desc desc{};
  desc.struct_size = sizeof desc;
  desc.op = ask.op;
  desc.model = kit_->model();
  desc.lane = ask.lane;
  desc.to_lane = ask.to_lane;
  desc.cell = ask.cell;
  desc.to_cell = ask.to_cell;
  desc.n = ask.n;
  desc.delta = ask.delta;
  desc.job_seq = job.job_seq;
  desc.deadline_ns =
      job.deadline_ns != 0 ? job.deadline_ns : kit_->now_ns() + uint64_t{600} * 1'000'000'000;
  if (job.tell && kit_->calls_back()) {
    desc.on_complete = Told::on_complete;
    desc.user = told;
  }
  return desc;
}

cald_status KvCall::try_submit(const cald_kv_desc& desc, cald_job** out) {
  cald_session* session = kit_->session();
  return kit_->call("kv_submit", [&](cald_error* err) {
    return kit_->table().kv_submit(session, &desc, out, err);
  });
}

Job KvCall::submit(const KvAsk& ask, const JobAsk& job) {
  Told* told = Told::make();
  cald_job* made = nullptr;
  const cald_status status = try_submit(desc(ask, job, told), &made);
  REQUIRE(status == CALD_OK, "kv_submit of op %#x answered %d: %s", ask.op, status,
          kit_->message().c_str());
  if (made == nullptr) broken_rule("KV-04", "kv_submit answered OK and gave no job");
  return Job(*kit_, made, told, job.job_seq);
}

void KvCall::run(const KvAsk& ask) { submit(ask).expect(CALD_JOB_DONE, "a KV operation"); }

// READ and WRITE move, layer by layer, first K then V of n cells.
Cells KvCall::read(uint32_t lane, uint32_t first, uint32_t n) {
  needs(CALD_KV_READ);
  const uint64_t bytes = n * info_.bytes_per_cell;
  Bytes all;
  for (const uint8_t stale : {0x5A, 0xA5}) {
    GuardedBuffer buffer(*kit_, kit_->any_domain(), bytes, 64);
    buffer.fill(stale);
    Told* told = Told::make();
    cald_kv_desc desc = this->desc({CALD_KV_READ, lane, 0, first, 0, n}, {}, told);
    desc.buffer = buffer.handle();
    desc.offset = buffer.offset();
    desc.bytes = bytes;
    cald_job* made = nullptr;
    const cald_status status = try_submit(desc, &made);
    REQUIRE(status == CALD_OK, "READ of %u cells from %u answered %d: %s", n, first, status,
            kit_->message().c_str());
    Job(*kit_, made, told, desc.job_seq).expect(CALD_JOB_DONE, "READ");
    if (const std::string damage = buffer.damage(); !damage.empty())
      broken_rule("KV-09", "READ wrote outside of what was bound: %s", damage.c_str());
    const Bytes now = buffer.read();
    if (!all.empty() && now != all)
      broken_rule("KV-09", "READ of the same cells gives other bytes, or leaves some unwritten");
    all = now;
  }
  Cells cells(n);
  for (uint32_t part = 0; part < 2 * info_.n_layers; ++part)
    for (uint32_t i = 0; i < n; ++i) {
      const auto from = all.begin() + static_cast<ptrdiff_t>((uint64_t{part} * n + i) * piece());
      cells[i].insert(cells[i].end(), from, from + static_cast<ptrdiff_t>(piece()));
    }
  return cells;
}

void KvCall::write(uint32_t lane, uint32_t first, const Cells& cells) {
  needs(CALD_KV_WRITE);
  const auto n = static_cast<uint32_t>(cells.size());
  GuardedBuffer buffer(*kit_, kit_->any_domain(), n * info_.bytes_per_cell, 64);
  Bytes all;
  for (uint32_t part = 0; part < 2 * info_.n_layers; ++part)
    for (const Bytes& cell : cells) {
      const auto from = cell.begin() + static_cast<ptrdiff_t>(part * piece());
      all.insert(all.end(), from, from + static_cast<ptrdiff_t>(piece()));
    }
  buffer.write(all.data(), 0, all.size());
  Told* told = Told::make();
  cald_kv_desc desc = this->desc({CALD_KV_WRITE, lane, 0, first, 0, n}, {}, told);
  desc.buffer = buffer.handle();
  desc.offset = buffer.offset();
  desc.bytes = all.size();
  cald_job* made = nullptr;
  const cald_status status = try_submit(desc, &made);
  REQUIRE(status == CALD_OK, "WRITE of %u cells to %u answered %d: %s", n, first, status,
          kit_->message().c_str());
  Job(*kit_, made, told, desc.job_seq).expect(CALD_JOB_DONE, "WRITE");
  REQUIRE(buffer.read() == all && buffer.damage().empty(), "WRITE has changed its source");
}

Bytes KvCall::first_k(const Bytes& cell) const {
  return Bytes(cell.begin(), cell.begin() + static_cast<ptrdiff_t>(piece()));
}

void same_cells(const Cells& is, const Cells& expected, const char* what) {
  for (size_t i = 0; i < expected.size(); ++i)
    REQUIRE(is[i] == expected[i], "%s: cell %zu is not what it is to be", what, i);
}

}  // namespace calrt::conformance
