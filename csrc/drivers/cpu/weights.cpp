// SPDX-License-Identifier: Apache-2.0
#include "drivers/cpu/weights.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace calrt::cpu {
namespace {

constexpr uint32_t kLargestWidth = 1u << 20;
constexpr uint32_t kMostLayers = 1024;

struct Bump {
  unsigned char* base;
  uint64_t used = 0;
  unsigned char* take(uint64_t bytes) {
    // Offsets are added as numbers: with a null base only `used` counts.
    const auto address = reinterpret_cast<uintptr_t>(base) + used;
    used += (bytes + 4095) / 4096 * 4096;
    return reinterpret_cast<unsigned char*>(address);
  }
  Matrix matrix(uint32_t columns, uint32_t depth, bool bf16) {
    Matrix m{nullptr, columns, depth, bf16};
    m.data = take(m.bytes());
    return m;
  }
  float* vector(uint32_t width) { return reinterpret_cast<float*>(take(padded(width) * 4ull)); }
};

Result<void> load_vector(TensorReader& reader, const std::string& name, uint32_t width,
                         float* out) {
  CALRT_TRY_ASSIGN(const cald_tensor* tensor, reader.find(name, 0, width));
  return reader.read(*tensor, 0, 1, width, out);
}

Result<void> load_gate_up(TensorReader& reader, const Matrix& matrix, const cald_tensor* gate,
                          const cald_tensor* up) {
  std::vector<float> scratch;
  const auto rows = static_cast<uint32_t>(gate->shape[0]);
  for (uint32_t p = 0; p < matrix.panels(); ++p) {
    const uint32_t row = p / 2 * 32;
    const cald_tensor* source = p % 2 == 0 ? gate : up;
    CALRT_TRY(
        pack_panel(reader, matrix, p, {{source, row, 0, std::min(32u, rows - row)}}, scratch));
  }
  return {};
}

}  // namespace

Result<Shape> read_shape(const cald_package& package) {
  if (package.arch == nullptr || package.arch->name == nullptr || package.weights < 0 ||
      static_cast<uint32_t>(package.weights) >= package.n_artifacts)
    return fail(Status::UNSUPPORTED,
                "the package states no architecture and weights; cpu runs such packages only");
  const cald_arch& arch = *package.arch;
  if (std::strcmp(arch.name, "llama") != 0)
    return fail(Status::UNSUPPORTED, "architecture %.40s: this driver runs llama", arch.name);
  if (arch.experts != 0 || arch.qk_norm != 0)
    return fail(Status::UNSUPPORTED, "llama with experts=%u, qk_norm=%d: this driver runs neither",
                arch.experts, arch.qk_norm);
  const struct {
    const char* name;
    uint32_t value, limit;
  } facts[] = {{"vocab", arch.vocab, 1u << 24},      {"layers", arch.layers, kMostLayers},
               {"embed", arch.embed, kLargestWidth}, {"heads", arch.heads, 4096},
               {"kv_heads", arch.kv_heads, 4096},    {"ffn", arch.ffn, kLargestWidth}};
  for (const auto& fact : facts)
    if (fact.value == 0 || fact.value > fact.limit)
      return fail(Status::PACKAGE_REJECTED, "arch.%s=%u: 1 to %u expected", fact.name, fact.value,
                  fact.limit);
  Shape s{};
  s.vocab = arch.vocab;
  s.layers = arch.layers;
  s.embed = arch.embed;
  s.heads = arch.heads;
  s.kv_heads = arch.kv_heads;
  s.head_dim = arch.head_dim != 0 ? arch.head_dim : arch.embed / arch.heads;
  s.ffn = arch.ffn;
  s.rope_dim = arch.rope_dim != 0 ? arch.rope_dim : s.head_dim;
  s.rope_half = arch.rope_style == CALD_ROPE_HALF;
  s.tied = arch.tie_embeddings != 0;
  s.rope_base = arch.rope_base > 0 ? arch.rope_base : 10000.0;
  s.norm_eps = arch.norm_eps > 0 ? static_cast<float>(arch.norm_eps) : 1e-5f;
  if (s.heads % s.kv_heads != 0)
    return fail(Status::PACKAGE_REJECTED, "arch.heads=%u is no multiple of arch.kv_heads=%u",
                s.heads, s.kv_heads);
  if (s.group() > kMostGroup)
    return fail(Status::UNSUPPORTED,
                "arch.heads=%u over arch.kv_heads=%u: at most %u heads share one", s.heads,
                s.kv_heads, kMostGroup);
  if (s.head_dim == 0 || s.head_dim > kLargestHead || s.head_dim % 2 != 0 ||
      s.rope_dim > s.head_dim || s.rope_dim % 2 != 0)
    return fail(Status::PACKAGE_REJECTED,
                "arch.head_dim=%u, arch.rope_dim=%u: even numbers up to 1024 expected, rope_dim at "
                "most head_dim",
                s.head_dim, s.rope_dim);
  return s;
}

uint64_t Weights::place(const Shape& s, bool bf16, unsigned char* base) {
  Bump bump{base};
  embedding = bump.matrix(s.vocab, s.embed, bf16);
  head = s.tied ? embedding : bump.matrix(s.vocab, s.embed, bf16);
  output_norm = bump.vector(s.embed);
  layers.resize(s.layers);
  for (LayerWeights& layer : layers) {
    layer.attn_norm = bump.vector(s.embed);
    layer.ffn_norm = bump.vector(s.embed);
    layer.qkv = bump.matrix(s.qkv_width(), s.embed, bf16);
    layer.out = bump.matrix(s.embed, s.q_width(), bf16);
    layer.gate_up = bump.matrix(2 * padded(s.ffn), s.embed, bf16);
    layer.down = bump.matrix(s.embed, s.ffn, bf16);
  }
  return bump.used;
}

uint64_t Weights::bytes_needed(const Shape& shape, bool bf16) {
  return Weights().place(shape, bf16, nullptr);
}

Result<Weights> Weights::load(const cald_package& package, const Shape& s, bool bf16,
                              const cald_load_options& options) {
  Weights w;
  const uint64_t bytes = w.place(s, bf16, nullptr);
  CALRT_TRY_ASSIGN(w.memory_, Block::make(bytes, "weights"));
  w.place(s, bf16, w.memory_.as());

  TensorReader reader(package, options);
  CALRT_TRY(reader.report(true));
  CALRT_TRY_ASSIGN(const cald_tensor* embedding,
                   reader.find("token_embd.weight", s.vocab, s.embed));
  CALRT_TRY(pack_stacked(reader, w.embedding, {embedding}));
  if (!s.tied) {
    CALRT_TRY_ASSIGN(const cald_tensor* head, reader.find("output.weight", s.vocab, s.embed));
    CALRT_TRY(pack_stacked(reader, w.head, {head}));
  }
  CALRT_TRY(load_vector(reader, "output_norm.weight", s.embed, w.output_norm));
  const uint32_t kv_width = s.kv_heads * s.head_dim;
  for (uint32_t l = 0; l < s.layers; ++l) {
    const std::string name = "blk." + std::to_string(l) + ".";
    LayerWeights& layer = w.layers[l];
    CALRT_TRY(load_vector(reader, name + "attn_norm.weight", s.embed, layer.attn_norm));
    CALRT_TRY(load_vector(reader, name + "ffn_norm.weight", s.embed, layer.ffn_norm));
    CALRT_TRY_ASSIGN(const cald_tensor* q,
                     reader.find(name + "attn_q.weight", s.q_width(), s.embed));
    CALRT_TRY_ASSIGN(const cald_tensor* k, reader.find(name + "attn_k.weight", kv_width, s.embed));
    CALRT_TRY_ASSIGN(const cald_tensor* v, reader.find(name + "attn_v.weight", kv_width, s.embed));
    CALRT_TRY(pack_stacked(reader, layer.qkv, {q, k, v}));
    CALRT_TRY_ASSIGN(const cald_tensor* out,
                     reader.find(name + "attn_output.weight", s.embed, s.q_width()));
    CALRT_TRY(pack_stacked(reader, layer.out, {out}));
    CALRT_TRY_ASSIGN(const cald_tensor* gate,
                     reader.find(name + "ffn_gate.weight", s.ffn, s.embed));
    CALRT_TRY_ASSIGN(const cald_tensor* up, reader.find(name + "ffn_up.weight", s.ffn, s.embed));
    CALRT_TRY(load_gate_up(reader, layer.gate_up, gate, up));
    CALRT_TRY_ASSIGN(const cald_tensor* down,
                     reader.find(name + "ffn_down.weight", s.embed, s.ffn));
    CALRT_TRY(pack_stacked(reader, layer.down, {down}));
  }
  const std::string unused = reader.unused();
  if (!unused.empty())
    return fail(
        Status::UNSUPPORTED,
        "tensor %.80s is not part of llama as this driver runs it; results without it would "
        "be wrong",
        unused.c_str());
  CALRT_TRY(reader.report(true));
  return w;
}

}  // namespace calrt::cpu
