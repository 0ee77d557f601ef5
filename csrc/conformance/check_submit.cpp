// SPDX-License-Identifier: Apache-2.0
// JOB-02 to JOB-09: what submit refuses, and that a refusal changes nothing.
#include <algorithm>

#include "conformance/refusal.h"

namespace calrt::conformance {
namespace {

using ull = unsigned long long;

CONFORMANCE_CHECK("JOB-02", "") {
  Refusal refusal(kit, 0);
  for (const uint32_t graph : {kit.model_info().n_graphs, UINT32_MAX}) {
    Told* told = Told::make();
    cald_job_desc desc = refusal.call.desc({}, told);
    desc.graph = graph;
    refusal.expect("a graph that there is not", desc, told);
  }
}

CONFORMANCE_CHECK("JOB-03", "") {
  kit.known("null", "", "null reads no inputs, so it does not miss any");
  each_graph(kit, [&](Refusal& refusal) {
    const std::vector<cald_binding> all = refusal.call.bindings();
    for (const cald_binding& missing : all) {
      refusal.call.bindings() = all;
      auto& left = refusal.call.bindings();
      left.erase(std::find_if(left.begin(), left.end(), [&](const cald_binding& binding) {
        return binding.role == missing.role;
      }));
      refusal.expect("a job without a required input or output");
    }
    refusal.call.bindings() = all;
  });
}

CONFORMANCE_CHECK("JOB-04", "unknown") {
  kit.known("null", "", "null reads no inputs, whatever their role");
  each_graph(kit, [&](Refusal& refusal) {
    cald_binding extra = refusal.call.binding(CALD_ROLE_TOKENS);
    extra.role = 29;
    refusal.call.bindings().push_back(extra);
    refusal.expect("a role that the graph has not");
    refusal.call.bindings().pop_back();
  });
}

CONFORMANCE_CHECK("JOB-04", "twice") {
  kit.known("null", "", "null reads no inputs, however often they are bound");
  each_graph(kit, [&](Refusal& refusal) {
    refusal.call.bindings().push_back(refusal.call.binding(CALD_ROLE_TOKENS));
    refusal.expect("a role bound twice");
    refusal.call.bindings().pop_back();
  });
}

CONFORMANCE_CHECK("JOB-05", "") {
  kit.known("null", "", "null reads and writes nothing, so nothing is too small");
  each_graph(kit, [&](Refusal& refusal) {
    for (cald_binding& binding : refusal.call.bindings()) {
      const uint64_t whole = binding.bytes;
      if (binding.role == CALD_ROLE_LOGIT_ROWS) continue;
      // The end of a layout may be padding, which an output need not have room for.
      binding.bytes = binding.role == CALD_ROLE_LOGITS ? whole / 2 : whole - 1;
      refusal.expect("a binding that is too small");
      binding.bytes = whole;
    }
  });
}

CONFORMANCE_CHECK("JOB-06", "") {
  each_graph(kit, [&](Refusal& refusal) {
    for (cald_binding& binding : refusal.call.bindings()) {
      const cald_binding right = binding;
      const GuardedBuffer& buffer = refusal.call.buffer(binding.role);
      const uint64_t past = (buffer.whole_bytes() + 4095) / 4096 * 4096;
      for (const uint64_t offset : {past, UINT64_MAX - 4095}) {
        binding.offset = offset;
        refusal.expect("a binding outside of its buffer");
      }
      binding.offset = right.offset;
      binding.bytes = past;
      refusal.expect("a binding larger than its buffer");
      binding = right;
    }
  });
}

CONFORMANCE_CHECK("JOB-07", "") {
  Refusal refusal(kit, 0);
  const DeviceHandle other = second_device(kit);
  const LoadAsk ask(kit.asked());
  cald_model* loaded = nullptr;
  const cald_status load = kit.call("model_load", [&](cald_error* err) {
    return kit.table().model_load(other.get().pointer, &kit.subject().package->typed(),
                                  &ask.options, &loaded, err);
  });
  if (load != CALD_OK) skip("a second model cannot be loaded: %s", kit.message().c_str());
  const ModelHandle foreign({loaded, &kit.table()});
  Told* told = Told::make();
  cald_job_desc desc = refusal.call.desc({}, told);
  desc.model = loaded;
  refusal.expect("a model of another device", desc, told);
}

// What the host gives as values: a wrong one is refused at once, or fails the job.
CONFORMANCE_CHECK("JOB-08", "") {
  kit.known("null", "", "null reads no inputs, whatever their values");
  Player player(kit);
  const auto lanes = static_cast<int32_t>(kit.model_info().lanes);
  const auto cells = static_cast<int32_t>(kit.model_info().cells);
  const auto vocab = static_cast<int32_t>(kit.model_info().vocab);
  const struct {
    int32_t role, value;
    const char* what;
  } wrongs[] = {{CALD_ROLE_TOKENS, vocab, "a token behind the vocabulary"},
                {CALD_ROLE_TOKENS, -1, "token -1"},
                {CALD_ROLE_POSITIONS, cells, "a position behind the lane"},
                {CALD_ROLE_POSITIONS, -1, "position -1"},
                {CALD_ROLE_LANES, lanes, "a lane that there is not"},
                {CALD_ROLE_LANES, -2, "lane -2"},
                {CALD_ROLE_N_VALID, 0, "n_valid 0"},
                {CALD_ROLE_N_VALID, INT32_MAX, "n_valid 2147483647"}};
  for (uint32_t g = 0; g < kit.model_info().n_graphs; ++g) {
    GraphCall& call = player.call(g);
    for (const auto& wrong : wrongs) {
      if (call.io(wrong.role) == nullptr) continue;
      player.fill(call);
      call.set(wrong.role, {wrong.value});
      Told* told = Told::make();
      const cald_job_desc desc = call.desc({}, told);
      cald_session* session = kit.session();
      cald_job* made = nullptr;
      if (kit.call("submit", [&](cald_error* err) {
            return kit.table().submit(session, &desc, &made, err);
          }) != CALD_OK)
        continue;
      Job job(kit, made, told, desc.job_seq);
      job.wait();
      REQUIRE(job.state() == CALD_JOB_FAILED, "%s ran with %s and ended in state %d",
              call.graph().name, wrong.what, job.state());
      call.check_guards();
    }
  }
}

CONFORMANCE_CHECK("JOB-09", "") {
  Player player(kit);
  GraphCall& call = player.call(0);
  player.fill(call);
  const std::vector<cald_binding> all = call.bindings();
  cald_session* session = kit.session();
  for (uint32_t round = 0; round < 3; ++round) {
    Told* told = Told::make();
    JobAsk ask;
    ask.job_seq = 100 + round;
    auto desc = std::make_unique<cald_job_desc>(call.desc(ask, told));
    auto bindings = std::make_unique<std::vector<cald_binding>>(all);
    desc->bindings = bindings->data();
    cald_job* made = nullptr;
    kit.ok("submit",
           [&](cald_error* err) { return kit.table().submit(session, desc.get(), &made, err); });
    // The call is over: neither the desc nor the array may be read any more.
    std::memset(static_cast<void*>(bindings->data()), 0x5A, all.size() * sizeof(cald_binding));
    std::memset(static_cast<void*>(desc.get()), 0x5A, sizeof *desc);
    Job job(kit, made, told, ask.job_seq);
    job.expect(CALD_JOB_DONE, "a job whose bindings array is gone");
    if (kit.calls_back()) {
      REQUIRE(told->count() == 1, "a job whose desc is gone was told %zu times", told->count());
      REQUIRE(told->last().job_seq == ask.job_seq, "job_seq %llu came back as %llu",
              static_cast<ull>(ask.job_seq), static_cast<ull>(told->last().job_seq));
    }
    call.check_guards();
  }
}

}  // namespace
}  // namespace calrt::conformance
