// SPDX-License-Identifier: Apache-2.0
#include "calrt/package_typed.h"

#include <algorithm>

#include "calrt/graph_geometry.h"

namespace calrt {
namespace {

template <class T>
uint32_t narrow(T value) {
  return static_cast<uint32_t>(value);  // the schema keeps counts below 2^31
}

uint32_t domain_bits(const std::vector<std::string>& names) {
  if (names.empty()) return CALD_DOMAIN_HOST | CALD_DOMAIN_HOST_PINNED | CALD_DOMAIN_SHARED;
  uint32_t bits = 0;
  for (const std::string& name : names) {
    bits |= name == "host"          ? CALD_DOMAIN_HOST
            : name == "host_pinned" ? CALD_DOMAIN_HOST_PINNED
            : name == "device"      ? CALD_DOMAIN_DEVICE
                                    : CALD_DOMAIN_SHARED;
  }
  return bits;
}

cald_io typed_io(const ManifestIo& io, const Geometry& geometry) {
  cald_io out{};
  out.struct_size = sizeof out;
  out.role = io.role;
  out.dtype = io.dtype;
  const std::vector<uint64_t> shape = evaluate(io.shape, geometry);
  out.rank = narrow(shape.size());
  std::copy(shape.begin(), shape.end(), out.shape);
  // D05 refused the layouts that cannot be built.
  Result<cald_layout> layout = io_layout(io, geometry);
  out.layout = layout.ok() ? *layout : cald_layout{0, 1, 0, {}};
  out.align = io.align;
  out.domains = domain_bits(io.domains);
  out.optional = io.role == CALD_ROLE_LOGIT_ROWS ? 1 : 0;
  return out;
}

}  // namespace

std::unique_ptr<Package::Typed> Package::Typed::build(const Manifest& manifest,
                                                      const std::string& package_id,
                                                      const PackageFiles& files) {
  auto out = std::make_unique<Typed>();
  out->package.struct_size = sizeof out->package;
  out->package.name = out->keep(manifest.name);
  out->package.id = out->keep(package_id);
  out->add_architecture(manifest);
  out->add_artifacts(manifest, files);
  out->add_tensors(manifest);
  out->add_graphs(manifest);
  return out;
}

void Package::Typed::add_architecture(const Manifest& manifest) {
  arch_.struct_size = sizeof arch_;
  arch_.vocab = narrow(manifest.vocab);
  arch_.name = keep(manifest.arch);
  arch_.context = narrow(manifest.context);
  arch_.layers = narrow(manifest.layers);
  arch_.embed = narrow(manifest.embed.value_or(0));
  arch_.heads = narrow(manifest.heads.value_or(0));
  arch_.kv_heads = narrow(manifest.kv_heads);
  arch_.head_dim = narrow(manifest.head_dim);
  arch_.ffn = narrow(manifest.ffn.value_or(0));
  arch_.rope_dim = narrow(manifest.rope_dim.value_or(0));
  arch_.rope_style = manifest.rope_style == "half" ? CALD_ROPE_HALF : CALD_ROPE_INTERLEAVED;
  arch_.tie_embeddings = manifest.tie_embeddings.value_or(false) ? 1 : 0;
  arch_.qk_norm = manifest.qk_norm.value_or(false) ? 1 : 0;
  arch_.experts = narrow(manifest.experts.value_or(0));
  arch_.experts_used = narrow(manifest.experts_used.value_or(0));
  arch_.expert_ffn = narrow(manifest.expert_ffn.value_or(0));
  arch_.norm_topk = manifest.norm_topk.value_or(false) ? 1 : 0;
  arch_.rope_base = manifest.rope_base.value_or(0);
  arch_.norm_eps = manifest.norm_eps.value_or(0);
  package.arch = &arch_;
}

void Package::Typed::add_artifacts(const Manifest& manifest, const PackageFiles& files) {
  package.weights = -1;
  for (const ManifestArtifact& artifact : manifest.artifacts) {
    const auto file = files.find(artifact.id);
    cald_artifact& out = artifacts_.emplace_back();
    out.struct_size = sizeof out;
    out.fd = file == files.end() ? -1 : file->second.fd;
    out.id = keep(artifact.id);
    out.role = keep(artifact.role);
    out.bytes = file == files.end() ? 0 : file->second.bytes;
    if (manifest.has_weights && artifact.id == manifest.weights_artifact) {
      package.weights = static_cast<int32_t>(artifact_list_.size());
    }
    artifact_list_.push_back(&out);
  }
  package.n_artifacts = narrow(artifact_list_.size());
  package.artifacts = artifact_list_.data();
}

void Package::Typed::add_tensors(const Manifest& manifest) {
  for (const ManifestTensor& tensor : manifest.tensors) {
    cald_tensor& out = tensors_.emplace_back();
    out.struct_size = sizeof out;
    out.dtype = tensor.dtype;
    out.name = keep(tensor.name);
    out.rank = narrow(tensor.shape.size());
    std::copy(tensor.shape.begin(), tensor.shape.end(), out.shape);
    out.offset = tensor.offset;
    out.bytes = tensor.bytes;
    tensor_list_.push_back(&out);
  }
  package.n_tensors = narrow(tensor_list_.size());
  package.tensors = tensor_list_.data();
}

void Package::Typed::add_graphs(const Manifest& manifest) {
  for (const ExpandedGraph& expanded : expand_graphs(manifest)) {
    const Geometry geometry = largest_geometry(manifest, expanded);
    const auto list = [&](const std::vector<ManifestIo>& ios) -> std::vector<const cald_io*>& {
      std::vector<const cald_io*>& out = io_lists_.emplace_back();
      for (const ManifestIo& io : ios) out.push_back(&ios_.emplace_back(typed_io(io, geometry)));
      return out;
    };
    const auto& inputs = list(expanded.graph->inputs);
    const auto& outputs = list(expanded.graph->outputs);
    cald_graph& out = graphs_.emplace_back();
    out.struct_size = sizeof out;
    out.kind = expanded.graph->kind;
    out.name = keep(expanded.name);
    out.batch = narrow(expanded.batch);
    out.chunk = narrow(expanded.chunk);
    out.lane_map = expanded.graph->lane_map;
    out.n_inputs = narrow(inputs.size());
    out.inputs = inputs.data();
    out.n_outputs = narrow(outputs.size());
    out.outputs = outputs.data();
    out.share_group = keep(expanded.graph->share_group);
    graph_list_.push_back(&out);
  }
  package.n_graphs = narrow(graph_list_.size());
  package.graphs = graph_list_.data();
}

}  // namespace calrt
