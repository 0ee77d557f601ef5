// SPDX-License-Identifier: Apache-2.0
// Weight rows: in the file, apart, without holes (D17, D18), and what the architecture needs (D19).
#include <map>

#include "base/checked.h"
#include "calrt/package_checks.h"
#include "layout/layout.h"

namespace calrt {
namespace {

std::string shape_text(const std::vector<uint64_t>& shape) {
  std::string out = "[";
  for (uint64_t dim : shape) {
    if (out.size() > 1) out += ',';
    out += std::to_string(dim);
  }
  return out += ']';
}

void check_rows(const CheckContext& context) {
  const Manifest& manifest = context.manifest;
  Findings& out = context.out;
  const auto file = context.files.find(manifest.weights_artifact);
  const bool on_disk = file != context.files.end();
  uint64_t end_of_file = on_disk ? file->second.bytes : 0;
  for (const ManifestArtifact& artifact : manifest.artifacts) {
    if (!on_disk && artifact.id == manifest.weights_artifact) {
      end_of_file = artifact.bytes.value_or(0);
    }
  }
  const auto reject = [&](const char* code, size_t row, const std::string& message) {
    const std::string name =
        row < manifest.tensors.size() ? shown(manifest.tensors[row].name) + ": " : "";
    out.reject(code, {text("/weights/rows/%zu", row), manifest.weights_artifact, "manifest.json"},
               name + message);
  };
  uint64_t reach = 0;  // end of the rows so far
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& tensor = manifest.tensors[i];
    uint64_t wanted = dtype_size(tensor.dtype), end = 0;
    bool fits = true;
    for (uint64_t dim : tensor.shape) fits = fits && checked_mul(wanted, dim, &wanted);
    if (!fits || wanted != tensor.bytes || wanted == 0) {
      reject("D17", i,
             text("%s bytes declared, %s of %s take %s", grouped(tensor.bytes).c_str(),
                  dtype_name(tensor.dtype), shape_text(tensor.shape).c_str(),
                  fits ? grouped(wanted).c_str() : "more than fits"));
    }
    if (tensor.offset % manifest.weights_align != 0) {
      reject("D17", i,
             text("offset %s is not a multiple of align %s", grouped(tensor.offset).c_str(),
                  grouped(manifest.weights_align).c_str()));
    }
    if (!checked_add(tensor.offset, tensor.bytes, &end) || end > end_of_file) {
      reject("D17", i,
             text("offset %s + %s bytes end after the file's %s", grouped(tensor.offset).c_str(),
                  grouped(tensor.bytes).c_str(), grouped(end_of_file).c_str()));
      continue;
    }
    if (tensor.offset < reach) {
      reject("D17", i,
             text("offset %s is before %s, the end of the rows above",
                  grouped(tensor.offset).c_str(), grouped(reach).c_str()));
    } else if (tensor.offset - reach >= manifest.weights_align) {
      reject("D18", i,
             text("%s bytes before it belong to no row", grouped(tensor.offset - reach).c_str()));
    }
    reach = std::max(reach, end);
  }
  if (end_of_file > reach && end_of_file - reach >= manifest.weights_align) {
    reject("D18", manifest.tensors.size(),
           text("%s bytes at the end of the file belong to no row",
                grouped(end_of_file - reach).c_str()));
  }
}

enum Dim : uint8_t { NONE, VOCAB, EMBED, FFN, Q, KV, HEAD_DIM, EXPERTS, EXPERT_FFN };
enum Archs : uint8_t { LLAMA = 1, QWEN2 = 2, QWEN3 = 4, QWEN3_MOE = 8, DENSE = 7, ALL = 15 };

struct TensorRow {
  const char* name;  // below blk.N. for a layer's
  Dim shape[3];
  uint8_t archs;
};

constexpr TensorRow kModelTensors[] = {
    {"token_embd.weight", {VOCAB, EMBED}, ALL},
    {"output_norm.weight", {EMBED}, ALL},
};
constexpr TensorRow kLayerTensors[] = {
    {"attn_norm.weight", {EMBED}, ALL},
    {"attn_q.weight", {Q, EMBED}, ALL},
    {"attn_k.weight", {KV, EMBED}, ALL},
    {"attn_v.weight", {KV, EMBED}, ALL},
    {"attn_output.weight", {EMBED, Q}, ALL},
    {"attn_q.bias", {Q}, QWEN2},
    {"attn_k.bias", {KV}, QWEN2},
    {"attn_v.bias", {KV}, QWEN2},
    {"attn_q_norm.weight", {HEAD_DIM}, QWEN3 | QWEN3_MOE},
    {"attn_k_norm.weight", {HEAD_DIM}, QWEN3 | QWEN3_MOE},
    {"ffn_norm.weight", {EMBED}, ALL},
    {"ffn_gate.weight", {FFN, EMBED}, DENSE},
    {"ffn_up.weight", {FFN, EMBED}, DENSE},
    {"ffn_down.weight", {EMBED, FFN}, DENSE},
    {"ffn_gate_inp.weight", {EXPERTS, EMBED}, QWEN3_MOE},
    {"ffn_gate_exps.weight", {EXPERTS, EXPERT_FFN, EMBED}, QWEN3_MOE},
    {"ffn_up_exps.weight", {EXPERTS, EXPERT_FFN, EMBED}, QWEN3_MOE},
    {"ffn_down_exps.weight", {EXPERTS, EMBED, EXPERT_FFN}, QWEN3_MOE},
};

uint8_t arch_bit(const std::string& arch) {
  return arch == "llama"       ? LLAMA
         : arch == "qwen2"     ? QWEN2
         : arch == "qwen3"     ? QWEN3
         : arch == "qwen3-moe" ? QWEN3_MOE
                               : 0;
}

class TensorCheck {
 public:
  explicit TensorCheck(const CheckContext& context)
      : manifest_(context.manifest), out_(context.out), arch_(arch_bit(manifest_.arch)) {
    for (size_t i = 0; i < manifest_.tensors.size(); ++i) {
      rows_.emplace(manifest_.tensors[i].name, i);
    }
  }

  void run() {
    for (const TensorRow& row : kModelTensors) wants(row, "");
    if (!manifest_.tie_embeddings.value_or(false)) {
      wants({"output.weight", {VOCAB, EMBED}, ALL}, "");
    }
    // A layer needs at least one row, so this ends with the rows however many layers are claimed.
    for (uint64_t layer = 0; layer < manifest_.layers && layer <= rows_.size(); ++layer) {
      if (out_.full("D19")) return;
      const std::string prefix = "blk." + std::to_string(layer) + ".";
      for (const TensorRow& row : kLayerTensors) wants(row, prefix);
    }
  }

 private:
  uint64_t size(Dim dim) const {
    const uint64_t heads = manifest_.heads.value_or(0);
    switch (dim) {
      case VOCAB:
        return manifest_.vocab;
      case EMBED:
        return manifest_.embed.value_or(0);
      case FFN:
        return manifest_.ffn.value_or(0);
      case Q:
        return heads * manifest_.head_dim;  // both < 2^31
      case KV:
        return manifest_.kv_heads * manifest_.head_dim;
      case HEAD_DIM:
        return manifest_.head_dim;
      case EXPERTS:
        return manifest_.experts.value_or(0);
      case EXPERT_FFN:
        return manifest_.expert_ffn.value_or(0);
      default:
        return 0;
    }
  }

  void wants(const TensorRow& row, const std::string& prefix) {
    if ((row.archs & arch_) == 0) return;
    const std::string name = prefix + row.name;
    std::vector<uint64_t> shape;
    for (Dim dim : row.shape) {
      if (dim != NONE) shape.push_back(size(dim));
    }
    const auto found = rows_.find(name);
    if (found == rows_.end()) {
      out_.reject(
          "D19", {.field = "/weights/rows", .artifact = manifest_.weights_artifact},
          text("%s: %s wanted, the tensor is missing", name.c_str(), shape_text(shape).c_str()));
    } else if (manifest_.tensors[found->second].shape != shape) {
      const std::vector<uint64_t>& have = manifest_.tensors[found->second].shape;
      out_.reject("D19",
                  {.field = text("/weights/rows/%zu/2", found->second),
                   .artifact = manifest_.weights_artifact},
                  text("%s: %s wanted, %s found", name.c_str(), shape_text(shape).c_str(),
                       shape_text(have).c_str()),
                  shape_text(shape), shape_text(have));
    }
  }

  const Manifest& manifest_;
  Findings& out_;
  uint8_t arch_;
  std::map<std::string, size_t> rows_;
};

}  // namespace

void check_tensors(const CheckContext& context) {
  if (!context.manifest.has_weights) return;
  check_rows(context);
  TensorCheck(context).run();
}

void check_architecture(const CheckContext& context) {
  const Manifest& manifest = context.manifest;
  if (!manifest.has_weights) return;
  const uint8_t arch = arch_bit(manifest.arch);
  if (arch == 0) {
    context.out.reject("C11", {.field = "/model/arch"},
                       text("arch: '%s' is none of llama, qwen2, qwen3, qwen3-moe, which weights "
                            "can be given for",
                            shown(manifest.arch).c_str()),
                       "", json_quote(manifest.arch));
    return;
  }
  const auto not_null = [&](const char* name, bool present) {
    if (present) return;
    context.out.reject("C12", {.field = std::string("/model/") + name},
                       text("%s: null is not allowed with weights", name));
  };
  not_null("embed", manifest.embed.has_value());
  not_null("heads", manifest.heads.has_value());
  const auto param = [&](const char* name, bool present) {
    if (present) return;
    context.out.reject("C09", {.field = std::string("/model/params/") + name},
                       text("params: %s is missing, %s needs it", name, manifest.arch.c_str()));
  };
  param("rope_dim", manifest.rope_dim.has_value());
  param("rope_base", manifest.rope_base.has_value());
  param("rope_style", !manifest.rope_style.empty());
  param("norm_eps", manifest.norm_eps.has_value());
  param("tie_embeddings", manifest.tie_embeddings.has_value());
  if (arch == QWEN3_MOE) {
    param("experts", manifest.experts.has_value());
    param("experts_used", manifest.experts_used.has_value());
    param("expert_ffn", manifest.expert_ffn.has_value());
  } else {
    param("ffn", manifest.ffn.has_value());
  }
}

}  // namespace calrt
