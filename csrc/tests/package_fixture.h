// SPDX-License-Identifier: Apache-2.0
// A one-layer llama package of a few kilobytes in a folder of its own, removed with the object.
#pragma once

#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"

namespace calrt::testing {

class PackageFixture {
 public:
  PackageFixture() {
    std::string name = (std::filesystem::temp_directory_path() / "calrt-package-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    build();
  }
  ~PackageFixture() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  PackageFixture(const PackageFixture&) = delete;
  PackageFixture& operator=(const PackageFixture&) = delete;

  const std::string& directory() const { return directory_; }
  const std::string& manifest() const { return manifest_; }  // the good one
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << bytes;
  }
  void write_manifest(const std::string& text) const { write("manifest.json", text); }
  // The good manifest with the first `from` replaced.
  std::string with(const std::string& from, const std::string& to) const {
    std::string out = manifest_;
    const size_t at = out.find(from);
    if (at != std::string::npos) out.replace(at, from.size(), to);
    return out;
  }

 private:
  void build() {
    const std::vector<std::pair<const char*, std::vector<uint64_t>>> tensors = {
        {"token_embd.weight", {32, 16}},   {"output_norm.weight", {16}},
        {"output.weight", {32, 16}},       {"blk.0.attn_norm.weight", {16}},
        {"blk.0.attn_q.weight", {16, 16}}, {"blk.0.attn_k.weight", {8, 16}},
        {"blk.0.attn_v.weight", {8, 16}},  {"blk.0.attn_output.weight", {16, 16}},
        {"blk.0.ffn_norm.weight", {16}},   {"blk.0.ffn_gate.weight", {24, 16}},
        {"blk.0.ffn_up.weight", {24, 16}}, {"blk.0.ffn_down.weight", {16, 24}},
    };
    std::string rows;
    uint64_t offset = 0;
    for (const auto& [name, shape] : tensors) {
      uint64_t bytes = 4;
      std::string dims;
      for (uint64_t dim : shape) {
        bytes *= dim;
        if (!dims.empty()) dims += ',';
        dims += std::to_string(dim);
      }
      if (!rows.empty()) rows += ",\n";
      rows += std::string("[\"") + name + "\",\"f32\",[" + dims + "]," + std::to_string(offset) +
              "," + std::to_string(bytes) + "]";
      offset += bytes;
    }
    const std::string weights(offset, '\x11'), vocab = "vocabulary";
    write("weights.bin", weights);
    write("vocab.gguf", vocab);
    const auto artifact = [](const char* id, const char* path, const char* role,
                             const std::string& bytes) {
      return std::string(R"({"id":")") + id + R"(","path":")" + path + R"(","role":")" + role +
             R"(","media_type":"application/octet-stream","bytes":)" +
             std::to_string(bytes.size()) + R"(,"sha256":")" +
             sha256_hex(bytes.data(), bytes.size()) + R"("})";
    };
    const auto input = [](const char* role, const char* shape) {
      return std::string(R"({"role":")") + role + R"(","dtype":"i32","shape":[)" + shape +
             R"(],"layout":{"kind":"linear"}})";
    };
    const auto logits = [](const char* rows_symbol) {
      return std::string(R"([{"role":"logits","dtype":"f32","shape":[")") + rows_symbol +
             R"(","V"],"layout":{"kind":"linear"}}])";
    };
    manifest_ = R"({"manifest":"manifest-1","minor":0,"requires":[],
"model":{"name":"fixture","arch":"llama","vocab":32,"context":256,"layers":1,"embed":16,"heads":4,
"kv_heads":2,"head_dim":4,"params":{"bos":1,"eos":[2],"ffn":24,"rope_dim":4,"rope_base":10000.0,
"rope_style":"interleaved","norm_eps":1e-05,"tie_embeddings":false}},
"tokenizer":{"artifact":"vocab","kind":"gguf","vocab":32,"template":null,"add_bos":true},
"target":{"driver":"cpu","device_class":"cpu-ref"},
"artifacts":[)" +
                artifact("vocab", "vocab.gguf", "tokenizer.vocab", vocab) + ",\n" +
                artifact("weights", "weights.bin", "weights", weights) + R"(],
"weights":{"artifact":"weights","align":32,"columns":["name","dtype","shape","offset","bytes"],
"rows":[)" + rows +
                R"(]},
"graphs":[{"name":"decode","kind":"decode","batch":[1,4],"chunk":null,"artifacts":[],
"share_group":"main","lane_map":"any","inputs":[)" +
                input("tokens", "\"B\"") + "," + input("positions", "\"B\"") + "," +
                input("lanes", "\"B\"") + R"(],"outputs":)" + logits("B") + R"(,"caps":{}},
{"name":"prefill","kind":"prefill","batch":[1],"chunk":[16,64],"artifacts":[],
"share_group":"main","lane_map":"any","inputs":[)" +
                input("tokens", "\"T\"") + "," + input("positions", "\"T\"") + "," +
                input("lanes", "1") + "," + input("n_valid", "1") + "," +
                input("logit_rows", "\"R\"") + R"(],"outputs":)" + logits("R") + R"(,"caps":{}}],
"kv":{"dtype":["f32","bf16"],"layers":1,"heads":2,"head_dim":4,"groups":[{"name":"main",
"lanes":{"min":1,"max":8,"step":1},"cells":{"min":64,"max":256,"step":64},"order":null,
"strides":null,"base":null,"split":"none","owner":"driver"}],
"caps":{"lane_copy":{"value":true,"level":"C2","source":"packer"}}},
"allowed":{"lanes":{"min":1,"max":8,"step":1},"cells":{"min":64,"max":256,"step":64},
"profiles":[1,4],"chunks":[16,64],"compute":["f32","bf16"],"kv_dtype":["f32","bf16"],
"logits_dtype":["f32","bf16"],"depth":[1],"parallel":["none"],"placement":["any"]},
"memory":{"plan":"dynamic","regions":[]},"parallelism":{"mode":"none","chips":1,"degree":1},
"versions":{"driver_abi":{"min":[1,0],"below":[2,0]}},"golden":[],
"provenance":{"kind":"converted","created":null,"tool":"test","sources":null,"license":null},
"claims":[],"signatures":{"expect":[]}}
)";
    write_manifest(manifest_);
  }

  std::string directory_, manifest_;
};

}  // namespace calrt::testing
