// SPDX-License-Identifier: Apache-2.0
// A package without files, for tests of the runtime: what a validator would hand over.
#pragma once

#include <memory>
#include <string>

#include "calrt/package.h"
#include "layout/layout.h"

namespace calrt {

struct PackageForTest {
  static constexpr uint32_t kVocab = 10, kChunk = 16;

  static cald_io io(int32_t role, int32_t dtype, std::vector<uint64_t> shape,
                    bool optional = false) {
    cald_io io{};
    io.struct_size = sizeof io;
    io.role = role;
    io.dtype = dtype;
    io.rank = static_cast<uint32_t>(shape.size());
    for (size_t i = 0; i < shape.size(); ++i) io.shape[i] = shape[i];
    io.layout = *linear_layout(dtype, shape);
    io.align = role == CALD_ROLE_LOGITS ? 128 : 64;  // one wants more than the host asks for
    io.domains = CALD_DOMAIN_HOST;
    io.optional = optional ? 1 : 0;
    return io;
  }

  // Graphs decode_b4, decode_b1, prefill_t16, in this order; all storage is static.
  static const cald_package* typed() {
    static const cald_io inputs[3][5] = {
        {io(CALD_ROLE_TOKENS, CALD_I32, {4}),
         io(CALD_ROLE_POSITIONS, CALD_I32, {4}),
         io(CALD_ROLE_LANES, CALD_I32, {4}),
         {},
         {}},
        {io(CALD_ROLE_TOKENS, CALD_I32, {1}),
         io(CALD_ROLE_POSITIONS, CALD_I32, {1}),
         io(CALD_ROLE_LANES, CALD_I32, {1}),
         {},
         {}},
        {io(CALD_ROLE_TOKENS, CALD_I32, {kChunk}), io(CALD_ROLE_POSITIONS, CALD_I32, {kChunk}),
         io(CALD_ROLE_LANES, CALD_I32, {1}), io(CALD_ROLE_N_VALID, CALD_I32, {1}),
         io(CALD_ROLE_LOGIT_ROWS, CALD_I32, {kChunk}, true)}};
    static const cald_io outputs[3] = {io(CALD_ROLE_LOGITS, CALD_F32, {4, kVocab}),
                                       io(CALD_ROLE_LOGITS, CALD_F32, {1, kVocab}),
                                       io(CALD_ROLE_LOGITS, CALD_F32, {kChunk, kVocab})};
    static const cald_io* in[3][5];
    static const cald_io* out[3][1];
    static cald_graph graphs[3];
    static const cald_graph* list[3];
    static cald_arch arch{};
    static cald_package package{};
    if (package.struct_size != 0) return &package;
    static const char* names[3] = {"decode_b4", "decode_b1", "prefill_t16"};
    for (uint32_t g = 0; g < 3; ++g) {
      const bool prefill = g == 2;
      graphs[g].struct_size = sizeof graphs[g];
      graphs[g].kind = prefill ? CALD_GRAPH_PREFILL : CALD_GRAPH_DECODE;
      graphs[g].name = names[g];
      graphs[g].batch = g == 0 ? 4 : 1;
      graphs[g].chunk = prefill ? kChunk : 0;
      graphs[g].lane_map = CALD_LANE_MAP_ANY;
      graphs[g].n_inputs = prefill ? 5 : 3;
      for (uint32_t i = 0; i < graphs[g].n_inputs; ++i) in[g][i] = &inputs[g][i];
      graphs[g].inputs = in[g];
      graphs[g].n_outputs = 1;
      out[g][0] = &outputs[g];
      graphs[g].outputs = out[g];
      graphs[g].share_group = "main";
      list[g] = &graphs[g];
    }
    arch.struct_size = sizeof arch;
    arch.vocab = kVocab;
    arch.name = "llama";
    package.n_graphs = 3;
    package.name = "test";
    package.id = "";
    package.arch = &arch;
    package.weights = -1;
    package.graphs = list;
    package.struct_size = sizeof package;
    return &package;
  }

  static std::shared_ptr<Package> make(const std::string& driver, const std::string& device_class) {
    std::shared_ptr<Package> package(new Package);
    package->typed_ = typed();
    package->verdict_.verdict = "pass";
    Manifest& manifest = package->manifest_;
    manifest.name = "test";
    manifest.driver = driver;
    manifest.device_class = device_class;
    manifest.vocab = kVocab;
    manifest.context = 64;
    manifest.graphs.resize(2);
    manifest.graphs[0].kind = CALD_GRAPH_DECODE;
    manifest.graphs[0].batch = {1, 4};
    manifest.graphs[1].kind = CALD_GRAPH_PREFILL;
    manifest.graphs[1].batch = {1};
    manifest.graphs[1].chunk = {kChunk};
    manifest.allowed_lanes.values = {1, 2, 4};
    manifest.allowed_cells.values = {64};
    manifest.allowed_profiles.values = {1, 4};
    manifest.allowed_depth.values = {1};
    manifest.allowed_chunks = Allowed{{kChunk}, 0, 0, 0};
    manifest.allowed_compute = {"f32"};
    manifest.allowed_kv_dtype = {CALD_F32};
    manifest.allowed_logits_dtype = {CALD_F32};
    manifest.allowed_parallel = {"none"};
    manifest.allowed_placement = {"any"};
    return package;
  }
  static Manifest& manifest(Package& package) { return package.manifest_; }
  static Verdict& verdict(Package& package) { return package.verdict_; }
};

}  // namespace calrt
