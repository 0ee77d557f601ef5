// SPDX-License-Identifier: Apache-2.0
// C14 (names are unique) and D02 (what is referred to exists).
#include <map>
#include <set>

#include "calrt/package_checks.h"

namespace calrt {
namespace {

// Names of one kind with the pointer of their first use.
class Names {
 public:
  Names(const char* what, Findings* out) : what_(what), out_(out) {}
  void add(const std::string& name, const std::string& field) {
    const auto [at, fresh] = first_.emplace(name, field);
    if (fresh || out_->full("C14")) return;
    out_->reject("C14", {.field = field},
                 text("%s '%s' is not unique: %s and %s", what_, shown(name).c_str(),
                      at->second.c_str(), field.c_str()));
  }

 private:
  const char* what_;
  Findings* out_;
  std::map<std::string, std::string> first_;
};

class References {
 public:
  References(const char* what, Findings* out) : what_(what), out_(out) {}
  void knows(const std::string& name) { names_.insert(name); }
  void wants(const std::string& name, const std::string& field) const {
    if (name.empty() || names_.contains(name) || out_->full("D02")) return;
    out_->reject("D02", {.field = field}, text("there is no %s '%s'", what_, shown(name).c_str()),
                 "", json_quote(name));
  }

 private:
  const char* what_;
  Findings* out_;
  std::set<std::string> names_;
};

}  // namespace

void check_names(const CheckContext& context) {
  const Manifest& manifest = context.manifest;
  Findings* out = &context.out;
  Names artifacts("artifact id", out), tensors("tensor", out), graphs("graph", out),
      groups("KV group", out), regions("region id", out), golden("golden set", out);
  for (size_t i = 0; i < manifest.artifacts.size(); ++i) {
    artifacts.add(manifest.artifacts[i].id, text("/artifacts/%zu/id", i));
  }
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    tensors.add(manifest.tensors[i].name, text("/weights/rows/%zu/0", i));
  }
  for (const ExpandedGraph& graph : context.graphs) {
    graphs.add(graph.name, text("/graphs/%zu", graph.index));
  }
  for (size_t i = 0; i < manifest.kv_groups.size(); ++i) {
    groups.add(manifest.kv_groups[i].name, text("/kv/groups/%zu/name", i));
  }
  for (size_t i = 0; i < manifest.regions.size(); ++i) {
    regions.add(manifest.regions[i].id, text("/memory/regions/%zu/id", i));
  }
  for (size_t i = 0; i < manifest.golden.size(); ++i) {
    golden.add(manifest.golden[i].name, text("/golden/%zu/name", i));
  }
}

void check_references(const CheckContext& context) {
  const Manifest& manifest = context.manifest;
  Findings* out = &context.out;
  References artifacts("artifact", out), graphs("graph", out), groups("KV group", out),
      regions("region", out);
  for (const ManifestArtifact& artifact : manifest.artifacts) artifacts.knows(artifact.id);
  for (const ExpandedGraph& graph : context.graphs) graphs.knows(graph.name);
  for (const ManifestKvGroup& group : manifest.kv_groups) groups.knows(group.name);
  for (const ManifestRegion& region : manifest.regions) regions.knows(region.id);

  if (manifest.has_weights) artifacts.wants(manifest.weights_artifact, "/weights/artifact");
  artifacts.wants(manifest.tokenizer_artifact, "/tokenizer/artifact");
  artifacts.wants(manifest.template_artifact, "/tokenizer/template");
  std::set<std::string> used;
  for (size_t g = 0; g < manifest.graphs.size(); ++g) {
    const ManifestGraph& graph = manifest.graphs[g];
    groups.wants(graph.share_group, text("/graphs/%zu/share_group", g));
    for (size_t i = 0; i < graph.artifacts.size(); ++i) {
      artifacts.wants(graph.artifacts[i], text("/graphs/%zu/artifacts/%zu", g, i));
      used.insert(graph.artifacts[i]);
    }
  }
  for (size_t i = 0; i < manifest.artifacts.size(); ++i) {
    const ManifestArtifact& artifact = manifest.artifacts[i];
    regions.wants(artifact.region, text("/artifacts/%zu/region", i));
    if (artifact.role == "calbin.graph" && !used.contains(artifact.id)) {
      out->reject("D02", {text("/artifacts/%zu", i), artifact.id, artifact.path},
                  text("graph file %s is used by no graph", shown(artifact.path).c_str()));
    }
  }
  for (size_t i = 0; i < manifest.regions.size(); ++i) {
    regions.wants(manifest.regions[i].alias_of, text("/memory/regions/%zu/alias_of", i));
  }
  for (size_t g = 0; g < manifest.golden.size(); ++g) {
    const ManifestGolden& golden = manifest.golden[g];
    graphs.wants(golden.graph, text("/golden/%zu/graph", g));
    for (size_t i = 0; i < golden.inputs.size(); ++i) {
      artifacts.wants(golden.inputs[i].artifact, text("/golden/%zu/inputs/%zu/artifact", g, i));
    }
    for (size_t i = 0; i < golden.outputs.size(); ++i) {
      artifacts.wants(golden.outputs[i].artifact, text("/golden/%zu/outputs/%zu/artifact", g, i));
    }
  }
}

}  // namespace calrt
