// SPDX-License-Identifier: Apache-2.0
// The KV store: dtypes (D08), shape (D09), bytes (D10), strides and bases (D11).
#include <algorithm>
#include <map>
#include <set>

#include "calrt/allowed.h"
#include "calrt/package_checks.h"
#include "kv/geometry.h"
#include "layout/layout.h"

namespace calrt {
namespace {

bool has(const std::vector<int32_t>& list, int32_t dtype) {
  return std::find(list.begin(), list.end(), dtype) != list.end();
}

void check_kv_dtypes(const Manifest& manifest, Findings* out) {
  for (size_t i = 0; i < manifest.kv_dtypes.size(); ++i) {
    if (has(manifest.allowed_kv_dtype, manifest.kv_dtypes[i])) continue;
    out->reject("D08", {.field = text("/kv/dtype/%zu", i)},
                text("kv dtype %s is not in allowed.kv_dtype", dtype_name(manifest.kv_dtypes[i])));
  }
  for (size_t i = 0; i < manifest.allowed_kv_dtype.size(); ++i) {
    if (has(manifest.kv_dtypes, manifest.allowed_kv_dtype[i])) continue;
    out->reject(
        "D08", {.field = text("/allowed/kv_dtype/%zu", i)},
        text("allowed.kv_dtype %s is not in kv.dtype", dtype_name(manifest.allowed_kv_dtype[i])));
  }
}

void check_kv_shape(const Manifest& manifest, Findings* out) {
  const auto equal = [out](const char* name, uint64_t kv, const char* model_name, uint64_t model) {
    if (kv == model) return;
    out->reject("D09", {.field = std::string("/kv/") + name},
                text("kv.%s %s, model.%s %s", name, grouped(kv).c_str(), model_name,
                     grouped(model).c_str()),
                std::to_string(model), std::to_string(kv));
  };
  equal("layers", manifest.kv_layers, "layers", manifest.layers);
  equal("heads", manifest.kv_kv_heads, "kv_heads", manifest.kv_heads);
  equal("head_dim", manifest.kv_head_dim, "head_dim", manifest.head_dim);
}

class GroupCheck {
 public:
  GroupCheck(const Manifest& manifest, size_t index, Findings* out)
      : manifest_(manifest),
        group_(manifest.kv_groups[index]),
        field_("/kv/groups/" + std::to_string(index)),
        out_(out) {
    for (int32_t dtype : manifest.kv_dtypes) {
      if (dtype_size(dtype) > dtype_size(dtype_)) dtype_ = dtype;
    }
  }

  void run() {
    if (group_.bytes) bytes();
    order();
    if (!group_.strides.empty()) strides();
    bases();
  }

 private:
  void reject(const char* code, const char* field, const std::string& message) {
    out_->reject(code, {.field = field_ + field}, "group " + shown(group_.name) + ": " + message);
  }

  void bytes() {
    const auto lanes = only_value(group_.lanes), cells = only_value(group_.cells);
    if (!lanes || !cells || manifest_.kv_dtypes.size() != 1) {
      reject("D10", "/bytes", "bytes is for a group of one lane count, cell count and dtype");
      return;
    }
    const kv::Geometry geometry{manifest_.kv_layers,
                                manifest_.kv_kv_heads,
                                manifest_.kv_head_dim,
                                dtype_size(manifest_.kv_dtypes[0]),
                                *cells,
                                *lanes};
    const Result<uint64_t> product = geometry.arena_bytes();
    if (product.ok() && *product == *group_.bytes) return;
    const auto declared = grouped(*group_.bytes);
    if (!product.ok())
      return reject("D10", "/bytes", declared + " bytes declared, " + product.error().message);
    std::string factors = "2";
    for (const uint64_t factor : {geometry.layers, geometry.kv_heads, geometry.head_dim,
                                  geometry.element_bytes, geometry.lanes, geometry.cells})
      factors += "·" + std::to_string(factor);
    reject("D10", "/bytes",
           text("%s bytes declared, %s = %s", declared.c_str(), factors.c_str(),
                grouped(*product).c_str()));
  }

  void order() {
    std::set<std::string> axes(group_.order.begin(), group_.order.end());
    if (axes.size() != group_.order.size()) {
      reject("D11", "/order", "order is not a permutation of layer, kv, lane, cell, head, dim");
    }
    if (!group_.strides.empty() && group_.order.empty()) {
      reject("D11", "/strides", "strides need an order");
    }
  }

  uint64_t extent(const std::string& axis) const {
    if (axis == "layer") return manifest_.kv_layers;
    if (axis == "kv") return 2;
    if (axis == "lane") return group_.lanes.largest();
    if (axis == "cell") return group_.cells.largest();
    if (axis == "head") return manifest_.kv_kv_heads;
    return manifest_.kv_head_dim;
  }

  void strides() {
    // With bases, the layer and kv strides are not used: the planes stand where the bases say.
    std::vector<uint64_t> shape, strides;
    for (size_t i = 0; i < group_.order.size() && i < group_.strides.size(); ++i) {
      const std::string& axis = group_.order[i];
      if (!group_.base.empty() && (axis == "layer" || axis == "kv")) continue;
      shape.push_back(extent(axis));
      strides.push_back(group_.strides[i]);
    }
    if (shape.empty()) return;
    const Result<cald_layout> layout = strided_layout(dtype_, shape, strides);
    if (!layout) {
      reject("D11", "/strides", layout.error().message);
    } else {
      plane_bytes_ = layout->bytes;
    }
  }

  void bases() {
    std::set<std::tuple<uint64_t, uint64_t, uint64_t>> planes;
    std::map<std::pair<uint64_t, uint64_t>, size_t> by_address;  // (chip, address) -> index
    for (size_t i = 0; i < group_.base.size(); ++i) {
      const ManifestKvBase& base = group_.base[i];
      const std::string at = text("/base/%zu", i);
      if (!planes.insert({base.layer, base.kv, base.chip}).second) {
        reject("D11", at.c_str(), "the same layer, kv and chip twice");
      }
      const auto [first, fresh] = by_address.emplace(std::pair(base.chip, base.address), i);
      if (!fresh) {
        reject("D11", at.c_str(),
               text("base 0x%llx of chip %s is used twice (base/%zu and base/%zu)",
                    static_cast<unsigned long long>(base.address), grouped(base.chip).c_str(),
                    first->second, i));
      }
    }
    if (plane_bytes_ == 0) return;
    std::vector<kv::Extent> reached;
    std::vector<size_t> index;
    for (const auto& [where, i] : by_address) {
      reached.push_back({where.first, where.second, plane_bytes_});
      index.push_back(i);
    }
    const auto overlaps = kv::find_overlaps(reached);
    if (!overlaps.ok()) return reject("D11", "/base", overlaps.error().message);
    for (const kv::Overlap& overlap : *overlaps) {
      const size_t a = index[overlap.first], b = index[overlap.second];
      reject("D11", text("/base/%zu", b).c_str(),
             text("planes base/%zu and base/%zu overlap: %s bytes apart, each reaches over %s", a,
                  b, grouped(group_.base[b].address - group_.base[a].address).c_str(),
                  grouped(plane_bytes_).c_str()));
    }
  }

  const Manifest& manifest_;
  const ManifestKvGroup& group_;
  std::string field_;
  Findings* out_;
  int32_t dtype_ = 0;
  uint64_t plane_bytes_ = 0;  // what one base covers; 0 = not known
};

}  // namespace

void check_kv(const CheckContext& context) {
  check_kv_dtypes(context.manifest, &context.out);
  check_kv_shape(context.manifest, &context.out);
  for (size_t i = 0; i < context.manifest.kv_groups.size(); ++i) {
    GroupCheck(context.manifest, i, &context.out).run();
  }
}

}  // namespace calrt
