// SPDX-License-Identifier: Apache-2.0
#include "calrt/manifest_read.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "calrt/schema_check.h"
#include "layout/layout.h"
#include "layout/roles.h"

namespace calrt {
namespace {

constexpr size_t kMaxArtifacts = 4096;

// A value of the tape or nothing; every getter answers its default for a value of another type.
class Json {
 public:
  Json(const JsonTape& tape, uint32_t node) : tape_(&tape), node_(node) {}

  Json operator[](std::string_view key) const {
    return {*tape_, is(JsonType::OBJECT) ? tape_->find(node_, key) : JsonTape::kNone};
  }
  bool is(JsonType type) const { return node_ != JsonTape::kNone && tape_->type(node_) == type; }
  std::string_view key() const { return tape_->key(node_); }

  std::string string() const {
    return is(JsonType::STRING) ? std::string(tape_->value(node_)) : std::string();
  }
  std::optional<uint64_t> uint() const {
    return is(JsonType::NUMBER) ? parse_uint(tape_->value(node_)) : std::nullopt;
  }
  std::optional<bool> boolean() const {
    return is(JsonType::BOOL) ? std::optional<bool>(tape_->value(node_) == "true") : std::nullopt;
  }
  std::optional<double> number() const {
    if (!is(JsonType::NUMBER)) return std::nullopt;
    const double value = std::strtod(string_of(node_).c_str(), nullptr);
    return std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
  }
  uint64_t address() const {
    const std::string_view token = is(JsonType::STRING) ? tape_->value(node_) : "";
    uint64_t value = 0;
    if (token.substr(0, 2) != "0x") return 0;
    std::from_chars(token.data() + 2, token.data() + token.size(), value, 16);
    return value;
  }

  // Calls each(Json) for the items of a list or the fields of an object.
  template <class Each>
  void each(Each&& call) const {
    if (!is(JsonType::ARRAY) && !is(JsonType::OBJECT)) return;
    for (uint32_t child = tape_->first(node_); child != JsonTape::kNone;
         child = tape_->following(child)) {
      call(Json(*tape_, child));
    }
  }
  template <class T, class Read>
  std::vector<T> list(Read&& read) const {
    std::vector<T> out;
    if (is(JsonType::ARRAY)) each([&](Json item) { out.push_back(read(item)); });
    return out;
  }
  std::vector<std::string> strings() const {
    return list<std::string>([](Json item) { return item.string(); });
  }
  std::vector<uint64_t> uints() const {
    return list<uint64_t>([](Json item) { return item.uint().value_or(0); });
  }
  std::vector<int32_t> dtypes() const {
    return list<int32_t>([](Json item) { return dtype_from_name(item.string()); });
  }

 private:
  std::string string_of(uint32_t node) const { return std::string(tape_->value(node)); }
  const JsonTape* tape_;
  uint32_t node_;
};

Allowed read_allowed(Json json) {
  Allowed out;
  out.values = json.uints();
  out.min = json["min"].uint().value_or(0);
  out.max = json["max"].uint().value_or(0);
  out.step = json["step"].uint().value_or(0);
  return out;
}

ManifestDim read_dim(Json json) {
  const std::string symbol = json.string();
  return {json.uint().value_or(0), symbol.empty() ? '\0' : symbol[0]};
}

ManifestLayout read_layout(Json json) {
  ManifestLayout out;
  const std::string kind = json["kind"].string();
  out.kind = kind == "strided"        ? ManifestLayout::STRIDED
             : kind == "tiled"        ? ManifestLayout::TILED
             : kind == "undetermined" ? ManifestLayout::UNDETERMINED
                                      : ManifestLayout::LINEAR;
  out.padded = json["padded"].list<ManifestDim>(read_dim);
  out.strides = json["strides"].uints();
  out.bytes = json["bytes"].uint().value_or(0);
  out.tile_axis = static_cast<uint32_t>(json["tile"]["axis"].uint().value_or(0));
  out.tile_size = json["tile"]["size"].uint().value_or(0);
  out.has_order = json["order"].is(JsonType::ARRAY);
  out.order = json["order"].list<int32_t>([](Json item) {
    const std::string part = item.string();
    return part == "o" ? -1 : part == "i" ? -2 : static_cast<int32_t>(item.uint().value_or(0));
  });
  return out;
}

ManifestIo read_io(Json json) {
  ManifestIo out;
  out.role = role_from_name(json["role"].string());
  out.dtype = dtype_from_name(json["dtype"].string());
  out.shape = json["shape"].list<ManifestDim>(read_dim);
  out.layout = read_layout(json["layout"]);
  out.align = json["align"].uint().value_or(64);
  out.domains = json["domains"].strings();
  return out;
}

std::vector<ManifestCap> read_caps(Json json) {
  std::vector<ManifestCap> out;
  json.each([&out](Json cap) {
    const std::string level = cap["level"].string();
    out.push_back({std::string(cap.key()), cap["value"].boolean(),
                   level.size() == 2 ? level[1] - '0' : 3, cap["source"].string()});
  });
  return out;
}

ManifestGraph read_graph(Json json) {
  ManifestGraph out;
  out.name = json["name"].string();
  out.kind = json["kind"].string() == "prefill" ? CALD_GRAPH_PREFILL : CALD_GRAPH_DECODE;
  out.batch = json["batch"].uints();
  out.chunk = json["chunk"].uints();
  out.artifacts = json["artifacts"].strings();
  out.share_group = json["share_group"].string();
  const std::string lane_map = json["lane_map"].string();
  out.lane_map = lane_map == "any"        ? CALD_LANE_MAP_ANY
                 : lane_map == "identity" ? CALD_LANE_MAP_IDENTITY
                                          : CALD_LANE_MAP_NONE;
  out.inputs = json["inputs"].list<ManifestIo>(read_io);
  out.outputs = json["outputs"].list<ManifestIo>(read_io);
  out.caps = read_caps(json["caps"]);
  return out;
}

ManifestArtifact read_artifact(Json json) {
  ManifestArtifact out;
  out.id = json["id"].string();
  out.path = json["path"].string();
  out.role = json["role"].string();
  out.media_type = json["media_type"].string();
  out.bytes = json["bytes"].uint();
  if (json["sha256"].is(JsonType::STRING)) out.sha256 = json["sha256"].string();
  if (json["edge_sha256"].is(JsonType::STRING)) out.edge_sha256 = json["edge_sha256"].string();
  out.optional = json["optional"].boolean().value_or(false);
  out.region = json["region"].string();
  return out;
}

ManifestTensor read_tensor(Json row) {
  ManifestTensor out;
  size_t column = 0;
  row.each([&](Json cell) {
    switch (column++) {
      case 0:
        out.name = cell.string();
        break;
      case 1:
        out.dtype = dtype_from_name(cell.string());
        break;
      case 2:
        out.shape = cell.uints();
        break;
      case 3:
        out.offset = cell.uint().value_or(0);
        break;
      case 4:
        out.bytes = cell.uint().value_or(0);
        break;
      default:
        break;
    }
  });
  return out;
}

ManifestKvGroup read_group(Json json) {
  ManifestKvGroup out;
  out.name = json["name"].string();
  out.lanes = read_allowed(json["lanes"]);
  out.cells = read_allowed(json["cells"]);
  out.order = json["order"].strings();
  out.strides = json["strides"].uints();
  out.split = json["split"].string();
  out.owner = json["owner"].string();
  out.bytes = json["bytes"].uint();
  out.base = json["base"].list<ManifestKvBase>([](Json base) {
    return ManifestKvBase{base["layer"].uint().value_or(0), base["kv"].uint().value_or(0),
                          base["chip"].uint().value_or(0), base["address"].address()};
  });
  return out;
}

ManifestGoldenIo read_golden_io(Json json) {
  return {role_from_name(json["role"].string()), dtype_from_name(json["dtype"].string()),
          json["shape"].uints(), json["artifact"].string()};
}

void read_model(Json model, Manifest* out) {
  out->name = model["name"].string();
  out->arch = model["arch"].string();
  out->vocab = model["vocab"].uint().value_or(0);
  out->context = model["context"].uint().value_or(0);
  out->layers = model["layers"].uint().value_or(0);
  out->kv_heads = model["kv_heads"].uint().value_or(0);
  out->head_dim = model["head_dim"].uint().value_or(0);
  out->embed = model["embed"].uint();
  out->heads = model["heads"].uint();
  const Json params = model["params"];
  out->bos = params["bos"].uint();
  out->eos = params["eos"].uints();
  out->ffn = params["ffn"].uint();
  out->rope_dim = params["rope_dim"].uint();
  out->rope_base = params["rope_base"].number();
  out->rope_style = params["rope_style"].string();
  out->norm_eps = params["norm_eps"].number();
  out->tie_embeddings = params["tie_embeddings"].boolean();
  out->qk_norm = params["qk_norm"].boolean();
  out->experts = params["experts"].uint();
  out->experts_used = params["experts_used"].uint();
  out->expert_ffn = params["expert_ffn"].uint();
  out->norm_topk = params["norm_topk"].boolean();
}

void read_allowed_options(Json allowed, Manifest* out) {
  out->allowed_lanes = read_allowed(allowed["lanes"]);
  out->allowed_cells = read_allowed(allowed["cells"]);
  out->allowed_profiles = read_allowed(allowed["profiles"]);
  out->allowed_depth = read_allowed(allowed["depth"]);
  const Json chunks = allowed["chunks"];
  if (chunks.is(JsonType::ARRAY) || chunks.is(JsonType::OBJECT)) {
    out->allowed_chunks = read_allowed(chunks);
  }
  out->allowed_compute = allowed["compute"].strings();
  out->allowed_parallel = allowed["parallel"].strings();
  out->allowed_placement = allowed["placement"].strings();
  out->allowed_kv_dtype = allowed["kv_dtype"].dtypes();
  out->allowed_logits_dtype = allowed["logits_dtype"].dtypes();
}

}  // namespace

Manifest read_inventory(const JsonTape& tape) {
  const Json root(tape, 0);
  Manifest out;
  out.minor = root["minor"].uint().value_or(0);
  out.name = root["model"]["name"].string();

  const Json tokenizer = root["tokenizer"];
  out.tokenizer_kind = tokenizer["kind"].string();
  out.tokenizer_artifact = tokenizer["artifact"].string();
  out.template_artifact = tokenizer["template"].string();
  out.tokenizer_vocab = tokenizer["vocab"].uint();
  out.add_bos = tokenizer["add_bos"].boolean();

  const Json target = root["target"];
  out.driver = target["driver"].string();
  out.device_class = target["device_class"].string();
  out.payload_root = target["payload_root"].string();
  root["artifacts"].each([&out](Json artifact) {
    if (out.artifacts.size() < kMaxArtifacts) out.artifacts.push_back(read_artifact(artifact));
  });
  out.has_weights = root["weights"].is(JsonType::OBJECT);
  out.weights_artifact = root["weights"]["artifact"].string();
  return out;
}

Manifest read_manifest(const JsonTape& tape) {
  const Json root(tape, 0);
  Manifest out = read_inventory(tape);
  read_model(root["model"], &out);

  const Json weights = root["weights"];
  out.weights_align = weights["align"].uint().value_or(64);
  out.tensors = weights["rows"].list<ManifestTensor>(read_tensor);
  out.graphs = root["graphs"].list<ManifestGraph>(read_graph);

  const Json kv = root["kv"];
  out.kv_dtypes = kv["dtype"].dtypes();
  out.kv_layers = kv["layers"].uint().value_or(0);
  out.kv_kv_heads = kv["heads"].uint().value_or(0);
  out.kv_head_dim = kv["head_dim"].uint().value_or(0);
  out.kv_groups = kv["groups"].list<ManifestKvGroup>(read_group);
  out.kv_caps = read_caps(kv["caps"]);

  read_allowed_options(root["allowed"], &out);
  out.memory_plan = root["memory"]["plan"].string();
  out.regions = root["memory"]["regions"].list<ManifestRegion>([](Json region) {
    return ManifestRegion{region["id"].string(), region["alias_of"].string()};
  });
  out.parallel_mode = root["parallelism"]["mode"].string();
  out.parallel_chips = root["parallelism"]["chips"].uint().value_or(1);
  out.parallel_degree = root["parallelism"]["degree"].uint().value_or(1);
  root["versions"].each([&out](Json version) {
    ManifestVersionRange range{version["exact"].string(), version["min"].uints(),
                               version["below"].uints()};
    if (version.is(JsonType::OBJECT)) {
      out.versions.emplace_back(std::string(version.key()), std::move(range));
    }
  });
  out.golden = root["golden"].list<ManifestGolden>([](Json golden) {
    return ManifestGolden{golden["name"].string(), golden["graph"].string(),
                          golden["inputs"].list<ManifestGoldenIo>(read_golden_io),
                          golden["outputs"].list<ManifestGoldenIo>(read_golden_io)};
  });
  out.provenance_kind = root["provenance"]["kind"].string();
  return out;
}

}  // namespace calrt
