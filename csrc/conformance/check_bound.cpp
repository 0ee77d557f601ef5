// SPDX-License-Identifier: Apache-2.0
// JOB-22 to JOB-24: whose a buffer is, where it begins, and how many rows it asks for.
#include <algorithm>

#include "conformance/kv_call.h"
#include "conformance/refusal.h"

namespace calrt::conformance {
namespace {

// A buffer of another device, as large as one of ours and aligned like it.
struct Foreign {
  DeviceHandle device;
  BufferHandle buffer;

  Foreign(Kit& kit, uint32_t domain, uint64_t bytes, uint64_t align) : device(second_device(kit)) {
    cald_buffer* made = nullptr;
    kit.ok("buffer_alloc", [&](cald_error* err) {
      return kit.table().buffer_alloc(device.get().pointer, domain, kit.padded(domain, bytes),
                                      kit.aligned(domain, align), &made, err);
    });
    REQUIRE(made != nullptr, "buffer_alloc answered OK and gave no handle");
    buffer = BufferHandle({made, &kit.table()});
  }
  cald_buffer* handle() const { return buffer.get().pointer; }
};

constexpr uint64_t kAlign = 4096;  // more than any graph is likely to ask for

CONFORMANCE_CHECK("JOB-22", "") {
  each_graph(kit, [&](Refusal& refusal) {
    for (cald_binding& binding : refusal.call.bindings()) {
      const cald_binding right = binding;
      const GuardedBuffer& ours = refusal.call.buffer(binding.role);
      const Foreign foreign(kit, ours.domain(), ours.whole_bytes(), kAlign);
      binding.buffer = foreign.handle();
      refusal.expect("a buffer of another device");
      binding = right;
    }
  });
}

CONFORMANCE_CHECK("JOB-22", "set") {
  NEEDS_ENTRY(kit, binding_set_make);
  GraphCall call(kit, 0);
  std::vector<cald_binding> bindings = call.bindings();
  const GuardedBuffer& ours = call.buffer(bindings.front().role);
  const Foreign foreign(kit, ours.domain(), ours.whole_bytes(), kAlign);
  bindings.front().buffer = foreign.handle();
  cald_model* model = kit.model();
  cald_binding_set* made = nullptr;
  const cald_status status = kit.call("binding_set_make", [&](cald_error* err) {
    return kit.table().binding_set_make(model, 0, bindings.data(),
                                        static_cast<uint32_t>(bindings.size()), &made, err);
  });
  const BindingSetHandle owned({made, &kit.table()});
  REQUIRE(status != CALD_OK, "a set with a buffer of another device was made");
}

CONFORMANCE_CHECK("JOB-22", "kv") {
  KvCall kv(kit);
  if (!kv.can(CALD_KV_READ) && !kv.can(CALD_KV_WRITE)) skip("no READ and no WRITE");
  const uint32_t domain = kit.any_domain();
  const Foreign foreign(kit, domain, kv.info().bytes_per_cell, kAlign);
  for (const uint32_t op : {CALD_KV_READ, CALD_KV_WRITE}) {
    if (!kv.can(op)) continue;
    Told* told = Told::make();
    cald_kv_desc desc = kv.desc({op, 0, 0, 0, 0, 1}, {}, told);
    desc.buffer = foreign.handle();
    desc.bytes = kv.info().bytes_per_cell;
    cald_job* made = nullptr;
    const cald_status status = kv.try_submit(desc, &made);
    if (status == CALD_OK && made != nullptr) Job(kit, made, told, desc.job_seq).wait();
    REQUIRE(status != CALD_OK, "kv_submit accepted a buffer of another device for op %#x", op);
    REQUIRE(told->count() == 0, "kv_submit refused op %#x, and on_complete came", op);
  }
}

CONFORMANCE_CHECK("JOB-23", "") {
  kit.known("null", "", "null reads and writes nothing, so any address will do");
  bool tested = false;
  each_graph(kit, [&](Refusal& refusal) {
    for (cald_binding& binding : refusal.call.bindings()) {
      const uint64_t align = refusal.call.io(binding.role)->align, right = binding.offset;
      for (const uint64_t off : {align / 2, uint64_t{1}}) {
        if (align < 2 || off > right) continue;
        binding.offset = right - off;  // there is a guard before what is bound
        refusal.expect("an address that is not aligned");
        tested = true;
      }
      binding.offset = right;
    }
  });
  if (!tested) skip("no graph asks for an alignment");
}

CONFORMANCE_CHECK("JOB-24", "") {
  kit.known("null", "", "null reads no inputs, however few rows they ask for");
  bool tested = false;
  each_graph(kit, [&](Refusal& refusal) {
    if (refusal.call.io(CALD_ROLE_LOGIT_ROWS) == nullptr) return;
    refusal.call.bind_rows({0});
    refusal.call.binding(CALD_ROLE_LOGIT_ROWS).bytes = 0;
    refusal.expect("logit_rows of no row");
    refusal.call.bind_rows({});
    tested = true;
  });
  if (!tested) skip("no graph has logit_rows");
}

}  // namespace
}  // namespace calrt::conformance
