// SPDX-License-Identifier: Apache-2.0
// manifest-1 as plain structs: what the JSON pass fills in and everything else reads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "calrt/driver.h"

namespace calrt {

// G(T): a list of values, or a range {min, max, step}.
struct Allowed {
  std::vector<uint64_t> values;  // the list, or empty when it is a range
  uint64_t min = 0, max = 0, step = 0;
  bool is_range() const { return values.empty(); }
  bool contains(uint64_t value) const;
  uint64_t largest() const;
};

struct ManifestCap {
  std::string name;
  std::optional<bool> value;
  int32_t level = 3;
  std::string source;
};

struct ManifestArtifact {
  std::string id, path, role, media_type;
  std::optional<uint64_t> bytes;
  std::optional<std::string> sha256;
  std::optional<std::string> edge_sha256;
  bool optional = false;
  std::string region;  // "" = none
};

struct ManifestTensor {
  std::string name;
  int32_t dtype = 0;
  std::vector<uint64_t> shape;
  uint64_t offset = 0, bytes = 0;
};

// A dimension: a number, or one of the symbols B T R V L C.
struct ManifestDim {
  uint64_t value = 0;
  char symbol = 0;  // 0 = value
};

struct ManifestLayout {
  enum Kind { LINEAR, STRIDED, TILED, UNDETERMINED } kind = LINEAR;
  std::vector<ManifestDim> padded;
  std::vector<uint64_t> strides;
  uint64_t bytes = 0;
  uint32_t tile_axis = 0;
  uint64_t tile_size = 0;
  bool has_order = false;
  std::vector<int32_t> order;  // -1 = "o", -2 = "i"
};

struct ManifestIo {
  int32_t role = 0;
  int32_t dtype = 0;  // 0 = null
  std::vector<ManifestDim> shape;
  ManifestLayout layout;
  uint64_t align = 64;
  std::vector<std::string> domains;
};

struct ManifestGraph {
  std::string name;
  int32_t kind = 0;
  std::vector<uint64_t> batch, chunk;  // chunk empty = null
  std::vector<std::string> artifacts;
  std::string share_group;
  int32_t lane_map = 0;
  std::vector<ManifestIo> inputs, outputs;
  std::vector<ManifestCap> caps;
};

struct ManifestKvBase {
  uint64_t layer = 0, kv = 0, chip = 0, address = 0;
};

struct ManifestKvGroup {
  std::string name;
  Allowed lanes, cells;
  std::vector<std::string> order;  // empty = null
  std::vector<uint64_t> strides;   // empty = null
  std::string split, owner;        // split "" = null
  std::optional<uint64_t> bytes;
  std::vector<ManifestKvBase> base;  // empty = null
};

struct ManifestGoldenIo {
  int32_t role = 0;
  int32_t dtype = 0;
  std::vector<uint64_t> shape;
  std::string artifact;  // "" = inline
};

struct ManifestGolden {
  std::string name, graph;
  std::vector<ManifestGoldenIo> inputs, outputs;
};

struct ManifestRegion {
  std::string id, alias_of;
};

struct ManifestVersionRange {  // empty exact and min = unknown
  std::string exact;
  std::vector<uint64_t> min, below;
};

struct Manifest {
  uint64_t minor = 0;
  // model
  std::string name, arch;
  uint64_t vocab = 0, context = 0, layers = 0, kv_heads = 0, head_dim = 0;
  std::optional<uint64_t> embed, heads;
  std::optional<uint64_t> bos, ffn, rope_dim, experts, experts_used, expert_ffn;
  std::vector<uint64_t> eos;
  std::optional<double> rope_base, norm_eps;
  std::string rope_style;
  std::optional<bool> tie_embeddings, qk_norm, norm_topk;
  // tokenizer
  std::string tokenizer_kind, tokenizer_artifact, template_artifact;  // "" = null
  std::optional<uint64_t> tokenizer_vocab;
  std::optional<bool> add_bos;
  // target
  std::string driver, device_class, payload_root;
  std::vector<ManifestArtifact> artifacts;
  // weights
  bool has_weights = false;
  std::string weights_artifact;
  uint64_t weights_align = 64;
  std::vector<ManifestTensor> tensors;
  std::vector<ManifestGraph> graphs;
  // kv
  std::vector<int32_t> kv_dtypes;
  uint64_t kv_layers = 0, kv_kv_heads = 0, kv_head_dim = 0;
  std::vector<ManifestKvGroup> kv_groups;
  std::vector<ManifestCap> kv_caps;
  // allowed
  Allowed allowed_lanes, allowed_cells, allowed_profiles, allowed_depth;
  std::optional<Allowed> allowed_chunks;
  std::vector<std::string> allowed_compute, allowed_parallel, allowed_placement;
  std::vector<int32_t> allowed_kv_dtype, allowed_logits_dtype;
  std::string memory_plan;
  std::vector<ManifestRegion> regions;
  std::vector<ManifestGolden> golden;
  // parallelism
  std::string parallel_mode;
  uint64_t parallel_chips = 1, parallel_degree = 1;
  std::vector<std::pair<std::string, ManifestVersionRange>> versions;
  std::string provenance_kind;
};

}  // namespace calrt
